"""Where a run's models are: names that hold from any directory, and what to do after one was moved.

``pin_model_names`` writes absolute directories, and commits of models of the Hub, into a recipe before it is begun:
into its policies, into the arguments and settings that it is built of again, and into the paths of adapters it begins
with. What is not here keeps its name, and whoever loads it says what is wrong.

``update_model_path`` is ``--model`` of ``cotrain resume`` and ``cotrain export``: another place for a directory that is
gone, which must hold the weights that the run began with.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotrain.config.policies import Policy, Weights
from cotrain.config.recipe import Recipe, check_due, check_problems
from cotrain.core.errors import ConfigError, RunDirectoryError
from cotrain.core.trust import admit_file, admit_model, admit_module
from cotrain.disk.lock import RunLock
from cotrain.runs import seal
from cotrain.runs.directory import RunDirectory, recipe_json, weights_hash


def prepare_recipe(recipe: Recipe, **how: int) -> tuple[Recipe, dict[str, Any]]:
    """A recipe that can be begun, with names of its models that last, and its recipe.json. ``how``: as of
    ``recipe_json``. Raises ConfigError, DataError."""
    recipe = pin_model_names(recipe)
    saved = recipe_json(recipe, **how)
    check_problems(recipe)
    check_due(recipe)
    return recipe, saved


def pin_model_names(recipe: Recipe, begun: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe with lasting names; ``begun``: recipe.json of the run that goes on, whose names stay where they mean
    the same."""
    from cotrain.models.names import lasting_name, unpinned_name

    held = _names_in(begun["settings"]["policies"]) if begun else set()
    meant = {unpinned_name(name): name for name in sorted(held)}
    names = {name: name if name in held else _saved_name(name, meant) for name in _names_of(recipe.policies)}
    return _rename_models(recipe, {old: lasting_name(old) if new is None else new for old, new in names.items()})


def _saved_name(name: str, meant: Mapping[str, str]) -> str | None:
    """The name by which the run knows this model; None for another model, and for a revision that the user names."""
    from cotrain.models.names import is_hub_model, unpinned_name

    return None if "@" in name and is_hub_model(name) else meant.get(unpinned_name(name))


def _names_of(policies: Mapping[str, Policy]) -> set[str]:
    """Models and adapters that policies begin with."""
    found = set()
    for spec in policies.values():
        if isinstance(spec, Weights):
            found.add(spec.model)
            if spec.lora is not None and spec.lora.path is not None:
                found.add(spec.lora.path)
    return found


def _names_in(policies: Mapping[str, Any]) -> set[str]:
    """The same of recipe.json."""
    models = {str(one["model"]) for one in policies.values() if "micro_tokens" in one}
    return models | {str(path) for one in policies.values() if (path := (one.get("lora") or {}).get("path"))}


def _rename_models(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    if all(old == new for old, new in names.items()):
        return recipe
    policies = {}
    for policy, spec in recipe.policies.items():
        if isinstance(spec, Weights):
            spec = replace(spec, model=names[spec.model])
            if spec.lora is not None and spec.lora.path is not None:
                spec = replace(spec, lora=replace(spec.lora, path=names[spec.lora.path]))  # type: ignore[call-arg]
        policies[policy] = spec
    origin = recipe.origin
    if origin is not None:
        naming = _naming_arguments(origin.arguments, names)
        arguments = {
            key: _renamed_value(value, names) if key in naming else value for key, value in origin.arguments.items()
        }
        settings = tuple(_renamed_setting(one, names) for one in origin.settings)
        origin = replace(origin, arguments=arguments, settings=settings)
    return replace(recipe, policies=policies, origin=origin)


def _naming_arguments(arguments: Mapping[str, Any], names: Collection[str]) -> set[str]:
    """The arguments that name these models: ``model``, ``verifier_model`` and their like, and another one only where
    none of those has its value. ``verifier="trained"`` names no model, also where the model is called "trained"."""
    plain = {key for key in arguments if key.rpartition("_")[2] in ("model", "models")}
    said = {one for key in plain for one in _strings_in(arguments[key])}
    return plain | {key for key, value in arguments.items() if _strings_in(value) & set(names) - said}


def _strings_in(value: Any) -> set[str]:
    parts = value if isinstance(value, list | tuple) else [value]
    return {one for one in parts if isinstance(one, str)}


def _renamed_value(value: Any, names: Mapping[str, str]) -> Any:
    """An argument; of a list, each of its parts."""
    if isinstance(value, list | tuple):
        return [_renamed_value(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


def _renamed_setting(text: str, names: Mapping[str, str]) -> str:
    """One of ``--set``."""
    path, _, value = text.partition("=")
    try:
        plain = json.loads(value)
    except ValueError:
        plain = value
    new = names.get(plain, plain) if isinstance(plain, str) and path.startswith("policies.") else plain
    return text if new == plain else f"{path}={json.dumps(new, ensure_ascii=False)}"


def weights_of(policies: Mapping[str, Policy]) -> dict[str, str]:
    """Hashes of what each policy begins with."""
    found = {}
    for name, spec in policies.items():
        found[name] = weights_hash(spec.model) if isinstance(spec, Weights) else ""
        if spec.lora is not None and spec.lora.path is not None:
            found[f"{name}/adapter"] = weights_hash(spec.lora.path)
    return found


def admit_code(target: str, arguments: Mapping[str, Any]) -> None:
    """Of what a recipe is made of, the Python that is not cotrain's (``core/trust.py``)."""
    classes = [one["class"] for one in arguments.values() if isinstance(one, Mapping) and one.get("class")]
    for one in (target, *classes):
        path = str(one).rpartition(":")[0]
        if path.endswith(".py"):
            admit_file(path)
        elif path:
            admit_module(path)


def admit_models(policies: Mapping[str, Policy]) -> None:
    """The same of models that come with Python files of their own."""
    for policy in policies.values():
        if isinstance(policy, Weights) and policy.trust_remote_code:
            admit_model(policy.model)


def refuse_lost(policies: Mapping[str, Policy], where: Path | str) -> None:
    """Raise RunDirectoryError for directories of models that are gone."""
    lost = sorted(name for name in _names_of(policies) if _is_gone(name))
    if lost:
        many = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        new = "NEW" if len(lost) == 1 else "OLD=NEW"
        raise RunDirectoryError(
            f"{where}: its model {lost[0]!r}{many} is not there any more; if it was moved, say where to with "
            f"--model {new}, of `cotrain resume` or `cotrain export`"
        )


def _is_gone(name: str) -> bool:
    return name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir()


def update_model_path(out: Path | str, model: str) -> None:
    """Let a run know the new place of a model that was moved: ``NEW``, or ``OLD=NEW`` where several are gone.

    Written again: recipe.json, with the seal. Raises ConfigError, RunDirectoryError, one line each; then the run is as
    it was.
    """
    from cotrain.models.names import lasting_name

    directory = RunDirectory.open(out)
    with RunLock(directory.path):
        seal.verify_files(directory)
        saved: Any = directory.read("recipe.json")
        policies = saved["settings"]["policies"]
        lost = sorted(name for name in _names_in(policies) if _is_gone(name))
        old, equals, new = model.partition("=")
        if not lost:
            raise ConfigError(
                f"--model {model}: every model of the run in {directory.path} is in its place; leave it out"
            )
        if not equals:
            if len(lost) > 1:
                raise ConfigError(f"--model {model}: {', '.join(lost)} are gone; say which with --model OLD=NEW")
            old, new = lost[0], model
        if old not in lost:
            raise ConfigError(
                f"--model {model}: the run has no model {old!r} that is gone; expected {' or '.join(lost)}"
            )
        where = lasting_name(new)
        if not Path(where).is_dir():
            raise ConfigError(f"--model {model}: {new} is no directory; give the one that holds the model now")
        provenance: Any = directory.read("provenance.json") or {}
        for policy, spec in policies.items():
            for key, name in ((policy, spec["model"]), (f"{policy}/adapter", (spec.get("lora") or {}).get("path"))):
                if name == old and provenance.get("weights", {}).get(key) != weights_hash(where):
                    raise ConfigError(
                        f"--model {model}: {new} holds other weights than policy {policy!r} began with; give the "
                        "directory that was moved, unchanged"
                    )
        names = {old: where}
        for policy, spec in policies.items():
            saved_names = {key: spec[key] for key in ("model", "lora") if key in spec}
            spec["model"] = names.get(spec["model"], spec["model"])
            if (spec.get("lora") or {}).get("path") in names:
                spec["lora"] = spec["lora"] | {"path": where}
            if any(spec[key] != saved_names[key] for key in saved_names):
                saved.setdefault(seal.MOVED, {}).setdefault(policy, saved_names)
        if (origin := saved["origin"]) is not None:
            origin["arguments"] = {key: _renamed_value(value, names) for key, value in origin["arguments"].items()}
            origin["settings"] = [_renamed_setting(one, names) for one in origin["settings"]]
        directory.write_sealed({"recipe.json": saved})
