"""Unit tests that a model writes: how they are read, run against programs, and paid.

A test is one line, ``assert f(3, [1]) == 4``: a call of the function that the problem asks for, and what it returns,
both as Python literals. A model's text is read and never run: the line that is run is written anew from the literals
(``ast.unparse``), beside the program in its sandbox (``grading/program_worker.py``).

Reasons why a line is no test: "no Python", "no call" (of this function, compared with ``==``), "no literal", "repeated"
within a turn. A turn without a test is a failure of its first reason, or of "no test".

Left out: inputs and outputs as text, outputs that are compared otherwise than with ``==``, and files.
"""

from __future__ import annotations

import ast
import asyncio
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cotrain.core.types import Grade, ParseFailure
from cotrain.data.programs import ProgramGrader, ProgramProblem
from cotrain.formats.solutions import behind_thoughts

LONGEST = 400  # characters of a test


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTests:
    """The tests in a turn of the tester."""

    tests: tuple[str, ...]  # each one line of code, in one notation
    refused: tuple[str, ...] = ()  # why the other lines are no tests
    ok: ClassVar[bool] = True


def parse_tests(text: str, fields: Mapping[str, Any]) -> UnitTests | ParseFailure:
    """The first ``most`` tests of ``entry`` in a text; lines behind them do not count."""
    return read_tests(behind_thoughts(text) or "", str(fields["entry"]), int(fields["most"]))


def read_tests(text: str, entry: str, most: int | None = None) -> UnitTests | ParseFailure:
    """The first ``most`` lines of a text that begin with ``assert``, as tests of ``entry``."""
    lines = [line for line in map(str.strip, text.split("\n")) if line.startswith("assert")][:most]
    tests = list[str]()
    reasons = list[str]()
    for line in lines:
        test = _read_test(line, entry)
        if isinstance(test, ParseFailure) or test in tests:
            reasons.append(test.reason if isinstance(test, ParseFailure) else "repeated")
        else:
            tests.append(test)
    if not tests:
        return ParseFailure(reason=reasons[0] if reasons else "no test")
    return UnitTests(tests=tuple(tests), refused=tuple(reasons))


def _read_test(line: str, entry: str) -> str | ParseFailure:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            [statement] = ast.parse(line if len(line) <= LONGEST else "?").body
            compile(line, "<test>", "exec", dont_inherit=True)  # says more than the parser: f(x=1, x=2)
        return _write_test(statement, entry)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ParseFailure(reason="no Python")


def _write_test(statement: ast.stmt, entry: str) -> str | ParseFailure:
    match statement:
        case ast.Assert(
            test=ast.Compare(left=ast.Call(func=ast.Name(id=name)) as call, ops=[ast.Eq()], comparators=[expected])
        ) if name == entry and all(keyword.arg for keyword in call.keywords):
            literals = [*call.args, *(keyword.value for keyword in call.keywords), expected]
            if all(map(_is_literal, literals)):
                return f"assert {ast.unparse(call)} == {ast.unparse(expected)}"
            return ParseFailure(reason="no literal")
    return ParseFailure(reason="no call")


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True


# -- runs


async def run_tests(
    grader: ProgramGrader, problem: ProgramProblem, programs: Sequence[str], tests: Sequence[str]
) -> dict[tuple[str, str], Grade]:
    """Each program with each test, in a sandbox of its own; a pair that occurs twice is run once."""
    loop = asyncio.get_running_loop()
    pairs = [(program, test) for program in dict.fromkeys(programs) for test in dict.fromkeys(tests)]
    grades = await asyncio.gather(
        *(
            loop.run_in_executor(None, grader.grade_program, replace(problem, tests=test), program)
            for program, test in pairs
        )
    )
    return dict(zip(pairs, grades, strict=True))


# -- what a test is worth


def telling_reward(passes: Sequence[bool], right: Sequence[bool], valid: bool) -> float:
    """CURE (arXiv 2506.03136): a valid test is worth the share of wrong programs that fail it, another one minus the
    share of wrong programs that pass it; 1 and −1 where no program is wrong.

    ``passes`` and ``right``: of each program, whether it passes the test and whether it is right. [K]
    """
    passes_of_wrong = [passes_test for passes_test, is_right in zip(passes, right, strict=True) if not is_right]
    passing = sum(passes_of_wrong) / len(passes_of_wrong) if passes_of_wrong else None
    if valid:
        return 1.0 if passing is None else 1.0 - passing
    return -1.0 if passing is None else -passing


def breaking_reward(valid: int, broke: float, most: int, alpha: float) -> float:
    """Code-A1 (arXiv 2603.15611): α · valid / most + (1 − α) · broke / most, of a turn with at most ``most`` tests, of
    which ``valid`` are valid and ``broke`` are valid tests that the program fails."""
    return alpha * valid / most + (1.0 - alpha) * broke / most
