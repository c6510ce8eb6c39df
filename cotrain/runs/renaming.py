"""Other names of models in a recipe, in what made it, and in its recipe.json (``model_paths.py`` says what for)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cotrain.config.policies import Policy, Weights, model_names
from cotrain.config.recipe import Recipe
from cotrain.core.input_files import parse_json
from cotrain.models.names import is_hub_model, lasting_name, unpinned_name


def with_lasting_names(recipe: Recipe, begun: Mapping[str, Any] | None) -> Recipe:
    """See ``model_paths.pin_model_names``; ``begun``: recipe.json of the run that goes on."""
    begun_names = saved_names(begun["settings"]["policies"]) if begun else set()
    by_unpinned_name = {unpinned_name(name): name for name in sorted(begun_names)}

    def pin_name(name: str) -> str:
        names_revision = "@" in name and is_hub_model(name)
        if name in begun_names:
            pinned = name
        elif not names_revision and unpinned_name(name) in by_unpinned_name:
            pinned = by_unpinned_name[unpinned_name(name)]
        else:
            pinned = lasting_name(name)
        return pinned

    names = {name: pin_name(name) for name in model_names(recipe.policies)}
    if all(old == new for old, new in names.items()):
        return recipe
    policies = {policy: _rename_weights(spec, names) for policy, spec in recipe.policies.items()}
    origin = recipe.origin
    if origin is not None:
        arguments, overrides = rename_origin(origin.arguments, origin.overrides, names)
        origin = replace(origin, arguments=arguments, overrides=overrides)
    return replace(recipe, policies=policies, origin=origin)


def _rename_weights(spec: Policy, names: Mapping[str, str]) -> Policy:
    if not isinstance(spec, Weights):
        return spec
    spec = replace(spec, model=names[spec.model])
    if spec.lora is not None and spec.lora.path is not None:
        spec = replace(spec, lora=replace(spec.lora, path=names[spec.lora.path]))  # type: ignore[call-arg]
    return spec


def saved_names(policies: Mapping[str, Any]) -> set[str]:
    """The models of policies as recipe.json has them, and the adapters that they begin with."""
    names: set[str] = set()
    for policy in policies.values():
        if "micro_tokens" in policy:  # a model that is held where the run is
            names.add(str(policy["model"]))
        adapter = policy.get("lora") or {}
        if adapter.get("path"):
            names.add(str(adapter["path"]))
    return names


def rename_origin(
    arguments: Mapping[str, Any], overrides: Iterable[str], names: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments and overrides of a recipe with other names of its models. ``names``: old → new.

    Arguments that name models are ``model``, ``verifier_model`` and their like, and another one only where none of
    those has its value: ``verifier="trained"`` names no model, also where the model is called "trained"."""

    model_keys = {key for key in arguments if key.rpartition("_")[2] in ("model", "models")}
    named_there: set[str] = set()
    for key in model_keys:
        named_there |= _strings_in(arguments[key])
    only_elsewhere = set(names) - named_there

    renamed: dict[str, Any] = {}
    for key, value in arguments.items():
        names_model = key in model_keys or bool(_strings_in(value) & only_elsewhere)
        renamed[key] = _rename_value(value, names) if names_model else value
    return renamed, tuple(_rename_setting(text, names) for text in overrides)


def _rename_value(value: Any, names: Mapping[str, str]) -> Any:
    """An argument with new names: one name, or several in a list."""
    if isinstance(value, list | tuple):
        return [_rename_value(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _strings_in(value: Any) -> set[str]:
    """The argument, or the items of a list, where they are strings."""
    items = value if isinstance(value, list | tuple) else [value]
    return {item for item in items if isinstance(item, str)}


def _rename_setting(text: str, names: Mapping[str, str]) -> str:
    """A text of ``--set`` with the new name of its model, where it names one."""
    path, _, value = text.partition("=")
    try:
        setting = parse_json(value)
    except ValueError:
        setting = value
    may_name_model = path.startswith("policies.") and isinstance(setting, str)
    if not may_name_model or names.get(setting, setting) == setting:
        return text
    return f"{path}={json.dumps(names[setting], ensure_ascii=False)}"
