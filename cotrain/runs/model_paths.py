"""Where a run finds its models again: from any directory, and at any time.

``pin_model_names`` writes absolute directories, and commits of models of the Hub, into a recipe before it is begun:
into its policies, into the arguments and settings that it is built of again, and into the paths of adapters it begins
with. What is not here keeps its name, and whoever loads it says what is wrong. A model that was moved: ``changes.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotrain.config.policies import Policy, Weights
from cotrain.config.recipe import Recipe, check_due, check_problems
from cotrain.models.load import is_embedded
from cotrain.runs.directory import recipe_json, weights_hash


def prepare_recipe(recipe: Recipe, **how: int) -> tuple[Recipe, dict[str, Any]]:
    """A recipe that can be begun, with names of its models that last, and its recipe.json. ``how``: as of
    ``recipe_json``. Raises ConfigError, DataError."""
    recipe = pin_model_names(recipe)
    saved = recipe_json(recipe, **how)
    check_problems(recipe)
    check_due(recipe)
    return recipe, saved


def remember_code(directory: Path, recipe: Recipe) -> None:
    """Let a run know the user's own Python that it is begun with, if there is any (``core/trust.py``)."""
    origin = recipe.origin
    own = origin is not None and (
        ":" in origin.target or any(isinstance(v, Mapping) for v in origin.arguments.values())
    )
    if own or any(isinstance(spec, Weights) and spec.trust_remote_code for spec in recipe.policies.values()):
        from cotrain.core.trust import remembering_code_of
        from cotrain.runs.changes import admit_code, admit_models

        with remembering_code_of(directory):
            if origin is not None:
                admit_code(origin.target, origin.arguments)
            admit_models(recipe.policies)


def pin_model_names(recipe: Recipe, begun: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe with lasting names; ``begun``: recipe.json of the run that goes on, whose names stay where they mean
    the same, but for a revision that the user names."""
    if all(is_embedded(name) for name in model_names(recipe.policies)):
        return recipe
    from cotrain.models.names import is_hub_model, lasting_name, unpinned_name

    held = saved_names(begun["settings"]["policies"]) if begun else set()
    meant = {unpinned_name(name): name for name in sorted(held)}

    def pin_name(name: str) -> str:
        if name in held:
            return name
        known = None if "@" in name and is_hub_model(name) else meant.get(unpinned_name(name))
        return known or lasting_name(name)

    names = {name: pin_name(name) for name in model_names(recipe.policies)}
    if all(old == new for old, new in names.items()):
        return recipe
    policies = {policy: _rename_weights(spec, names) for policy, spec in recipe.policies.items()}
    if (origin := recipe.origin) is not None:
        arguments, settings = rename_origin(origin.arguments, origin.settings, names)
        origin = replace(origin, arguments=arguments, settings=settings)
    return replace(recipe, policies=policies, origin=origin)


def _rename_weights(spec: Policy, names: Mapping[str, str]) -> Policy:
    if not isinstance(spec, Weights):
        return spec
    spec = replace(spec, model=names[spec.model])
    if spec.lora is not None and spec.lora.path is not None:
        spec = replace(spec, lora=replace(spec.lora, path=names[spec.lora.path]))  # type: ignore[call-arg]
    return spec


def model_names(policies: Mapping[str, Policy]) -> set[str]:
    """Models and adapters that policies begin with."""
    specs = [spec for spec in policies.values() if isinstance(spec, Weights)]
    return {spec.model for spec in specs} | {spec.lora.path for spec in specs if spec.lora and spec.lora.path}


def saved_names(policies: Mapping[str, Any]) -> set[str]:
    """The same of recipe.json."""
    models = {str(one["model"]) for one in policies.values() if "micro_tokens" in one}
    return models | {str(path) for one in policies.values() if (path := (one.get("lora") or {}).get("path"))}


def rename_origin(
    arguments: Mapping[str, Any], settings: Iterable[str], names: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments and settings of a recipe with other names of its models.

    Arguments that name models are ``model``, ``verifier_model`` and their like, and another one only where none of
    those has its value: ``verifier="trained"`` names no model, also where the model is called "trained"."""

    def replace_names(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [replace_names(one) for one in value]
        return names.get(value, value) if isinstance(value, str) else value

    plain = {key for key in arguments if key.rpartition("_")[2] in ("model", "models")}
    said = {one for key in plain for one in _strings_in(arguments[key])}
    naming = plain | {key for key, value in arguments.items() if _strings_in(value) & set(names) - said}
    new = {key: replace_names(value) if key in naming else value for key, value in arguments.items()}
    return new, tuple(_rename_setting(one, names) for one in settings)


def _strings_in(value: Any) -> set[str]:
    return {one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, str)}


def _rename_setting(text: str, names: Mapping[str, str]) -> str:
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
