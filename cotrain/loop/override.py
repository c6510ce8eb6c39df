"""``--set dotted.path=value``: change any setting of a finished recipe, with the checks of a new one.

    roles.solver.sampling.temperature=0.8     objectives.generator.by.kl.coefficient=0     policies.verifier.lr=3e-4

Values are read as JSON, else taken as text. The path goes through fields of dataclasses and keys of mappings; an
unknown name suggests the nearest one, and a value must have the kind of the one it replaces.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.errors import ConfigError, unknown_message
from cotrain.loop.recipe import Recipe


def override(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with ``settings`` applied in order, and remembered in its origin. Raises ConfigError."""
    changed: Any = recipe
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {setting!r}: expected dotted.path=value, as in policies.generator.lr=1e-4")
        changed = _replace(changed, path.split("."), _value(text), setting)
    if recipe.origin is None:
        return changed
    origin = dataclasses.replace(recipe.origin, settings=(*recipe.origin.settings, *settings))
    return dataclasses.replace(changed, origin=origin)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _replace(owner: Any, path: Sequence[str], value: Any, setting: str) -> Any:
    name, *rest = path
    if isinstance(owner, Mapping):
        if name not in owner:
            raise ConfigError(f"--set {setting!r}: {unknown_message('key', name, owner)}")
        new = _replace(owner[name], rest, value, setting) if rest else _fitting(owner[name], value, setting)
        return {**owner, name: new}
    if not dataclasses.is_dataclass(owner) or isinstance(owner, type):
        raise ConfigError(f"--set {setting!r}: a {type(owner).__name__} has no part {name!r}; shorten the path")
    names = [f.name for f in dataclasses.fields(owner) if f.init and f.name != "origin"]
    if name not in names:
        raise ConfigError(f"--set {setting!r}: {unknown_message(f'field of {type(owner).__name__}', name, names)}")
    old = getattr(owner, name)
    new = _replace(old, rest, value, setting) if rest else _fitting(old, value, setting)
    return dataclasses.replace(owner, **{name: new})


def _fitting(old: Any, value: Any, setting: str) -> Any:
    """The value, in the kind of the one it replaces."""
    if isinstance(old, bool) or old is None:
        fits = (
            isinstance(value, bool) if old is not None else value is None or isinstance(value, str | int | float | bool)
        )
    elif isinstance(old, float):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if fits else value
    elif isinstance(old, int):
        fits = isinstance(value, int) and not isinstance(value, bool)
    elif isinstance(old, str):
        fits = isinstance(value, str)
    elif isinstance(old, tuple):
        fits = isinstance(value, list)
        value = tuple(value) if fits else value
    else:
        raise ConfigError(
            f"--set {setting!r}: this is a {type(old).__name__}, not a plain value; go on with one of its parts"
        )
    if not fits:
        raise ConfigError(f"--set {setting!r}: expected a value like {old!r}, found {value!r}")
    return value
