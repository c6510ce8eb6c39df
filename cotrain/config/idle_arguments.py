"""Arguments that have no effect, since what they set belongs to another variant of the method: ``verifier_lr`` of a
verifier that is frozen, ``alpha`` where no step is rewarded.

No recipe declares them. The recipe is made again without the argument, and both are compared down to the values that
their functions keep. To say why it has no effect, the other choices of the recipe are tried one by one: one under which
the argument matters is the reason. Left out: arguments that state what is the default anyway, as ``temperature=1.0``
does, and problems and seed, which always matter. Left out, too: recipes that are made from Python. Such a recipe keeps
descriptions of its arguments and no longer the objects themselves, and to make it again would run the user's own tasks
and rewards once more for each argument.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

from cotrain.config.recipe import Recipe
from cotrain.config.run_config import RecipeFunction, problems_read_once
from cotrain.core.arguments import Argument
from cotrain.core.errors import CotrainError
from cotrain.core.verbosity import without_notes

Written = Callable[[str, str], str]  # how an argument and its value are written: as a flag, or as in a file of arms
ALWAYS_MATTER = ("tasks", "seed")
OUR_PACKAGES = ("cotrain.", "cotrain_zoo.")
ATOMS = (bool, int, float, complex, str, bytes, type(None), type, set, frozenset)


def idle_notes(
    make: RecipeFunction, arguments: Mapping[str, Any], written: Written, names: Collection[str] | None = None
) -> list[str]:
    """A note of each argument that has no effect.

    None about a recipe in a file of the user's, or with an argument that names one: its code would run once more for
    each argument. None if the recipe cannot be made: whoever runs it says why.

    Args:
        make: the recipe.
        arguments: those that the recipe is made with.
        written: how an argument is written in a note.
        names: the arguments that are looked at; None: all.
    """
    names_code = any(isinstance(value, str) and re.search(r"\.py\b", value) for value in arguments.values())
    if names_code or not make.build.__module__.startswith(OUR_PACKAGES):
        return []
    looked_at = [name for name in arguments if names is None or name in names]
    with without_notes(), problems_read_once():
        notes = []
        for name in looked_at:
            if _is_idle(make, arguments, name):
                notes.append(_idle_note(make, arguments, written, name))
        return notes


def _is_idle(make: RecipeFunction, arguments: Mapping[str, Any], name: str) -> bool:
    """Whether neither this value of the argument nor another one has an effect."""
    argument = make.parameters[name]
    value = arguments[name]
    if name in ALWAYS_MATTER or value == argument.default or _has_effect(make, arguments, name) is not False:
        return False
    others = _other_values(argument, value)
    return not any(_has_effect(make, {**arguments, name: other}, name) for other in others)


def _other_values(argument: Argument, value: Any) -> list[Any]:
    """Values of a parameter that differ from ``value``: its other choices, or a number near to it."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2 if value else 0.5]
    return [choice for choice in _choices(argument) if choice != value]


def _idle_note(make: RecipeFunction, arguments: Mapping[str, Any], written: Written, name: str) -> str:
    argument = written(name, str(arguments[name]))
    reason = _reason(make, arguments, name)
    if reason is None:
        return f"note: {argument} has no effect; without it the run is the same"
    return f"note: {argument} has no effect with {written(reason, str(_value(make, arguments, reason)))}"


def _reason(make: RecipeFunction, arguments: Mapping[str, Any], name: str) -> str | None:
    """The parameter whose value takes the argument's effect away, first among those that the user gave; None if that is
    no single one."""
    own = make.own_parameters()
    for other in sorted(own, key=lambda other: other not in arguments):
        if other == name:
            continue
        for choice in _choices(own[other]):
            if choice != _value(make, arguments, other) and _has_effect(make, {**arguments, other: choice}, name):
                return other
    return None


def _value(make: RecipeFunction, arguments: Mapping[str, Any], name: str) -> Any:
    return arguments.get(name, make.parameters[name].default)


def _choices(argument: Argument) -> tuple[Any, ...]:
    """The values of a parameter that has few."""
    if isinstance(argument.default, bool):
        return (False, True)
    for hint in (argument.hint, *typing.get_args(argument.hint)):  # of ``Literal[…] | None``, too
        if typing.get_origin(hint) is typing.Literal:
            return typing.get_args(hint)
    return ()


def _has_effect(make: RecipeFunction, arguments: Mapping[str, Any], name: str) -> bool | None:
    """Whether the recipe differs from the one without the argument; None if one of the two cannot be made."""
    without = {other: value for other, value in arguments.items() if other != name}
    try:
        # ``again``: defaults that depend on the size of the model are those of a small one, for both
        return not _alike(make.make(arguments, again=True), make.make(without, again=True), {})
    except CotrainError:
        return None


def _alike(one: Any, other: Any, compared: dict[tuple[int, int], Any]) -> bool:
    """Whether two values are the same but for the origin of recipes: functions by their code and what they keep,
    objects by their attributes. ``compared``: the pairs that have been met, as objects may hold each other; kept, since
    the address of a value that is gone is used again."""
    pair = (id(one), id(other))
    if one is other or pair in compared:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, ATOMS):
        return bool(one == other)
    compared[pair] = (one, other)
    parts_of_one = _parts(one)
    parts_of_other = _parts(other)
    if len(parts_of_one) != len(parts_of_other):
        return False
    pairs = zip(parts_of_one, parts_of_other, strict=True)
    return all(_alike(part, other_part, compared) for part, other_part in pairs)


def _parts(value: Any) -> list[Any]:
    """What a value consists of. A value of no kind that is known here consists of itself, so it is like no other."""
    match value:
        case FunctionType():
            kept = [variable.cell_contents for variable in value.__closure__ or ()]
            return [id(value.__code__), value.__defaults__, value.__kwdefaults__, kept]
        case MethodType():
            return [value.__func__, value.__self__]
        case partial():
            return [value.func, value.args, value.keywords]
        case list() | tuple():
            return list(value)
        case dict() | MappingProxyType():
            return [list(value.keys()), *value.values()]
        case _ if dataclasses.is_dataclass(value):
            ignored = "origin" if isinstance(value, Recipe) else ""
            return [getattr(value, field.name) for field in dataclasses.fields(value) if field.name != ignored]
        case _ if hasattr(value, "__dict__") and type(value).__module__.startswith(OUR_PACKAGES):
            # Of an object of another package it may not be all: a generator of random numbers has its state in C.
            return [vars(value)]
        case _:
            return [id(value)]
