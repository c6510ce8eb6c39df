"""A program that works out each equation of a solution: labels of steps for GSM8K, without a human or a model.

    cotrain run grpo --tasks benchmarks/gsm8k_equations.py:CheckedProblems --steps-judged-by oracle …

A step is a line. It is wrong where one of its equations is: "She has 4*3 = 15 left". The last line, "#### 15", is right
where the answer is. A line without an equation, or with one that cannot be read ("half of 20 = 10"), is right as far as
this program knows. So it sees slips of calculation, and no equation that the problem does not ask for. Of the 26,724
lines of GSM8K's own training solutions it finds an equation in nine of ten and calls 65 wrong; most of these are.

``CheckedProblems`` are the problems of a folder (``gsm8k_lessons.py``), graded by their answers as in ``--data``, with
these labels of steps. So ``--steps-judged-by oracle`` pays by the program, and a verifier's verdicts on steps are
measured against it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from operator import add, mul, sub, truediv
from typing import Any

from cotrain.core.types import StepVerdicts, Task
from cotrain.grading.pool import AnswerGrader, quick_grade
from cotrain.tasks.jsonl import JsonlTasks

PROBLEMS = "runs/gsm8k/problems"
ANSWER_LINE = re.compile(r"####\s*(.+)")
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)%?"
_EXPRESSION = re.compile(rf"\(*-?\s*{_NUMBER}\)*(?:\s*[-+*/]\s*\(*\s*{_NUMBER}\)*)+\s*$")  # the end of a text
_VALUE = re.compile(rf"\s*(-?\s*{_NUMBER})(?![A-Z]|\s*[-+*/.]?\s*[\d(])")  # its beginning; none where it goes on
_GOES_ON = re.compile(  # before an expression: it is the end of a longer one
    r"(?:[\d)%*/+]|[-+*/x]\s+|\d\s+|\b(?:times|of|by|and|from|to|than|half|third|thirds|divided|minus|plus)\s+)$"
)
_UNIT = re.compile(r"(?<=[\d%])\s*(?:[A-Za-z][A-Za-z'’]+[\s/]*|/[a-z]+\s*){1,4}(?=[-+*/)]|$)")  # "12 eggs/day * 3"
_TIMES = re.compile(r"(?<=[\d)%])\s*[x×·]\s*(?=[\d($.])|(?<=\s)[x×·](?=\s)")
_NEAR, _DIGITS, _DEPTH = 160, 60, 12  # characters of an expression with its units and without, its parentheses
_OPERATIONS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """One equation of a line."""

    expression: str  # as it is written, without units
    claimed: str  # the value that is written behind it
    value: Fraction  # what the expression comes to

    @property
    def is_right(self) -> bool:
        """The claim is the value, or the value rounded to the places of the claim, where it has more."""
        return any(_is_rounded(self.claimed, value) for value in (self.value, self.value / 100, self.value * 100))


def equations_in(line: str) -> Iterator[Equation]:
    """The equations of a line in order. "3*4 = 12-2 = 10" has two: each sign is asked whether what stands before it
    comes to the number behind it."""
    plain = _TIMES.sub("*", line.replace("$", "").replace("€", "").replace("£", ""))
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain).replace("÷", "/").replace("−", "-").replace("–", "-")
    sides = plain.split("=")
    for left, right in pairwise(sides):
        near = _UNIT.sub(" ", left[-_NEAR:])[-_DIGITS:]
        expression = _EXPRESSION.search(near)
        claimed = _VALUE.match(right)
        if expression is None or claimed is None or _GOES_ON.search(near[: expression.start()]):
            continue
        text = expression[0].strip()
        value = value_of(text)
        if value is not None:
            yield Equation(expression=text, claimed=claimed[1].replace(" ", ""), value=value)


def value_of(expression: str) -> Fraction | None:
    """What an expression of numbers comes to; None where it is none."""
    if expression.count("(") > _DEPTH:
        return None
    balanced = expression
    while balanced.count("(") > balanced.count(")") and balanced.startswith("("):
        balanced = balanced[1:].strip()
    try:
        return _compute(ast.parse(re.sub(r"(\d)%", r"\1/100", balanced), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _compute(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_compute(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_compute(node.left), _compute(node.right))
    raise ValueError("no arithmetic")


def _is_rounded(claimed: str, value: Fraction) -> bool:
    number = claimed.rstrip("%")
    places = len(number.partition(".")[2])
    said = Fraction(number)
    if value * 10**places == int(value * 10**places):
        return said == value
    return abs(said - value) < Fraction(1, 10**places)


def equations_right(step: str) -> bool:
    return all(equation.is_right for equation in equations_in(step))


def claimed_answer(step: str) -> str | None:
    """The answer that a last line "#### 15" claims; None for another line."""
    said = ANSWER_LINE.fullmatch(step.strip())
    return None if said is None else said[1].strip()


class EquationGrader(AnswerGrader):
    """Compares answers as ever, and works out the equations of steps."""

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        reasons = tuple(self._reason(task, step) for step in steps)
        return StepVerdicts(ok=tuple(not reason for reason in reasons), reasons=reasons)

    def _reason(self, task: Task, step: str) -> str:
        """Why a step is wrong; "" where it is right."""
        answer = claimed_answer(step)
        if answer is None:
            return "" if equations_right(step) else "arithmetic"
        grade = quick_grade(task.answer or "", answer)
        return "" if grade is not None and grade.value else "answer"


class CheckedProblems(JsonlTasks):
    """The problems of a folder, with labels of steps."""

    def __init__(self, path: str = PROBLEMS) -> None:
        super().__init__(path, name="gsm8k")
        self.grader = EquationGrader()

    def describe(self) -> dict[str, Any]:
        return {"kind": "checked-gsm8k", "settings": {"path": self.path}}
