"""A program at work: the inside of an exam, in the process that a cell shuts in (``cells/``).

It runs the program, then does what the tests ask: gives what stands under a name, calls it, reads and sets attributes.
Whatever the program makes of this module or of Python itself, all that it can send from here are values for the tests
to look at.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from cotrain.grading.cells.limits import limit
from cotrain.grading.channel import Channel, Gone, ask, raising
from cotrain.grading.values import Values

CHANGING = (list, dict, set, bytearray)  # kinds of arguments that a function may have changed
AHEAD = 256  # of an iterator's items, at most, that are fetched at once


def compiled(source: str, name: str) -> CodeType | None:
    """A program's code; None where it is not Python."""
    try:
        return compile(source, name, "exec")
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None


def begin(number: int) -> tuple[Channel, str]:
    """Say that the cell is ready, and wait for a program. Its CPU time is limited from here on."""
    channel = Channel(number)
    channel.send({"gives": "ready"})
    given = channel.receive()
    limit("CPU", math.ceil(time.process_time() + given["deadline_s"]) + 1)
    return channel, given["program"]


def play(number: int) -> None:
    """Run a program, and answer its tests until they end."""
    try:
        channel, program = begin(number)
        Play(channel).run(program)
    except Gone:
        pass


class Play:
    """A program's names, and what the tests ask of them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._theirs: dict[int, Callable[..., Any]] = {}
        self._values = Values("answer", self._stand_in, self._number_of)
        self._names: dict[str, Any] = {"__name__": "answer"}  # so that a block under __main__ is not run

    def run(self, program: str) -> None:
        code = compiled(program, "<answer>")
        if code is None:
            self._channel.send({"gives": "syntax error"})
            return
        try:
            exec(code, self._names)  # noqa: S102  this is what the module is for
            self._channel.send({"gives": "loaded"})
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the program does is its verdict
            self._channel.send({"raises": raising(error)})
            return
        while True:
            self._channel.send(self.perform(self._channel.receive()))

    def perform(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request of the tests."""
        try:
            if request["do"] == "names":
                found = {name: self._names[name] for name in request["with"] if name in self._names}
                return {"gives": {name: self._values.write(value) for name, value in found.items()}}
            arguments = [self._values.read(value) for value in request["with"]]
            named = {name: self._values.read(value) for name, value in request["names"].items()}
            given = self._values.write(DO[request["do"]](*arguments, **named))
            after = [self._values.write(a) if type(a) in CHANGING else None for a in arguments]
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the program does is its verdict
            return {"raises": raising(error)}
        changed = {
            i: now for i, (now, was) in enumerate(zip(after, request["with"], strict=True)) if now not in (None, was)
        }
        return {"gives": given, "changed": changed} if changed else {"gives": given}

    def _stand_in(self, number: int) -> Callable[..., Any]:
        """A function of the tests, called where it is."""
        if number not in self._theirs:

            def function(*arguments: Any) -> Any:
                sent = [self._values.write(value) for value in arguments]
                request = {"do": "call", "with": [{"tests": number}, *sent], "names": {}}
                return self._values.read(ask(self._channel, request, self.perform)["gives"])

            self._theirs[number] = function
        return self._theirs[number]

    def _number_of(self, value: Any) -> int | None:
        return next((number for number, function in self._theirs.items() if function is value), None)


def _take(iterator: Iterator[Any], count: int) -> tuple[list[Any], bool, list[str] | None]:
    """The next items, whether they were the last, and what was raised behind them."""
    items: list[Any] = []
    try:
        for item in itertools.islice(iterator, min(count, AHEAD)):
            items.append(item)
    except Exception as error:  # noqa: BLE001  the program's own
        return items, True, raising(error)
    return items, len(items) < min(count, AHEAD), None


DO: dict[str, Callable[..., Any]] = {
    "call": lambda function, *arguments, **named: function(*arguments, **named),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "len": len,
    "iter": iter,
    "take": _take,
    "str": str,
    "repr": repr,
}
