"""Python values as messages between a program and its tests: plain data as JSON, all other objects as a reference.

The two run in different processes (``program_worker.py``), and nothing may come over that could run or lie: a list that
says it is equal to everything arrives as a list. So

- an object of one of Python's own data types is copied;
- an object of a class that derives from one of these (a named tuple, numpy's numbers) is copied as that data type;
- any other object stays where it is and is sent as a number, by which the other side can ask for it.

::

    (3, [0.5, "x"])   {"tuple": [3, [0.5, "x"]]}
    2**100            {"int": "0x10000000000000000000000000"}
    an object         {"answer": 7}, the answer's seventh; {"tests": 7} the tests' own

Left out: two places for one object (each gets a copy), arrays of more than 0 dimensions, data of classes.
"""

from __future__ import annotations

import builtins
import datetime
import numbers
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGE_INTEGER = 1 << 53  # from here on integers are sent in hexadecimal: Python reads decimals of 4,300 digits at most
SIDES = ("answer", "tests")


class Unreadable(BaseException):
    """The bytes that came over the channel are no value. A ``BaseException``, so that a test which expects an exception
    does not take this one for it; ``NotPassable`` too."""


class NotPassable(BaseException):
    """A value of the tests that cannot be sent."""


class ValueCodec:
    """Writes the values that one side sends, and reads those that it gets. An object that stays on this side keeps its
    number, so an unchanged list is written in the same way again."""

    def __init__(self, side: str, stand_in: Callable[[int], Any], number_of: Callable[[Any], int | None]) -> None:
        """
        Args:
            side: this side, one of ``SIDES``.
            stand_in: makes an object that stands here for one of the other side, from its number.
            number_of: the number of such a stand-in; None for any other value.
        """
        (other_side,) = set(SIDES) - {side}
        self._side = side
        self._other_side = other_side
        self._stand_in = stand_in
        self._number_of = number_of
        self._builtins = DATA_TYPES if side == "tests" else _BUILTINS  # built-in functions that the other side may name
        self._objects: list[Any] = []  # those that stay on this side, by their numbers
        self._numbers: dict[int, int] = {}  # ``id`` of such an object → its number

    def write_value(self, value: Any) -> Any:
        """A value as JSON. Raises NotPassable."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return value if -LARGE_INTEGER < value < LARGE_INTEGER else {"int": hex(value)}
        if kind is list:
            return [self.write_value(item) for item in value]
        if kind in _WRITERS:
            tag, parts_of = _WRITERS[kind]
            return {tag: [self.write_value(item) for item in parts_of(value)]}
        if kind in _VIEWS and self._side == "answer":
            return {_VIEWS[kind]: [self.write_value(item) for item in value]}

        number = self._number_of(value)
        if number is not None:
            return {self._other_side: number}
        name = _builtin_name(value)
        if name is not None and (self._side == "tests" or name in DATA_TYPES):
            return {"builtin": name}
        for base, convert in _BASES:
            if isinstance(value, base):
                return self.write_value(convert(value))
        if self._side == "tests" and not callable(value):
            return self._write_iterator(value)
        return self._write_reference(value)

    def _write_iterator(self, value: Any) -> Any:
        """All items of an iterator of the tests. Raises NotPassable for any other object: all that a program
        can do with an object of the tests is to call it."""
        if not hasattr(value, "__next__"):
            raise NotPassable
        return {"iterator": [self.write_value(item) for item in value]}

    def _write_reference(self, value: Any) -> Any:
        """The number of an object that stays on this side."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return {self._side: self._numbers[id(value)]}

    def read_value(self, written: Any) -> Any:
        """Read a value that ``write_value`` of the other side wrote. Raises Unreadable."""
        try:
            return self._read_content(written)
        except (TypeError, ValueError, KeyError, IndexError, ArithmeticError, AttributeError) as error:
            raise Unreadable from error

    def _read_content(self, written: Any) -> Any:
        if isinstance(written, list):
            return [self._read_content(item) for item in written]
        if not isinstance(written, dict):
            return written
        [(name, content)] = written.items()
        if name == "int":
            return int(content, 16)
        if name == "builtin":
            return self._builtins[content]
        if name == self._side:
            return self._objects[content]
        if name == self._other_side:
            number = content + 0  # raises TypeError for what is no number
            return self._stand_in(number)
        return _READERS[name](self._read_content(content))


def _builtin_name(value: Any) -> str | None:
    """The name of a built-in function or type; None for any other value."""
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) and _BUILTINS.get(name) is value else None


def _item_pairs(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(value.items())


# -- The types that are copied

_WRITERS: dict[type, tuple[str, Callable[[Any], Any]]] = {  # type → its tag, and the parts that are written
    tuple: ("tuple", list),
    set: ("set", list),
    frozenset: ("frozenset", list),
    dict: ("dict", _item_pairs),
    OrderedDict: ("OrderedDict", _item_pairs),
    Counter: ("Counter", _item_pairs),
    deque: ("deque", lambda v: (list(v), v.maxlen)),
    bytes: ("bytes", lambda v: (v.decode("latin-1"),)),
    bytearray: ("bytearray", lambda v: (v.decode("latin-1"),)),
    complex: ("complex", lambda v: (v.real, v.imag)),
    range: ("range", lambda v: (v.start, v.stop, v.step)),
    slice: ("slice", lambda v: (v.start, v.stop, v.step)),
    array: ("array", lambda v: (v.typecode, v.tolist())),
    Decimal: ("Decimal", lambda v: (str(v),)),
    Fraction: ("Fraction", lambda v: (v.numerator, v.denominator)),
    datetime.datetime: ("datetime", lambda v: (v.isoformat(),)),
    datetime.date: ("date", lambda v: (v.isoformat(),)),
    datetime.time: ("time", lambda v: (v.isoformat(),)),
    datetime.timedelta: ("timedelta", lambda v: (v.days, v.seconds, v.microseconds)),
}
_VIEWS: dict[type, str] = {}  # views of a dictionary, two types each, → tag; to Python, keys and items equal sets
_DICTIONARIES: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
for _dictionary in _DICTIONARIES:
    _VIEWS[type(_dictionary.keys())] = "keys"
    _VIEWS[type(_dictionary.items())] = "items"
    _VIEWS[type(_dictionary.values())] = "values"
_READERS: dict[str, Callable[[list[Any]], Any]] = {  # tag → a function that makes the value from its parts
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "OrderedDict": OrderedDict,
    "iterator": iter,
    "Counter": lambda v: Counter(dict(v)),
    "deque": lambda v: deque(*v),
    "bytes": lambda v: v[0].encode("latin-1"),
    "bytearray": lambda v: bytearray(v[0].encode("latin-1")),
    "complex": lambda v: complex(*v),
    "range": lambda v: range(*v),
    "slice": lambda v: slice(*v),
    "array": lambda v: array(*v),
    "Decimal": lambda v: Decimal(*v),
    "Fraction": lambda v: Fraction(*v),
    "datetime": lambda v: datetime.datetime.fromisoformat(*v),
    "date": lambda v: datetime.date.fromisoformat(*v),
    "time": lambda v: datetime.time.fromisoformat(*v),
    "timedelta": lambda v: datetime.timedelta(*v),
    "keys": lambda v: dict.fromkeys(v).keys(),
    "items": lambda v: dict(v).items(),
    "values": lambda v: dict(enumerate(v)).values(),
}
_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (  # base class, and the data type that copies its subclasses
    *((kind, kind) for kind in (str, list, tuple, Counter, OrderedDict, dict, set, frozenset, bytes, bytearray, deque)),
    (numbers.Integral, int),
    (numbers.Real, float),
    (numbers.Complex, complex),
)
_BUILTINS = {name: value for name, value in vars(builtins).items() if callable(value) and not name.startswith("_")}
# Of built-in functions the tests accept from a program only these types: had they ``eval`` of it and called it, the
# program would decide what they run.
DATA_TYPES = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range)
}
