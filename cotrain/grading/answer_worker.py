"""The process in which a model's program runs when it is graded; it is shut into a sandbox (``sandbox/``).

It runs the program, then does what the tests ask (``program_worker.py``): gives the value of a name, calls it, reads
and sets attributes. A program may change this module, or Python itself; still, all that it can send from here are
values for the tests to look at.
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

MUTABLE_TYPES = (list, dict, set, bytearray)  # an argument of these types may be changed by the function that gets it
MOST_ITEMS = 256  # of an iterator, fetched at once


def compile_program(source: str, name: str) -> CodeType | None:
    """A program's code; None where it is not Python."""
    try:
        # dont_inherit: else the ``from __future__`` imports of this module would hold for the program too
        return compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None


def names_of_module(name: str) -> dict[str, Any]:
    """The names of a new module, empty yet, in which a program can be run. It is registered in ``sys.modules``, where
    dataclasses and ``typing.get_type_hints`` look up what the annotations of a program's classes mean."""
    module = ModuleType(name)
    sys.modules[name] = module
    return vars(module)


def receive_program(channel_fd: int) -> tuple[Channel, str]:
    """Say that the sandbox is ready, and wait for a program. CPU time is limited from here on, to a little more than
    the deadline: where there is no /proc, the server cannot see how much a program has used (``sandbox/watch.py``)."""
    channel = Channel(channel_fd)
    channel.send({"gives": "ready"})
    message = channel.receive()
    lower_limit("CPU", math.ceil(time.process_time() + message["deadline_s"]) + 1)
    return channel, message["program"]


def run_answer(channel_fd: int) -> None:
    """Run a program, and answer its tests until they end."""
    try:
        channel, program = receive_program(channel_fd)
        AnswerProgram(channel).run_program(program)
    except ChannelClosed:
        pass


class AnswerProgram:
    """A program's names, and what the tests ask of them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._test_functions: dict[int, Callable[..., Any]] = {}  # stand-ins, by the numbers of the tests' functions
        self._values = ValueCodec("answer", self._stand_in, self._number_of)
        self._names = names_of_module("answer")  # and not "__main__": what a program does under that name is not run

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
        """The reply to one request of the tests. With "gives" it may have "changed": the arguments that the program has
        changed in place, by their position."""
        try:
            if request["do"] == "names":
                return {"gives": self._defined_names(request["with"])}

            sent = request["with"]
            arguments = [self._values.read_value(value) for value in sent]
            keyword_arguments = {name: self._values.read_value(value) for name, value in request["names"].items()}
            operation = OPERATIONS[request["do"]]
            reply = {"gives": self._values.write_value(operation(*arguments, **keyword_arguments))}

            changed = {}
            for position, argument in enumerate(arguments):
                if type(argument) in MUTABLE_TYPES:
                    written = self._values.write_value(argument)
                    if written not in (None, sent[position]):
                        changed[position] = written
        except ChannelClosed:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the program does is its verdict
            return {"raises": encode_exception(error)}
        if changed:
            reply["changed"] = changed
        return reply

    def _defined_names(self, wanted: list[str]) -> dict[str, Any]:
        return {name: self._values.write_value(self._names[name]) for name in wanted if name in self._names}

    def _stand_in(self, number: int) -> Callable[..., Any]:
        """What the program gets for a function of the tests: calling it calls that function, where the tests are."""
        if number not in self._test_functions:

            def call_tests(*arguments: Any) -> Any:
                sent = [self._values.write_value(value) for value in arguments]
                request = {"do": "call", "with": [{"tests": number}, *sent], "names": {}}
                reply = request_reply(self._channel, request, self.perform_request)
                return self._values.read_value(reply["gives"])

            self._test_functions[number] = call_tests
        return self._test_functions[number]

    def _number_of(self, value: Any) -> int | None:
        return next((number for number, function in self._test_functions.items() if function is value), None)


def _take_items(iterator: Iterator[Any], count: int) -> tuple[list[Any], bool, list[str] | None]:
    """The next items of an iterator of the program's, at most ``count`` and ``MOST_ITEMS``; whether it has ended; and
    the exception that it raised behind these items, as it is sent, or None."""
    count = min(count, MOST_ITEMS)
    items: list[Any] = []
    try:
        for item in itertools.islice(iterator, count):
            items.append(item)
    except Exception as error:  # noqa: BLE001  the program's own
        return items, True, encode_exception(error)
    return items, len(items) < count, None


OPERATIONS: dict[str, Callable[..., Any]] = {  # what a request may have done: "do" → the function of its arguments
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
