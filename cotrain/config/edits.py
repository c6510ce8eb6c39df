"""Changes of a finished recipe from inside of the program, by functions whose parameters are its fields.

::

    with_policies(recipe, ["generator", "verifier"], rows=64)
    with_roles(recipe, ["solver"], answer_format="boxed")
    with_sampling(recipe, ["solver"], max_tokens=512)

A new recipe is checked like any other. Where the recipe knows its origin, the change is remembered there as ``--set``
would be: recipe.json holds text, and a resumed run is built from it. People change settings by that text
(``override.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from cotrain.config.recipe import Recipe


class PolicyFields(TypedDict, total=False):
    """Fields of policies with weights (``policies.py``) that the program chooses by itself."""

    rows: int
    micro_tokens: int
    offload: bool
    pack_weights: bool
    gradient_checkpointing: bool


class RoleFields(TypedDict, total=False):
    """Fields of roles that say how they are asked and read."""

    prompt: str
    answer_format: str
    step_format: str | None
    verdict_format: str


class SamplingFields(TypedDict, total=False):
    """Fields of a role's sampling."""

    max_tokens: int
    temperature: float


def with_policies(recipe: Recipe, names: Iterable[str], **fields: Unpack[PolicyFields]) -> Recipe:
    """The recipe in which these policies have these fields. Raises ConfigError."""
    names = list(names)
    policies: dict[str, Any] = dict(recipe.policies)
    for name in names:
        policies[name] = replace(policies[name], **fields)
    changed = replace(recipe, policies=policies)
    return _with_remembered(changed, policy_overrides(names, **fields))


def with_roles(recipe: Recipe, names: Iterable[str], **fields: Unpack[RoleFields]) -> Recipe:
    """The recipe in which these roles have these fields. Raises ConfigError."""
    names = list(names)
    roles = dict(recipe.roles)
    for name in names:
        roles[name] = replace(roles[name], **fields)
    changed = replace(recipe, roles=roles)
    return _with_remembered(changed, _texts("roles", names, fields))


def with_sampling(recipe: Recipe, names: Iterable[str], **fields: Unpack[SamplingFields]) -> Recipe:
    """The recipe in which these roles sample so. Raises ConfigError."""
    names = list(names)
    roles = dict(recipe.roles)
    for name in names:
        roles[name] = replace(roles[name], sampling=replace(roles[name].sampling, **fields))
    changed = replace(recipe, roles=roles)
    return _with_remembered(
        changed, _texts("roles", names, {f"sampling.{key}": value for key, value in fields.items()})
    )


def policy_overrides(names: Iterable[str], **fields: Unpack[PolicyFields]) -> list[str]:
    """Return what people type behind ``--set`` for the same change of policies."""
    return _texts("policies", list(names), fields)


def overrides_since(before: Recipe, after: Recipe) -> list[str]:
    """Return what people type behind ``--set`` to make ``after`` of ``before``, which it was made of. Both know their
    origin."""
    if before.origin is None or after.origin is None:
        return []
    return list(after.origin.overrides[len(before.origin.overrides) :])


def override_text(path: str, value: Any) -> str:
    """One change as people type it behind ``--set``, and as recipe.json remembers it."""
    return f"{path}={json.dumps(value)}"


def _texts(part: str, names: Sequence[str], fields: Mapping[str, Any]) -> list[str]:
    return [override_text(f"{part}.{name}.{field}", value) for field, value in fields.items() for name in names]


def _with_remembered(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe whose origin has these overrides behind its own."""
    if recipe.origin is None:
        return recipe
    origin = replace(recipe.origin, overrides=(*recipe.origin.overrides, *overrides))
    return replace(recipe, origin=origin)
