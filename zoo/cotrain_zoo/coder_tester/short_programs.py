"""Functions of one line as tasks: what a model of a million parameters can learn to write and to test.

    Write a function f(x) that returns x plus 7 if x is below 4, else x minus 7.

    def f(x):
        return x + 7 if x < 4 else x - 7

The tests are not shown; they try the numbers where the function turns, and some others. All problems there are have one
order, drawn once, and a split is a part of it. Programs are graded as in ``data/programs.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import rng_of
from cotrain.core.types import Task
from cotrain.data.programs import DEADLINE_S, ProgramGrader, ProgramProblem, task_of
from cotrain.grading.pool import WORKERS

FACTORS, NUMBERS = range(2, 10), range(2, 21)  # a and b of a problem
INPUTS = range(0, 26)  # arguments with which a function is called
SPLITS = {"train": range(0, 320), "validation": range(320, 384), "test": range(384, 497)}  # ranges of all problems
TESTS = 6  # tests of a problem


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of function, with two numbers a and b."""

    text: str
    line: str
    slips: tuple[str, ...]  # lines that are easily taken for it
    compute: Callable[[int, int, int], int]  # a function of x, a and b


KINDS = (
    Kind("x times {a} plus {b}", "x * {a} + {b}", ("x * {b} + {a}", "x + {a} * {b}"), lambda x, a, b: x * a + b),
    Kind("the larger of x and {b}", "max(x, {b})", ("min(x, {b})", "{b}"), lambda x, a, b: max(x, b)),
    Kind("the rest of x divided by {a}", "x % {a}", ("x // {a}", "x - {a}"), lambda x, a, b: x % a),
    Kind(
        "x plus {a} if x is below {b}, else x minus {a}",
        "x + {a} if x < {b} else x - {a}",
        ("x + {a} if x <= {b} else x - {a}", "x - {a} if x < {b} else x + {a}"),
        lambda x, a, b: x + a if x < b else x - a,
    ),
    Kind(
        "{a} if x is above {b}, else x",
        "{a} if x > {b} else x",
        ("{a} if x >= {b} else x", "x if x > {b} else {a}"),
        lambda x, a, b: a if x > b else x,
    ),
    Kind("how far x is from {b}", "abs(x - {b})", ("x - {b}", "{b} - x"), lambda x, a, b: abs(x - b)),
    Kind(
        "x minus {b}, but at least 0",
        "max(x - {b}, 0)",
        ("x - {b}", "max({b} - x, 0)"),
        lambda x, a, b: max(x - b, 0),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShortProgram:
    """One problem."""

    kind: Kind
    a: int
    b: int

    def fill(self, text: str) -> str:
        return text.format(a=self.a, b=self.b)

    @property
    def question(self) -> str:
        return f"Write a function f(x) that returns {self.fill(self.kind.text)}."

    def program(self, line: str | None = None) -> str:
        """The reference program, or one with another line."""
        return f"def f(x):\n    return {self.fill(line or self.kind.line)}"

    def test(self, x: int) -> str:
        """A test that the reference program passes."""
        return f"assert f({x}) == {self.kind.compute(x, self.a, self.b)}"

    def tests(self) -> list[str]:
        """Around where the function turns, and elsewhere."""
        others = [x for x in INPUTS if x not in range(self.b - 1, self.b + 2)]
        rng = rng_of("short program", self.question)
        return [self.test(x) for x in (*range(self.b - 1, self.b + 2), *rng.sample(others, TESTS - 3))]


def all_programs() -> list[ShortProgram]:
    """Each problem once, in an order of its own."""
    programs = [ShortProgram(kind, a, b) for kind in KINDS for a in FACTORS for b in NUMBERS if a != b]
    unique = list({program.question: program for program in programs}.values())
    rng_of("short programs").shuffle(unique)
    return unique


class ShortPrograms:
    """The problems as tasks. ``problems``: how many there are to train on. Raises ConfigError for another number."""

    name = "short_programs"

    def __init__(self, problems: int | str = SPLITS["train"].stop) -> None:
        max_problems = SPLITS["train"].stop
        if not (str(problems).isdecimal() and 1 <= int(problems) <= max_problems):
            raise ConfigError(
                f"{self.name}: {problems} problems to train on, expected a number from 1 to {max_problems}",
                code="E_SETTING_RANGE",
            )
        self.splits = SPLITS | {"train": range(int(problems))}
        self.programs = all_programs()
        self._problems = {
            f"{self.name}/{split}/{i}": ProgramProblem(
                question=program.question,
                before="",
                stub="",
                entry="f",
                tests="\n".join(program.tests()),
                solution=program.program(),
                bare_question=program.question,
            )
            for split, part in self.splits.items()
            for i, program in enumerate(self.programs[part.start : part.stop])
        }
        self.grader = ProgramGrader(self._problems, WORKERS, DEADLINE_S, None)

    def get(self, split: str, index: int) -> Task:
        """Problem ``index`` of a split. Raises UnknownName, and IndexError outside of 0 <= index < size."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {self.size(split)}")
        task_id = f"{self.name}/{split}/{index}"
        return task_of(self._problems[task_id], task_id, self.grader)

    def size(self, split: str) -> int:
        if split not in self.splits:
            raise UnknownName(f"split of {self.name}", split, self.splits)
        return len(self.splits[split])

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "settings": {"problems": self.size("train")}}

    def close(self) -> None:
        """End the processes."""
        self.grader.close()
