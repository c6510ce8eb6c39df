"""Checks the arguments of a recipe, and the options of a protocol, against the annotations of their functions: names,
types, choices and ranges.

The annotations, such as ``estimator: Literal["grpo", "rloo"] = "grpo"`` and ``alpha: Weight = 0.1``, also make the
flags (``cli/flags.py``) and their help.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from cotrain.core.errors import ConfigError, UnknownName

_TAKES_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass(frozen=True, slots=True)
class AtLeast:
    """In an annotation: the smallest number that an argument may be and, as ``most``, the largest."""

    least: int
    held_out: int | None = None  # the smallest one where a protocol runs on held-out problems, if it differs there
    most: int | None = None  # None: there is no largest one


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
    """The arguments of a call of the recipe ``name``, in the order of its ``parameters``, with the defaults of those
    that are not given. Raises UnknownName and ConfigError, one line each."""
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
    """Raise ConfigError for a function of the user's that cannot be called with so many arguments by position.
    ``names``: a name for each, for the message."""
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
    """The keywords that a ``functools.partial`` binds, also one of a partial; {} for any other function."""
    if not isinstance(function, partial):
        return {}
    return {**bound_options(function.func), **function.keywords}


def option_names(function: Callable[..., Any]) -> list[str]:
    """The names of a protocol's options, which follow ``task`` and ``roles``; [] for a callable without a signature."""
    parameters = _parameters_of(function) or []
    return [parameter.name for parameter in parameters[2:] if parameter.kind in _TAKES_KEYWORD]


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """None for a callable that has no signature, as some that are written in C."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def check_protocol(
    where: str,
    protocol: Callable[..., Any],
    stores: Mapping[str, Any] | None = None,
    *,
    all_stores: Collection[str] = (),
    held_out: bool = False,
) -> None:
    """Raise ConfigError where a protocol cannot be run with the options that are bound to it; UnknownName for an option
    that it does not have.

    Args:
        where: the place of the protocol, such as "phase 'solve'", for the message.
        stores: what it is passed by name beside the bound options.
        all_stores: names of all stores of the run, those included that its phase does not name.
        held_out: whether it is run on held-out problems.
    """
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
    parameters = _parameters_of(function)
    if parameters is None:
        return

    _check_option_names(where, name, parameters, options, all_stores)
    hints = hints_of(function)
    for option, value in options.items():
        hint = hints.get(option, Any)
        least, _ = _bounds_of(hint, held_out=held_out) or (-math.inf, math.inf)
        if isinstance(value, int) and value < least:
            raise ConfigError(f"{where}, option {option} is {value}, expected at least {least}", code="E_OPTION_RANGE")
        check_argument(f"{where}: option {option} of {name}", value, hint)


def _check_option_names(
    where: str,
    name: str,
    parameters: Sequence[inspect.Parameter],
    options: Mapping[str, Any],
    all_stores: Collection[str],
) -> None:
    """Check that a protocol takes a task and its roles by position, takes all ``options``, and needs no others."""
    kinds = {parameter.kind for parameter in parameters}
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) < 2 and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ConfigError(
            f"{where}: {name} takes {len(positional)} argument(s); expected `async def {name}(task, roles, …)`",
            code="E_PROTOCOL_SIGNATURE",
        )
    task_and_roles = positional[:2]
    known_options = {
        parameter.name: parameter
        for parameter in parameters
        if parameter not in task_and_roles and parameter.kind in _TAKES_KEYWORD
    }
    for option in options:
        if option not in known_options and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UnknownName(f"option of {name} ({where})", option, known_options)
    for option, parameter in known_options.items():
        if parameter.default is not parameter.empty or option in options:
            continue
        if option in all_stores:
            raise ConfigError(
                f"{where}: {name} needs the store {option!r}; name it in the phase, as in "
                f"Phase(…, stores=({option!r},))",
                code="E_STORE_MISSING",
            )
        raise ConfigError(
            f"{where}: {name} needs the option {option!r}; bind it, as in partial({name}, {option}=…), or give "
            "it a default",
            code="E_OPTION_MISSING",
        )


def check_kind(where: str, value: Any, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise ConfigError for a part of a recipe that is of another kind than ``kind``. ``expected``: how such a part is
    written, for the message."""
    if isinstance(value, kind):
        return
    is_plain = isinstance(value, str | int | float | None)
    value_text = repr(value) if is_plain else f"a {type(value).__name__}"
    raise ConfigError(f"{where} is {value_text}; expected {expected}", code="E_PART_KIND")


def check_name_list(where: str, names: Any) -> None:
    """Raise ConfigError for a text where several names are expected: ``("solver")`` is the text "solver", and without
    this check each of its letters would be taken for a name."""
    is_list = isinstance(names, tuple | list)
    if is_list and all(isinstance(name, str) for name in names):
        return
    example = f"({names!r},)" if isinstance(names, str) else "('solver',)"
    raise ConfigError(f"{where} is {names!r}; expected names in a tuple, as in {example}", code="E_NAMES_NOT_TUPLE")


def at_least(least: int, where: str, **sizes: int) -> None:
    """Raise ConfigError for the first of ``sizes`` that is smaller than ``least``. A least size of 2 and more is that
    of a group, and the message says why."""
    why = ": they are compared with each other" if least > 1 else ""
    for name, size in sizes.items():
        if size < least:
            raise ConfigError(f"{where}: {name} is {size}, expected at least {least}{why}", code="E_OPTION_RANGE")


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function as types. One that names what its module imports only for type checkers cannot be
    read, and is left out."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        pass  # at least one of them; so each by itself
    hints: dict[str, Any] = {}
    module_names = getattr(inspect.unwrap(function), "__globals__", {})
    for name, annotation in getattr(function, "__annotations__", {}).items():
        single = types.SimpleNamespace(__annotations__={name: annotation})
        with suppress(NameError, TypeError):
            hints |= typing.get_type_hints(single, globalns=module_names, include_extras=True)
    return hints


def strip_optional(hint: Any) -> Any:
    """``X | None`` → ``X``, without its ``AtLeast``. A union of several types is ``str``, as which a flag gives it."""
    if _is_union(hint):
        types_given = [part for part in typing.get_args(hint) if part is not type(None)]
        return strip_optional(types_given[0]) if len(types_given) == 1 else str
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _bounds_of(hint: Any, *, held_out: bool = False) -> tuple[float, float] | None:
    """The smallest and the largest number that an annotation allows; None without ``AtLeast``. ``Positive | None`` has
    it in a part."""
    for part in (hint, *typing.get_args(hint)):
        for bounds in getattr(part, "__metadata__", ()):
            if isinstance(bounds, AtLeast):
                least = bounds.held_out if held_out and bounds.held_out is not None else bounds.least
                most = math.inf if bounds.most is None else bounds.most
                return least, most
    return None


def kind_in_file(hint: Any) -> type | None:
    """The type of what a text such as ``file.py:name`` may name, where an annotation allows such a text: a function for
    ``str | Callable[..., float]``, the dataclass for ``str | Game``; None for any other annotation."""
    for part in typing.get_args(hint):
        if typing.get_origin(part) is Callable:
            return types.FunctionType
        if isinstance(part, type) and dataclasses.is_dataclass(part):
            return part
    return None


def fits_hint(value: Any, hint: Any) -> bool:
    """Whether a value has the type that an annotation asks for. A type of which nothing is known here, such as a task
    source, takes any value."""
    origin = typing.get_origin(hint)
    parts = typing.get_args(hint)
    if origin is Annotated:
        least, most = _bounds_of(hint) or (-math.inf, math.inf)
        return fits_hint(value, parts[0]) and least <= value <= most
    if _is_union(hint):
        return any(fits_hint(value, part) for part in parts)
    if value is None and hint not in (Any, None, type(None)):
        return False
    if origin is typing.Literal:
        return value in parts
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if len(parts) == 2 and parts[1] is Ellipsis:
            return all(fits_hint(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(fits_hint, value, parts))

    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    is_protocol_class = getattr(hint, "_is_protocol", False)
    if dataclasses.is_dataclass(hint) or is_protocol_class:  # any object, but no plain value
        return not isinstance(value, str | int | float | tuple)
    return True


def kind_of(hint: Any) -> str:
    """Describe in words the value that an annotation asks for: "a whole number", "2 whole numbers" …"""
    alternatives = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if bool in alternatives and len(alternatives) > 1:
        return ", or ".join(map(kind_of, alternatives))
    bounds = _bounds_of(hint)
    hint = strip_optional(hint)
    parts = typing.get_args(hint)
    if bounds:
        least, most = bounds
        range_text = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        return f"{kind_of(hint)} {range_text}"
    if typing.get_origin(hint) is typing.Literal:
        return ("one of " if len(parts) > 1 else "") + ", ".join(map(repr, parts))
    if typing.get_origin(hint) is tuple:
        item = kind_of(parts[0]).removeprefix("a ")
        return f"a list of {item}s" if parts[-1] is Ellipsis else f"{len(parts)} {item}s"
    kinds = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    return kinds.get(hint, getattr(hint, "__name__", str(hint)))


def check_argument(where: str, value: Any, hint: Any) -> None:
    """Raise UnknownName or ConfigError where a value is not what its annotation asks for."""
    if fits_hint(value, hint):
        return
    expected = strip_optional(hint)
    if typing.get_origin(expected) is typing.Literal and isinstance(value, str):
        raise UnknownName(where, value, typing.get_args(expected), code="E_UNKNOWN_CHOICE")
    raise ConfigError(f"{where} is {value!r}; expected {kind_of(hint)}", code="E_ARGUMENT_TYPE")
