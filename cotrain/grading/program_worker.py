"""The tests of a program, run in a process next to it: the side that a model's program cannot reach.

Tests and program never share a process: a program could read what is expected of it, end the process at the right
moment, or change what ``==`` means. So the tests run here, in the examiner, and where they name what the answer defines
they get a stand-in: calling it sends the arguments into the program's sandbox, and what comes back is plain data
(``values.py``), compared by Python's own rules. The program learns the arguments and nothing else. It decides no
comparison: an object of its own class equals itself alone, is not less than anything, and holds what it lists.

From the answer come only the names that the reference program defines: ``sum`` where the problem is to write ``sum``,
else Python's own. Modules that the tests use are imported here.

Left out: operators on an answer's own objects (``a + b``), its classes in ``isinstance``, files that tests and program
share, endless iterators as arguments, partial credit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from cotrain.grading.answer_worker import AHEAD, CHANGING, compile_program, run_answer
from cotrain.grading.channel import (
    Channel,
    ChannelClosed,
    decode_exception,
    encode_exception,
    kind_of_failure,
    request_reply,
)
from cotrain.grading.exam import Exam, Verdict
from cotrain.grading.values import NotPassable, Unreadable, ValueCodec


def load_programs() -> Exam:
    """The loader that ``GradingPool`` names."""
    return Exam(runner=run_answer, examiner=run_tests)


def run_tests(channel: Channel, paper: str, program: str, deadline_s: float) -> Verdict:
    """Right: the program and then the tests end without an exception.

    ``paper``: JSON of "imports" (statements, those that fail are passed over), "names" (of the answer), "before" and
    "tests".
    Wrong: "syntax error", "test failed", "NameError" or another built-in exception, "error" for one of the program's
    own, "program died" where it ended its process or says what is not readable. Not graded: "tests not readable".
    """
    fields = json.loads(paper)
    checks = [compile_program(fields[part], f"<{part}>") for part in ("before", "tests")]
    if None in checks:
        return None, "tests not readable"
    answer = ProgramProxy(channel)
    testing = False
    try:
        loaded = request_reply(channel, {"program": program, "deadline_s": deadline_s}, answer.perform_request)["gives"]
        if loaded != "loaded":
            return False, "syntax error" if loaded == "syntax error" else "program died"
        names = {"__name__": "answer", **_run_imports(fields["imports"]), **answer.defined_names(fields["names"])}
        testing = True
        for part in checks:
            assert part is not None
            exec(part, names)  # noqa: S102  of the data set
    except (ChannelClosed, Unreadable):
        return False, "program died"
    except NotPassable:
        return None, "tests not readable"
    except BaseException as error:  # noqa: BLE001  whatever comes of the program is its verdict
        return False, "test failed" if testing and type(error) is AssertionError else kind_of_failure(error)
    return True, None


def _run_imports(statements: list[str]) -> dict[str, Any]:
    """Run these imports and return the names that they bind; packages that are not installed are passed over."""
    names: dict[str, Any] = {}
    for statement in statements:
        with contextlib.suppress(ImportError):
            exec(compile(statement, "<imports>", "exec", dont_inherit=True), names)  # noqa: S102  of the data set
    return names


class ProgramProxy:
    """The program, as far as its tests can see it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stand_ins: dict[int, RemoteObject] = {}
        self._values = ValueCodec(
            "tests", self._stand_in, lambda value: value._number if type(value) is RemoteObject else None
        )

    def defined_names(self, wanted: list[str]) -> dict[str, Any]:
        """Return the values of those ``wanted`` names that the program has defined."""
        names = request_reply(self._channel, {"do": "names", "with": wanted}, self.perform_request)["gives"]
        if not isinstance(names, dict):
            raise Unreadable
        return {name: self._values.read_value(names[name]) for name in wanted if name in names}

    def do_in_sandbox(self, what: str, *arguments: Any, **named: Any) -> Any:
        """Have something done in the sandbox. Arguments that it changed are changed here too."""
        sent = [self._values.write_value(value) for value in arguments]
        request = {"do": what, "with": sent, "names": {name: self._values.write_value(v) for name, v in named.items()}}
        try:
            reply = request_reply(self._channel, request, self.perform_request)
        except (StopIteration, StopAsyncIteration) as error:  # in `all(map(…))` of a test it would end the test
            raise RuntimeError(f"the answer raised {type(error).__name__}") from None
        changed = reply.get("changed")
        for place, now in changed.items() if isinstance(changed, dict) else ():
            _update_in_place(arguments[int(place)], self._values.read_value(now))
        return self._values.read_value(reply["gives"])

    def perform_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """A call of one of the tests' functions, which is all that a program may ask for."""
        try:
            [function, *arguments] = request["with"]
            if set(function) != {"tests"}:
                raise ChannelClosed
            called = self._values.read_value(function)
            return {"gives": self._values.write_value(called(*[self._values.read_value(value) for value in arguments]))}
        except NotPassable:  # what comes of the answer's arguments is no fault of the tests
            return {"raises": encode_exception(TypeError())}
        except Exception as error:  # noqa: BLE001  of a test's function, given anything
            return {"raises": encode_exception(error)}

    def _stand_in(self, number: int) -> RemoteObject:
        if number not in self._stand_ins:
            self._stand_ins[number] = RemoteObject(self, number)
        return self._stand_ins[number]


class RemoteObject:
    """An object of the answer's own, where the tests need one."""

    _answer: ProgramProxy
    _number: int

    def __init__(self, answer: ProgramProxy, number: int) -> None:
        object.__setattr__(self, "_answer", answer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._answer.do_in_sandbox("call", self, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return self._answer.do_in_sandbox("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.do_in_sandbox("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._answer.do_in_sandbox("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._answer.do_in_sandbox("setitem", self, key, value)

    def __len__(self) -> int:
        length: int = self._answer.do_in_sandbox("len", self)
        return length

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        text: str = self._answer.do_in_sandbox("str", self)
        return text

    def __repr__(self) -> str:
        text: str = self._answer.do_in_sandbox("repr", self)
        return text

    def __iter__(self) -> Iterator[Any]:
        iterator = self._answer.do_in_sandbox("iter", self)
        count = 1
        while True:
            items, ended, error = self._answer.do_in_sandbox("take", iterator, count)
            yield from items
            if error is not None:
                raise decode_exception(error)
            if ended:
                return
            count = min(2 * count, AHEAD)

    def __next__(self) -> Any:
        items, _, error = self._answer.do_in_sandbox("take", self, 1)
        if error is not None:
            raise decode_exception(error)
        if not items:
            raise StopIteration
        return items[0]


def _update_in_place(value: Any, now: Any) -> None:
    """Make a list, dictionary, set or array of bytes what it has become."""
    if type(value) is not type(now) or type(value) not in CHANGING:
        raise Unreadable
    if isinstance(value, list | bytearray):
        value[:] = now
    else:
        value.clear()
        value.update(now)
