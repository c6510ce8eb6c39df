"""Functions by which the program itself changes a finished recipe; their parameters are fields of policies and roles.

::

    with_policies(recipe, ["generator", "verifier"], rows=64)
    with_roles(recipe, ["solver"], answer_format="boxed")
    with_sampling(recipe, ["solver"], max_tokens=512)

The new recipe is checked like any other. If the recipe knows its origin (the function and arguments that made it), the
change is added to it as text, as ``--set`` would add it: recipe.json holds this text, and a resumed run is built from
it. People change settings by such text (``override.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from cotrain.config.recipe import Recipe


class PolicyFields(TypedDict, total=False):
    """Fields of policies (``policies.py: Weights``) that the program may choose by itself."""

    rows: int
    micro_tokens: int
    offload: bool
    pack_weights: bool
    gradient_checkpointing: bool


class RoleFields(TypedDict, total=False):
    """Fields of roles for prompts and formats."""

    prompt: str
    answer_format: str
    step_format: str | None
    verdict_format: str


class SamplingFields(TypedDict, total=False):
    """Fields of a role's sampling."""

    max_tokens: int
    temperature: float


def with_policies(recipe: Recipe, names: Iterable[str], **fields: Unpack[PolicyFields]) -> Recipe:
    """The recipe with these fields in the named policies. Raises ConfigError."""
    names = list(names)
    policies: dict[str, Any] = dict(recipe.policies)
    for name in names:
        policies[name] = replace(policies[name], **fields)
    changed = replace(recipe, policies=policies)
    return _with_overrides(changed, policy_overrides(names, **fields))


def with_roles(recipe: Recipe, names: Iterable[str], **fields: Unpack[RoleFields]) -> Recipe:
    """The recipe with these fields in the named roles. Raises ConfigError."""
    names = list(names)
    roles = dict(recipe.roles)
    for name in names:
        roles[name] = replace(roles[name], **fields)
    changed = replace(recipe, roles=roles)
    return _with_overrides(changed, _override_texts("roles", names, fields))


def with_sampling(recipe: Recipe, names: Iterable[str], **fields: Unpack[SamplingFields]) -> Recipe:
    """The recipe with these fields in the sampling of the named roles. Raises ConfigError."""
    names = list(names)
    roles = dict(recipe.roles)
    for name in names:
        roles[name] = replace(roles[name], sampling=replace(roles[name].sampling, **fields))
    changed = replace(recipe, roles=roles)
    return _with_overrides(
        changed, _override_texts("roles", names, {f"sampling.{key}": value for key, value in fields.items()})
    )


def policy_overrides(names: Iterable[str], **fields: Unpack[PolicyFields]) -> list[str]:
    """The same change of policies as texts for ``--set``."""
    return _override_texts("policies", list(names), fields)


def overrides_since(before: Recipe, after: Recipe) -> list[str]:
    """The texts for ``--set`` that change ``before`` into ``after``, which was made from it; [] if one of them does not
    know its origin."""
    if before.origin is None or after.origin is None:
        return []
    return list(after.origin.overrides[len(before.origin.overrides) :])


def override_text(path: str, value: Any) -> str:
    """A change as text for ``--set``, the form in which recipe.json holds it."""
    return f"{path}={json.dumps(value)}"


def _override_texts(part: str, names: Sequence[str], fields: Mapping[str, Any]) -> list[str]:
    return [override_text(f"{part}.{name}.{field}", value) for field, value in fields.items() for name in names]


def _with_overrides(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with these overrides appended to those of its origin."""
    if recipe.origin is None:
        return recipe
    origin = replace(recipe.origin, overrides=(*recipe.origin.overrides, *overrides))
    return replace(recipe, origin=origin)
