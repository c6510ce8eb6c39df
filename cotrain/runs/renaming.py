"""Other names of models in a recipe, in what made it, and in its recipe.json (``model_paths.py`` says what for)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cotrain.config.policies import Policy, Weights, model_names
from cotrain.config.recipe import Recipe
from cotrain.models.names import is_hub_model, lasting_name, unpinned_name


def with_lasting_names(recipe: Recipe, begun: Mapping[str, Any] | None) -> Recipe:
    """See ``model_paths.pin_model_names``; ``begun``: recipe.json of the run that goes on."""
    held = saved_names(begun["settings"]["policies"]) if begun else set()
    meant = {unpinned_name(name): name for name in sorted(held)}

    def pin_name(name: str) -> str:
        if name in held:
            return name
        names_revision = "@" in name and is_hub_model(name)
        if not names_revision and unpinned_name(name) in meant:
            return meant[unpinned_name(name)]
        return lasting_name(name)

    names = {name: pin_name(name) for name in model_names(recipe.policies)}
    if all(old == new for old, new in names.items()):
        return recipe
    policies = {policy: _rename_weights(spec, names) for policy, spec in recipe.policies.items()}
    if (origin := recipe.origin) is not None:
        arguments, settings = rename_origin(origin.arguments, origin.overrides, names)
        origin = replace(origin, arguments=arguments, overrides=settings)
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
    return new, tuple(_rename_setting(setting, names) for setting in settings)


def _strings_in(value: Any) -> set[str]:
    return {one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, str)}


def _rename_setting(text: str, names: Mapping[str, str]) -> str:
    """A text of ``--set`` with the new name of its model, where it names one."""
    path, _, value = text.partition("=")
    try:
        plain = json.loads(value)
    except ValueError:
        plain = value
    new = names.get(plain, plain) if isinstance(plain, str) and path.startswith("policies.") else plain
    return text if new == plain else f"{path}={json.dumps(new, ensure_ascii=False)}"
