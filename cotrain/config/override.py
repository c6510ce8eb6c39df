"""``--set dotted.path=value``: change any setting of a finished recipe, with the checks of a new one.

    roles.solver.sampling.temperature=0.8     objectives.generator.algorithm.kl.weight=0     policies.verifier.lr=3e-4

Values are read as JSON, or else as text. The path goes through fields of dataclasses, keys of mappings and indices of
tuples (``schedule.phases.0.group_size=4``). For an unknown name the error suggests the nearest one. A value must have
the type of the one it replaces, or of the field's annotation if that one is None.

This is for people, and for files that hold what they typed. The program itself changes a recipe by ``edits.py``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotrain.config.evaluation import Evaluation
from cotrain.config.recipe import Recipe
from cotrain.config.schedule import Phase, rebind_options
from cotrain.core.arguments import fits_hint, hints_of, kind_of
from cotrain.core.errors import ConfigError, unknown_message

Plain = str | int | float | bool | tuple | None


def override(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with ``overrides`` applied in order and added to its origin. Raises ConfigError."""
    result: Any = recipe
    for assignment in overrides:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(
                f"--set {assignment!r}: expected dotted.path=value, as in policies.generator.lr=1e-4",
                code="E_OVERRIDE_SHAPE",
            )
        result = _replace_at(result, path.split("."), _parse_value(text), f"--set {assignment!r}")
    if recipe.origin is None:
        return result
    origin = dataclasses.replace(recipe.origin, overrides=(*recipe.origin.overrides, *overrides))
    return dataclasses.replace(result, origin=origin)


def restore_overrides(recipe: Recipe, overrides: Iterable[tuple[str, Any]]) -> Recipe:
    """The recipe with the settings that a run saved, since defaults may have changed after that. A setting that is no
    plain value stays as it is. ``overrides``: dotted path and JSON value of each setting."""
    result: Any = recipe
    for path, value in overrides:
        try:
            result = _replace_at(result, path.split("."), value, path)
        except ConfigError:
            continue
    return result


def is_given(recipe: Recipe, path: str) -> bool:
    """True if this override was applied to the recipe."""
    return recipe.origin is not None and any(one.startswith(f"{path}=") for one in recipe.origin.overrides)


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _replace_at(owner: Any, path: Sequence[str], value: Any, where: str, hint: Any = Any) -> Any:
    """``owner`` with the value at ``path`` replaced. ``hint``: the annotation of the field in which ``owner`` is."""
    if not path:
        return _fit_value(owner, value, hint, where)
    name, *rest = path
    if isinstance(owner, Mapping):
        keys = {str(key): key for key in owner}  # a key may be a signal
        if name not in keys:
            raise ConfigError(f"{where}: {unknown_message('key', name, keys)}", code="E_NO_SUCH_KEY")
        return {**owner, keys[name]: _replace_at(owner[keys[name]], rest, value, where)}
    if isinstance(owner, tuple) and any(map(dataclasses.is_dataclass, owner)):
        if not name.isdecimal() or int(name) >= len(owner):
            raise ConfigError(
                f"{where}: {name!r} is no number from 0 to {len(owner) - 1}, of the {len(owner)} parts there",
                code="E_OVERRIDE_INDEX",
            )
        parts = list(owner)
        parts[int(name)] = _replace_at(parts[int(name)], rest, value, where)
        return tuple(parts)
    if not dataclasses.is_dataclass(owner) or isinstance(owner, type):
        raise ConfigError(
            f"{where}: a {type(owner).__name__} has no part {name!r}; shorten the path", code="E_OVERRIDE_PATH"
        )
    names = [f.name for f in dataclasses.fields(owner) if f.init and f.name != "origin"]
    if isinstance(owner, Phase | Evaluation) and name == "options":  # no field: options are bound to the protocol
        options = _replace_at(owner.options, rest, value, where)
        return dataclasses.replace(owner, protocol=rebind_options(owner.protocol, options))
    if name not in names:
        raise ConfigError(
            f"{where}: {unknown_message(f'field of {type(owner).__name__}', name, names)}", code="E_NO_SUCH_FIELD"
        )
    new = _replace_at(getattr(owner, name), rest, value, where, hints_of(type(owner)).get(name, Any))
    return dataclasses.replace(owner, **{name: new})


def _fit_value(old: Any, value: Any, hint: Any, where: str) -> Any:
    """The value, converted to the type of the one it replaces. Raises ConfigError if it does not fit."""
    if isinstance(value, list):
        value = tuple(value)
    _require_finite(value, where)
    _require_plain(old, value, hint, where)
    if old is None or value is None:
        return value

    _require_plain_place(old, where)
    if not _is_like(old, value, hint):
        raise ConfigError(f"{where}: expected a value like {old!r}, found {value!r}", code="E_OVERRIDE_TYPE")
    if isinstance(old, float):
        return float(value)
    return value


def _require_finite(value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: expected a finite number, found {value!r}", code="E_OVERRIDE_NOT_FINITE")


def _require_plain(old: Any, value: Any, hint: Any, where: str) -> None:
    """Raise ConfigError unless the value is plain and, if it or the old one is None, fits the annotation."""
    is_plain = isinstance(value, Plain)
    is_none_involved = old is None or value is None
    # An entry of a mapping has no annotation, so nothing says that it may be None.
    unsets_entry = value is None and old is not None and hint is Any
    if not is_plain or (is_none_involved and not fits_hint(value, hint)) or unsets_entry:
        expected = kind_of(hint) if old is None else f"a value like {old!r}"
        raise ConfigError(f"{where}: expected {expected}, found {value!r}", code="E_OVERRIDE_TYPE")


def _require_plain_place(old: Any, where: str) -> None:
    """Raise ConfigError if the path ends at a value that has parts."""
    if isinstance(old, tuple) and all(isinstance(part, Plain) for part in old):
        return
    if isinstance(old, bool | int | float | str):
        return
    names = [field.name for field in dataclasses.fields(old)] if dataclasses.is_dataclass(old) else []
    kind = "list of parts" if isinstance(old, tuple) else type(old).__name__
    more = "go on with one of its parts"
    if names:
        more += f", {', '.join(names)}"
    raise ConfigError(f"{where}: this is a {kind}, not a plain value; {more}", code="E_OVERRIDE_NOT_PLAIN")


def _is_like(old: Any, value: Any, hint: Any) -> bool:
    """Whether the value has the type of the old one; an int may replace a float."""
    if isinstance(old, tuple):
        return isinstance(value, tuple) and fits_hint(value, hint)
    if isinstance(old, bool) or isinstance(value, bool):
        both = isinstance(old, bool) and isinstance(value, bool)
        takes_several_kinds = bool(typing.get_args(hint))
        return both or (takes_several_kinds and fits_hint(value, hint))
    if isinstance(old, float):
        return isinstance(value, int | float)
    return isinstance(value, type(old))
