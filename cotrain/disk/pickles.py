"""What a pickle says, read without doing it.

A pickle is a program for a small stack machine, and two of its instructions (call this, import that) make reading one
the same as running a stranger's code. Here those two only take notes: an import becomes a ``Name``, a call or a built
object a ``Made``, and it is the reader of the result who decides which of them mean anything. Nothing is imported,
called, subclassed or compared by the machine, so there is no list of safe names to get wrong.

Known are the instructions that CPython writes for plain values and for objects of classes, protocols 2 to 5 (2 writes
bytes as a call). Left out: recursive values, buffers out of band, sets, the codes of ``copyreg`` and protocols 0 and 1; each is an error.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import Any

from cotrain.core.errors import DataError

MARK = object()
VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
}
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True)
class Name:
    """What the pickle wanted to import."""

    module: str
    name: str


@dataclass(slots=True)
class Made:
    """What the pickle wanted to call or make: never done."""

    by: Any  # a Name, or whatever stood in its place
    arguments: Any
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)  # that were set on it, as on an OrderedDict


@dataclass(frozen=True, slots=True)
class Persistent:
    """A reference to something stored beside the pickle."""

    id: Any


def read_pickle(content: bytes, where: str) -> Any:
    """The value of a pickle, with notes in place of imports and calls. Raises DataError, which begins with ``where``."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.do(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise DataError(f"{where}: not a pickle that can be read safely ({error}); expected plain values") from error
    return machine.result


def kind_of(value: Any) -> str:
    """What to call a value of ``read_pickle`` in an error: the name it asked for, or its type."""
    value = value.by if isinstance(value, Made) else value
    return f"{value.module}.{value.name}" if isinstance(value, Name) else f"a {type(value).__name__}"


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            stack.append(MARK)
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in TUPLES:
            stack[-TUPLES[name] :] = [tuple(self._top(TUPLES[name]))]
        elif name in ("APPEND", "APPENDS"):
            values = self._marked() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            pairs = self._marked() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            target = stack[-1].items if isinstance(stack[-1], Made) else stack[-1]
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                if not isinstance(key, str | bytes | int | float | None):
                    raise ValueError(f"a key of type {type(key).__name__}")
                target[key] = value
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "GLOBAL":
            stack.append(Name(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            module, called = stack.pop(-2), stack.pop()
            stack.append(Name(module, called))
        elif name in ("REDUCE", "NEWOBJ"):
            by, arguments = stack.pop(-2), stack.pop()
            stack.append(Made(by, arguments))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], Made):
                raise ValueError("a state for what is no object")
            stack[-1].state = state
        elif name == "BINPERSID":
            stack.append(Persistent(stack.pop()))
        elif name == "STOP":
            self.result = stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"instruction {name}")

    def _marked(self) -> list[Any]:
        """What lies above the last mark, taken off with it."""
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark on the stack")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def _top(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("an empty stack")
        return self.stack[-count:]
