"""The tests of a program, run beside it: the outside of an exam (``program_server.py``), loaded for ``programs.py``.

Tests and program never share a process: a program could read what is expected of it, end the process at the right
moment, or change what ``==`` means. So the tests run here, in the examiner, and where they name what the answer defines
they get a stand-in: calling it sends the arguments into the program's cell, and what comes back is plain data
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

from cotrain.grading.answer_worker import AHEAD, CHANGING, compiled, play
from cotrain.grading.channel import Channel, Gone, ask, kind_of_failure, raised, raising
from cotrain.grading.exam import Exam, Verdict
from cotrain.grading.values import NotPassable, Unreadable, Values


def load_programs() -> Exam:
    """The loader that ``GradingPool`` names."""
    return Exam(inside=play, outside=examine)


def examine(channel: Channel, paper: str, program: str, deadline_s: float) -> Verdict:
    """Right: the program and then the tests end without an exception.

    ``paper``: JSON of "imports" (statements, those that fail are passed over), "names" (of the answer), "before" and
    "tests".
    Wrong: "syntax error", "test failed", "NameError" or another built-in exception, "error" for one of the program's
    own, "program died" where it ended its process or says what is not readable. Not graded: "tests not readable".
    """
    given = json.loads(paper)
    checks = [compiled(given[part], f"<{part}>") for part in ("before", "tests")]
    if None in checks:
        return None, "tests not readable"
    answer, testing = Answer(channel), False
    try:
        loaded = ask(channel, {"program": program, "deadline_s": deadline_s}, answer.perform)["gives"]
        if loaded != "loaded":
            return False, "syntax error" if loaded == "syntax error" else "program died"
        names = {"__name__": "answer", **_imported(given["imports"]), **answer.names(given["names"])}
        testing = True
        for part in checks:
            assert part is not None
            exec(part, names)  # noqa: S102  of the data set
    except (Gone, Unreadable):
        return False, "program died"
    except NotPassable:
        return None, "tests not readable"
    except BaseException as error:  # noqa: BLE001  whatever comes of the program is its verdict
        return False, "test failed" if testing and type(error) is AssertionError else kind_of_failure(error)
    return True, None


def _imported(statements: list[str]) -> dict[str, Any]:
    """What these imports give; those of packages that are not here are passed over."""
    names: dict[str, Any] = {}
    for statement in statements:
        with contextlib.suppress(ImportError):
            exec(statement, names)  # noqa: S102  of the data set
    return names


class Answer:
    """The program, as far as its tests can see it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stand_ins: dict[int, Far] = {}
        self._values = Values("tests", self._stand_in, lambda value: value._number if type(value) is Far else None)

    def names(self, wanted: list[str]) -> dict[str, Any]:
        """What of these names the program has defined."""
        given = ask(self._channel, {"do": "names", "with": wanted}, self.perform)["gives"]
        if not isinstance(given, dict):
            raise Unreadable
        return {name: self._values.read(given[name]) for name in wanted if name in given}

    def do(self, what: str, *arguments: Any, **named: Any) -> Any:
        """Have something done in the cell. Arguments that it changed are changed here too."""
        sent = [self._values.write(value) for value in arguments]
        request = {"do": what, "with": sent, "names": {name: self._values.write(v) for name, v in named.items()}}
        try:
            reply = ask(self._channel, request, self.perform)
        except (StopIteration, StopAsyncIteration) as error:  # in `all(map(…))` of a test it would end the test
            raise RuntimeError(f"the answer raised {type(error).__name__}") from None
        changed = reply.get("changed")
        for place, now in changed.items() if isinstance(changed, dict) else ():
            _change(arguments[int(place)], self._values.read(now))
        return self._values.read(reply["gives"])

    def perform(self, request: dict[str, Any]) -> dict[str, Any]:
        """A call of one of the tests' functions, which is all that a program may ask for."""
        try:
            [function, *arguments] = request["with"]
            if set(function) != {"tests"}:
                raise Gone
            called = self._values.read(function)
            return {"gives": self._values.write(called(*[self._values.read(value) for value in arguments]))}
        except NotPassable:  # what comes of the answer's arguments is no fault of the tests
            return {"raises": raising(TypeError())}
        except Exception as error:  # noqa: BLE001  of a test's function, given anything
            return {"raises": raising(error)}

    def _stand_in(self, number: int) -> Far:
        if number not in self._stand_ins:
            self._stand_ins[number] = Far(self, number)
        return self._stand_ins[number]


class Far:
    """An object of the answer's own, where the tests need one."""

    _answer: Answer
    _number: int

    def __init__(self, answer: Answer, number: int) -> None:
        object.__setattr__(self, "_answer", answer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._answer.do("call", self, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return self._answer.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.do("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._answer.do("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._answer.do("setitem", self, key, value)

    def __len__(self) -> int:
        length: int = self._answer.do("len", self)
        return length

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        text: str = self._answer.do("str", self)
        return text

    def __repr__(self) -> str:
        text: str = self._answer.do("repr", self)
        return text

    def __iter__(self) -> Iterator[Any]:
        iterator, count = self._answer.do("iter", self), 1
        while True:
            items, ended, error = self._answer.do("take", iterator, count)
            yield from items
            if error is not None:
                raise raised(error)
            if ended:
                return
            count = min(2 * count, AHEAD)

    def __next__(self) -> Any:
        items, _, error = self._answer.do("take", self, 1)
        if error is not None:
            raise raised(error)
        if not items:
            raise StopIteration
        return items[0]


def _change(value: Any, now: Any) -> None:
    """Make a list, dictionary, set or array of bytes what it has become."""
    if type(value) is not type(now) or type(value) not in CHANGING:
        raise Unreadable
    if isinstance(value, list | bytearray):
        value[:] = now
    else:
        value.clear()
        value.update(now)
