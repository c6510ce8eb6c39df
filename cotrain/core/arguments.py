"""Arguments of a recipe, held against what it takes: names, kinds and choices.

A function says by its annotations what it takes, ``estimator: Literal["grpo", "rloo"] = "grpo"``, ``alpha: Weight =
0.1``, and the same annotations make the flags (``cli/flags.py``) and their help.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from cotrain.core.errors import ConfigError, UnknownName

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass(frozen=True, slots=True)
class AtLeast:
    """In an annotation: the smallest number that an argument may be, and the largest one."""

    least: int
    held_out: int | None = None  # value of a protocol's option on held-out problems, where it differs
    most: int | None = None


Positive = Annotated[int, AtLeast(1)]  # a number of turns, solutions, steps …
NotNegative = Annotated[int, AtLeast(0)]
Weight = Annotated[float, AtLeast(0)]
Share = Annotated[float, AtLeast(0, most=1)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a recipe."""

    hint: Any  # the annotation, as a type
    default: Any = inspect.Parameter.empty

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


def bound_arguments(name: str, parameters: Mapping[str, Argument], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call of ``name``, in the order in which they are ``parameters``, defaults included. Raises
    UnknownName and ConfigError, one line each."""
    for key in arguments:
        if key not in parameters:
            raise UnknownName(f"parameter of {name}", key, parameters)
    for key, argument in parameters.items():
        if key not in arguments and argument.is_required:
            raise ConfigError(f"{name}: missing a required argument: {key!r}", code="E_ARGUMENT_MISSING")
    for key, argument in parameters.items():
        if key in arguments:
            check_argument(f"{key} of {name}", arguments[key], argument.hint)
    return {key: arguments.get(key, argument.default) for key, argument in parameters.items()}


def bound_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in which a ``functools.partial`` binds arguments; any other as it is."""
    while isinstance(function, partial):
        function = function.func
    return function


def check_called_with(where: str, function: Callable[..., Any], *names: str) -> None:
    """Raise ConfigError for a function of the user's that cannot be called with as many arguments as it will be.
    ``names``: what it will be called with, in order."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable that does not say what it takes
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        name = getattr(function, "__name__", "function")
        raise ConfigError(
            f"{where}: {name}{signature}: {error}; expected def {name}({', '.join(names)})", code="E_FUNCTION_SIGNATURE"
        ) from None


def bound_options(function: Callable[..., Any]) -> dict[str, Any]:
    """The keywords that a ``functools.partial`` binds; none of any other function."""
    return {**bound_options(function.func), **function.keywords} if isinstance(function, partial) else {}


def option_names(function: Callable[..., Any]) -> list[str]:
    """The names of a protocol's options, behind ``task`` and ``roles``; none for a callable that does not say."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters[2:] if parameter.kind in _BY_NAME]


def check_protocol(
    where: str,
    protocol: Callable[..., Any],
    stores: Mapping[str, Any] | None = None,
    *,
    unnamed: Collection[str] = (),
    held_out: bool = False,
) -> None:
    """Raise ConfigError where a protocol cannot be run with the options that are bound to it and these stores;
    UnknownName for an option that it does not have. ``unnamed``: stores that it is not passed, as its phase does not
    name them. ``held_out``: it is run on held-out problems."""
    if not callable(protocol):
        raise ConfigError(f"{where} is {protocol!r}; expected a function", code="E_NOT_FUNCTION")
    function = bound_function(protocol)
    options = {**bound_options(protocol), **(stores or {})}
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(protocol, partial) and protocol.args:
        raise ConfigError(
            f"{where}: {protocol.args[0]!r} is bound to {name} without a name; expected keywords, as in "
            f"partial({name}, option=…)",
            code="E_OPTION_NOT_BOUND",
        )
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
    if len(positional) < 2 and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ConfigError(
            f"{where}: {name} takes {len(positional)} argument(s); expected `async def {name}(task, roles, …)`",
            code="E_PROTOCOL_SIGNATURE",
        )
    keyword_parameters = {one.name: one for one in parameters if one not in positional[:2] and one.kind in _BY_NAME}
    for option in options:
        if option not in keyword_parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UnknownName(f"option of {name} ({where})", option, keyword_parameters)
    for one in keyword_parameters.values():
        if one.default is one.empty and one.name not in options:
            if one.name in unnamed:
                raise ConfigError(
                    f"{where}: {name} needs the store {one.name!r}; name it in the phase, as in "
                    f"Phase(…, stores=({one.name!r},))",
                    code="E_STORE_MISSING",
                )
            raise ConfigError(
                f"{where}: {name} needs the option {one.name!r}; bind it, as in partial({name}, {one.name}=…), or give "
                "it a default",
                code="E_OPTION_MISSING",
            )
    hints = hints_of(function)
    for option, value in options.items():
        hint = hints.get(option, Any)
        least, _ = _bounds_of(hint, held_out=held_out) or (-math.inf, math.inf)
        if isinstance(value, int) and value < least:
            raise ConfigError(f"{where}, option {option} is {value}, expected at least {least}", code="E_OPTION_RANGE")
        check_argument(f"{where}: option {option} of {name}", value, hint)


def at_least(least: int, where: str, **sizes: int) -> None:
    """Raise ConfigError for the first of ``sizes`` that is smaller; from 2 on they are sizes of groups."""
    why = ": they are compared with each other" if least > 1 else ""
    for name, size in sizes.items():
        if size < least:
            raise ConfigError(f"{where}: {name} is {size}, expected at least {least}{why}", code="E_OPTION_RANGE")


def hints_of(build: Callable[..., Any]) -> dict[str, Any]:
    """The annotations as types, without those that name what their module has only for type checkers."""
    try:
        return typing.get_type_hints(build, include_extras=True)
    except (NameError, TypeError):
        pass
    hints: dict[str, Any] = {}
    names = getattr(inspect.unwrap(build), "__globals__", {})
    for name, annotation in getattr(build, "__annotations__", {}).items():
        single = types.SimpleNamespace(__annotations__={name: annotation})
        with suppress(NameError, TypeError):
            hints |= typing.get_type_hints(single, globalns=names, include_extras=True)
    return hints


def strip_optional(hint: Any) -> Any:
    """``X | None`` → ``X``, and that without its ``AtLeast``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        return strip_optional(rest[0]) if len(rest) == 1 else str
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _bounds_of(hint: Any, *, held_out: bool = False) -> tuple[float, float] | None:
    """The smallest and the largest number that an annotation, or a part of it as in ``Positive | None``, allows."""
    for part in (hint, *typing.get_args(hint)):
        for mark in getattr(part, "__metadata__", ()):
            if isinstance(mark, AtLeast):
                least = mark.held_out if held_out and mark.held_out is not None else mark.least
                most = math.inf if mark.most is None else mark.most
                return least, most
    return None


def kind_in_file(hint: Any) -> type | None:
    """Return the type of what a text may name in a user's file, where an annotation allows that: a function for ``str |
    Callable[..., float]``, a dataclass for ``str | Game``; None for any other annotation."""
    for arg in typing.get_args(hint):
        if typing.get_origin(arg) is Callable:
            return types.FunctionType
        if isinstance(arg, type) and dataclasses.is_dataclass(arg):
            return arg
    return None


def fits_hint(value: Any, hint: Any) -> bool:
    """Whether a value is of the kind that an annotation asks for. What is no plain kind (a task source) always fits."""
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin is Annotated:
        least, most = _bounds_of(hint) or (-math.inf, math.inf)
        return fits_hint(value, inner[0]) and least <= value <= most
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
    """Describe in words the value that an annotation asks for: "a whole number", "2 whole numbers" …"""
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if bool in kinds and len(kinds) > 1:
        return ", or ".join(map(kind_of, kinds))
    bounds = _bounds_of(hint)
    hint = strip_optional(hint)
    inner = typing.get_args(hint)
    if bounds:
        least, most = bounds
        return f"{kind_of(hint)} " + (f"of at least {least}" if most == math.inf else f"from {least} to {most}")
    if typing.get_origin(hint) is typing.Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(map(repr, inner))
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
        raise UnknownName(where, value, typing.get_args(wanted), code="E_UNKNOWN_CHOICE")
    raise ConfigError(f"{where} is {value!r}; expected {kind_of(hint)}", code="E_ARGUMENT_TYPE")
