"""The process in which a model's program runs when it is graded; it is shut into a sandbox (``sandbox/``).

It runs the program, then does what the tests ask: gives what is under a name, calls it, reads and sets attributes.
Whatever the program makes of this module or of Python itself, all that it can send from here are values for the tests
to look at.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

from cotrain.grading.channel import Channel, ChannelClosed, encode_exception, request_reply
from cotrain.grading.sandbox.limits import lower_limit
from cotrain.grading.values import ValueCodec

CHANGING = (list, dict, set, bytearray)  # kinds of arguments that a function may have changed
AHEAD = 256  # most items of an iterator that are fetched at once


def compile_program(source: str, name: str) -> CodeType | None:
    """A program's code; None where it is not Python. What a module of ours imports from ``__future__`` holds for that
    module alone."""
    try:
        return compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None


def names_of_module(name: str) -> dict[str, Any]:
    """The names of a new module, which takes the place of the one that is imported under this name: where classes of a
    program look up what their annotations mean (dataclasses, ``typing.get_type_hints``)."""
    module = ModuleType(name)
    sys.modules[name] = module
    return vars(module)


def receive_program(number: int) -> tuple[Channel, str]:
    """Say that the sandbox is ready, and wait for a program. Its CPU time is limited from here on."""
    channel = Channel(number)
    channel.send({"gives": "ready"})
    message = channel.receive()
    lower_limit("CPU", math.ceil(time.process_time() + message["deadline_s"]) + 1)
    return channel, message["program"]


def run_answer(number: int) -> None:
    """Run a program, and answer its tests until they end."""
    try:
        channel, program = receive_program(number)
        AnswerProgram(channel).run_program(program)
    except ChannelClosed:
        pass


class AnswerProgram:
    """A program's names, and what the tests ask of them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._theirs: dict[int, Callable[..., Any]] = {}
        self._values = ValueCodec("answer", self._stand_in, self._number_of)
        self._names = names_of_module("answer")  # so that a block under __main__ is not run

    def run_program(self, program: str) -> None:
        code = compile_program(program, "<answer>")
        if code is None:
            self._channel.send({"gives": "syntax error"})
            return
        try:
            exec(code, self._names)  # noqa: S102  this is what the module is for
            self._channel.send({"gives": "loaded"})
        except ChannelClosed:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the program does is its verdict
            self._channel.send({"raises": encode_exception(error)})
            return

        while True:
            self._channel.send(self.perform_request(self._channel.receive()))

    def perform_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request of the tests."""
        try:
            if request["do"] == "names":
                defined = {name: self._names[name] for name in request["with"] if name in self._names}
                return {"gives": {name: self._values.write_value(value) for name, value in defined.items()}}

            before = request["with"]
            arguments = [self._values.read_value(value) for value in before]
            keyword_arguments = {name: self._values.read_value(value) for name, value in request["names"].items()}
            operation = DO[request["do"]]
            answer = {"gives": self._values.write_value(operation(*arguments, **keyword_arguments))}

            changed = {}
            for i, argument in enumerate(arguments):
                if type(argument) in CHANGING:
                    after = self._values.write_value(argument)
                    if after not in (None, before[i]):
                        changed[i] = after
        except ChannelClosed:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the program does is its verdict
            return {"raises": encode_exception(error)}
        if changed:
            answer["changed"] = changed
        return answer

    def _stand_in(self, number: int) -> Callable[..., Any]:
        """A function of the tests, called where it is."""
        if number not in self._theirs:

            def call_tests(*arguments: Any) -> Any:
                sent = [self._values.write_value(value) for value in arguments]
                request = {"do": "call", "with": [{"tests": number}, *sent], "names": {}}
                return self._values.read_value(request_reply(self._channel, request, self.perform_request)["gives"])

            self._theirs[number] = call_tests
        return self._theirs[number]

    def _number_of(self, value: Any) -> int | None:
        return next((number for number, function in self._theirs.items() if function is value), None)


def _take_items(iterator: Iterator[Any], count: int) -> tuple[list[Any], bool, list[str] | None]:
    """The next items, whether they were the last, and what was raised behind them."""
    items: list[Any] = []
    try:
        for item in itertools.islice(iterator, min(count, AHEAD)):
            items.append(item)
    except Exception as error:  # noqa: BLE001  the program's own
        return items, True, encode_exception(error)
    return items, len(items) < min(count, AHEAD), None


DO: dict[str, Callable[..., Any]] = {
    "call": lambda function, *arguments, **named: function(*arguments, **named),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "len": len,
    "iter": iter,
    "take": _take_items,
    "str": str,
    "repr": repr,
}
