"""Arguments of a recipe function, held against its signature: names, kinds and choices.

A function says by its annotations what it takes, ``estimator: Literal["grpo", "rloo"] = "grpo"``, ``kl: float =
0.001``, and the same annotations make the flags (``core/flags.py``) and their help. What is checked here is what a
command, an arm of a comparison, a saved run and a call from Python have in common; whether a value makes sense is for
the recipe to say.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def bound_arguments(build: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, defaults included. Raises UnknownName and ConfigError, one line each."""
    signature, name = inspect.signature(build), build.__name__
    for key in kwargs:
        if key not in signature.parameters:
            raise UnknownName(f"parameter of {name}", key, signature.parameters)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error
    hints = hints_of(build)
    for key, value in bound.arguments.items():
        check_argument(f"{key} of {name}", value, hints.get(key, Any))
    bound.apply_defaults()
    return dict(bound.arguments)


def check_options(where: str, function: Callable[..., Any], options: Mapping[str, Any], *, first: int) -> None:
    """Raise ConfigError where a function cannot be called with these options as keywords, behind ``first`` arguments;
    UnknownName for one that it does not have."""
    if not callable(function):
        raise ConfigError(f"{where} is {function!r}; expected a function")
    name = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a callable that does not say
        return
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    kinds = {one.kind for one in parameters}
    if len(positional) < first and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ConfigError(
            f"{where}: {name} takes {len(positional)} argument(s); expected `async def {name}(task, roles, …)`"
        )
    keyword_parameters = {one.name: one for one in parameters if one not in positional[:first] and one.kind in _BY_NAME}
    for option in options:
        if option not in keyword_parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UnknownName(f"option of {name} ({where})", option, keyword_parameters)
    for one in keyword_parameters.values():
        if one.default is one.empty and one.name not in options:
            raise ConfigError(f"{where}: {name} needs the option {one.name!r}; give it one, or give it a default")
    hints = hints_of(function)
    for option, value in options.items():
        check_argument(f"{where}: option {option} of {name}", value, hints.get(option, Any))


def at_least(least: int, where: str, **sizes: int) -> None:
    """Raise ConfigError for the first of ``sizes`` that is smaller; from 2 on they are sizes of groups."""
    why = ": they are compared with each other" if least > 1 else ""
    for name, size in sizes.items():
        if size < least:
            raise ConfigError(f"{where}: {name} is {size}, expected at least {least}{why}")


def hints_of(build: Callable[..., Any]) -> dict[str, Any]:
    """The annotations as types, without those that name what their module has only for type checkers."""
    try:
        return typing.get_type_hints(build)
    except (NameError, TypeError):
        pass
    hints: dict[str, Any] = {}
    names = getattr(inspect.unwrap(build), "__globals__", {})
    for name, annotation in getattr(build, "__annotations__", {}).items():
        single = types.SimpleNamespace(__annotations__={name: annotation})
        with suppress(NameError, TypeError):
            hints |= typing.get_type_hints(single, globalns=names)
    return hints


def strip_optional(hint: Any) -> Any:
    """``X | None`` → ``X``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        return rest[0] if len(rest) == 1 else str
    return hint


def fits_hint(value: Any, hint: Any) -> bool:
    """Whether a value is of the kind that an annotation asks for. What is no plain kind (a task source) always fits."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if value is None and hint not in (Any, None, type(None)) and origin not in (typing.Union, types.UnionType):
        return False
    if origin in (typing.Union, types.UnionType):
        return any(fits_hint(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(fits_hint(one, inner[0]) for one in value)
        return len(value) == len(inner) and all(map(fits_hint, value, inner))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    if dataclasses.is_dataclass(hint) or getattr(hint, "_is_protocol", False):  # a part, and no plain value
        return not isinstance(value, str | int | float | tuple)
    return True


def kind_of(hint: Any) -> str:
    """What an annotation asks for, in words: "a whole number", "2 whole numbers" …"""
    hint = strip_optional(hint)
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, inner))
    if typing.get_origin(hint) is tuple:
        each = kind_of(inner[0]).removeprefix("a ")
        return f"a list of {each}s" if inner[-1] is Ellipsis else f"{len(inner)} {each}s"
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def check_argument(where: str, value: Any, hint: Any) -> None:
    """Raise UnknownName or ConfigError where a value is not what its annotation asks for."""
    if fits_hint(value, hint):
        return
    wanted = strip_optional(hint)
    if typing.get_origin(wanted) is typing.Literal and isinstance(value, str):
        raise UnknownName(where, value, typing.get_args(wanted))
    raise ConfigError(f"{where} is {value!r}; expected {kind_of(hint)}")
