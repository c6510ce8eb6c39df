"""The tests of a program, run in a process next to it: the side that a model's program cannot reach.

Tests and program never share a process: a program could read what is expected of it, end the process at the right
moment, or change what ``==`` means. So the tests run here, in the examiner. Where they use a function of the program
they get a stand-in (``RemoteObject``): calling it sends the arguments into the program's sandbox, and what comes back
is plain data (``values.py``), compared by Python's own rules. The program learns the arguments and nothing else. It
decides no comparison: an object of a class of its own is equal to itself alone, and less than nothing; ``in`` looks at
the items that it gives.

Of the program's names the tests see only those that the reference program defines: ``sum`` is the program's where the
problem is to write ``sum``, and else Python's own. Modules that the tests use are imported here.

Left out: operators on an answer's own objects (``a + b``), its classes in ``isinstance``, files that tests and program
share, endless iterators as arguments, partial credit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from cotrain.grading.answer_worker import MOST_ITEMS, MUTABLE_TYPES, compile_program, run_answer
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
    """The verdict on a program: right where it runs, and then its tests do, without an exception.

    ``paper``: the tests, as JSON (``data/program_tests.py: paper_of``) with these fields:

    - "imports": statements of which those that fail are passed over;
    - "names": those of the program's names that the tests see;
    - "before": code that runs before the tests;
    - "tests": their code.

    Reasons of a wrong answer:

    - "syntax error";
    - "test failed": an assertion of the tests;
    - "NameError" or another built-in exception, "error" for one of the program's own;
    - "program died": it ended its process, or sends what is not readable.

    Not graded: "tests not readable".
    """
    fields = json.loads(paper)
    before_code = compile_program(fields["before"], "<before>")
    tests_code = compile_program(fields["tests"], "<tests>")
    if before_code is None or tests_code is None:
        return None, "tests not readable"
    proxy = ProgramProxy(channel)
    testing = False  # an AssertionError before is the program's own
    try:
        request = {"program": program, "deadline_s": deadline_s}
        loaded = request_reply(channel, request, proxy.perform_request)["gives"]
        if loaded != "loaded":
            return False, "syntax error" if loaded == "syntax error" else "program died"
        names = {"__name__": "answer", **_run_imports(fields["imports"]), **proxy.defined_names(fields["names"])}
        testing = True
        exec(before_code, names)  # noqa: S102  of the data set
        exec(tests_code, names)  # noqa: S102  of the data set
    except (ChannelClosed, Unreadable):
        return False, "program died"
    except NotPassable:
        return None, "tests not readable"
    except BaseException as error:  # noqa: BLE001  whatever comes of the program is its verdict
        is_failed_test = testing and type(error) is AssertionError
        return False, "test failed" if is_failed_test else kind_of_failure(error)
    return True, None


def _run_imports(statements: list[str]) -> dict[str, Any]:
    """Run these imports and return the names that they bind; packages that are not installed are passed over."""
    names: dict[str, Any] = {}
    for statement in statements:
        with contextlib.suppress(ImportError):
            code = compile(statement, "<imports>", "exec", dont_inherit=True)
            exec(code, names)  # noqa: S102  of the data set
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

    def do_in_sandbox(self, operation: str, *arguments: Any, **keyword_arguments: Any) -> Any:
        """The result of one of ``answer_worker.OPERATIONS``, performed in the sandbox. Arguments that the program has
        changed there are changed here too."""
        sent = [self._values.write_value(value) for value in arguments]
        sent_by_name = {name: self._values.write_value(value) for name, value in keyword_arguments.items()}
        request = {"do": operation, "with": sent, "names": sent_by_name}
        try:
            reply = request_reply(self._channel, request, self.perform_request)
        except (StopIteration, StopAsyncIteration) as error:
            # Raised within `all(map(…))` of a test it would look like the end of the items, and the test would pass.
            raise RuntimeError(f"the answer raised {type(error).__name__}") from None
        changed = reply.get("changed")
        if isinstance(changed, dict):
            for position, written in changed.items():
                _update_in_place(arguments[int(position)], self._values.read_value(written))
        return self._values.read_value(reply["gives"])

    def perform_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request of the program's, which may ask for one thing only: to call a function of the
        tests."""
        try:
            [function, *sent] = request["with"]
            if set(function) != {"tests"}:
                raise ChannelClosed
            test_function = self._values.read_value(function)
            arguments = [self._values.read_value(value) for value in sent]
            return {"gives": self._values.write_value(test_function(*arguments))}
        except NotPassable:  # the function gave what cannot be sent: the program called it with such arguments
            return {"raises": encode_exception(TypeError())}
        except Exception as error:  # noqa: BLE001  of a test's function, given anything
            return {"raises": encode_exception(error)}

    def _stand_in(self, number: int) -> RemoteObject:
        if number not in self._stand_ins:
            self._stand_ins[number] = RemoteObject(self, number)
        return self._stand_ins[number]


class RemoteObject:
    """What the tests get for an object of the program's own, such as a function: whatever is done to it is done to that
    object, in the sandbox."""

    _answer: ProgramProxy
    _number: int  # of the object, among those of the program

    def __init__(self, answer: ProgramProxy, number: int) -> None:
        object.__setattr__(self, "_answer", answer)  # as ``__setattr__`` below sets attributes in the sandbox
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keyword_arguments: Any) -> Any:
        return self._answer.do_in_sandbox("call", self, *arguments, **keyword_arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):  # Python's own hooks, such as __hash__
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
        count = 1  # a test may want the first item alone, of an endless generator
        while True:
            items, ended, error = self._answer.do_in_sandbox("take", iterator, count)
            yield from items
            if error is not None:
                raise decode_exception(error)
            if ended:
                return
            count = min(2 * count, MOST_ITEMS)

    def __next__(self) -> Any:
        items, _, error = self._answer.do_in_sandbox("take", self, 1)
        if error is not None:
            raise decode_exception(error)
        if not items:
            raise StopIteration
        return items[0]


def _update_in_place(value: Any, new_value: Any) -> None:
    """Give a list, dictionary, set or bytearray the contents of another. Raises Unreadable for other types."""
    if type(value) is not type(new_value) or type(value) not in MUTABLE_TYPES:
        raise Unreadable
    if isinstance(value, list | bytearray):
        value[:] = new_value
    else:
        value.clear()
        value.update(new_value)
