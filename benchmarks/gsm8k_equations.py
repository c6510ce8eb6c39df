"""A program that works out each equation of a solution: labels of steps for GSM8K, without a human or a model.

    cotrain run grpo --tasks benchmarks/gsm8k_equations.py:CheckedProblems --steps-judged-by oracle …
    cotrain run benchmarks/gsm8k_equations.py:with_calculator …

A step is a line. It is wrong where one of its equations is: "She has 4*3 = 15 left". The last line, "#### 15", is right
where the answer is. A line without an equation, or with one that cannot be read ("half of 20 = 10"), is right as far as
this program knows. So it sees slips of calculation, and no equation that the problem does not ask for. Of the 26,724
lines of GSM8K's own training solutions it finds an equation in nine of ten and calls 65 wrong; most of these are.

``CheckedProblems`` are the problems of a folder (``gsm8k_lessons.py``), graded by their answers as in ``--data``, with
these labels of steps. So ``--steps-judged-by oracle`` pays by the program, and a verifier's verdicts on steps are
measured against it.

``with_calculator`` is GRPO whose solver need not compute: where it writes an expression and "=", the program writes the
value, which is not learned, and the solver goes on. It takes away the very errors that the labels find.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from operator import add, mul, sub, truediv
from typing import Any

from cotrain import (
    FORMAT,
    GRPO,
    OUTCOME,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    constant_schedule,
    examine,
    gives,
    recipe,
)
from cotrain.core.types import StepVerdicts, Task
from cotrain.data.files import JsonlTasks
from cotrain.grading.compare_texts import quick_grade
from cotrain.grading.pool import AnswerGrader
from cotrain.rollout import common_roles
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.tools.calls import CallFormat, Tool, ToolCall, ToolError, use_tools

PROBLEMS = "runs/gsm8k/problems"
ANSWER_LINE = re.compile(r"####\s*(.+)")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
MOST_CALLS = 12  # of an answer
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
    for left, right in pairwise(plain_signs(line).split("=")):
        expression = last_expression(left)
        claimed = _VALUE.match(right)
        if expression is None or claimed is None:
            continue
        value = value_of(expression)
        if value is not None:
            yield Equation(expression=expression, claimed=claimed[1].replace(" ", ""), value=value)


def plain_signs(line: str) -> str:
    """A line without currencies and thousands separators, and with one sign for each operation."""
    plain = _TIMES.sub("*", line.replace("$", "").replace("€", "").replace("£", ""))
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain)
    return plain.replace("÷", "/").replace("−", "-").replace("–", "-")


def last_expression(text: str) -> str | None:
    """The expression of numbers on which a text with plain signs ends, without its units; None where there is none, or
    it is the end of a longer one that cannot be read."""
    near = _UNIT.sub(" ", text[-_NEAR:])[-_DIGITS:]
    found = _EXPRESSION.search(near)
    if found is None or _GOES_ON.search(near[: found.start()]):
        return None
    return found[0].strip()


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
        grade = quick_grade(task.gold or "", answer)
        return "" if grade is not None and grade.value else "answer"


class CheckedProblems(JsonlTasks):
    """The problems of a folder, with labels of steps."""

    def __init__(self, path: str = PROBLEMS) -> None:
        super().__init__(path, name="gsm8k")
        self.grader = EquationGrader()

    def describe(self) -> dict[str, Any]:
        return {"kind": "checked-gsm8k", "settings": {"path": self.path}}


# -- a calculator instead


async def calculator(expression: str) -> str:
    """The value of an expression, to two places. Raises ToolError for one without a value, such as 8/0."""
    value = value_of(expression)
    if value is None:
        raise ToolError("no value")
    return f"{round(float(value), 2):.12g}"


def read_call(said: str, tools: Mapping[str, Tool]) -> ToolCall | None:
    """The expression before the sign on which the solver's text ends; None where no expression stands there."""
    line = said.rpartition("\n")[2]
    expression = last_expression(plain_signs(line.removesuffix("=")))
    return None if expression is None else ToolCall(tool="calculator", said=(expression,))


def show_value(chat: Conversation, output: str, mark: str) -> None:
    """The value behind the sign. What the tool says when it fails is left out: the solver goes on by itself."""
    if NUMBER.fullmatch(output):
        chat.assistant(f" {output}")


AT_EQUALS = CallFormat(stop=("=",), read=read_call, show=show_value)


@gives(OUTCOME.to("solver"), FORMAT.to("solver"), once=("solver",))
async def solve_with_calculator(task: Task, roles: Roles) -> None:
    """The solver answers with the calculator; its reward ``outcome`` is 1 when the answer is right, else 0."""
    chat = roles.solver.begin(problem=task.prompt)
    solution = await use_tools(chat, {"calculator": calculator}, form=AT_EQUALS, most=MOST_CALLS)
    solution.parsed = chat.role.parse_reply(chat.messages[-1].content, {})  # with the calculator's values
    correct = await examine(task, roles, solution)
    if correct is not None:
        chat.reward(OUTCOME, float(correct))
        chat.reward(FORMAT, solution.parsed.format_score)


@recipe
def with_calculator(run: RunConfig) -> Recipe:
    learn = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
    return run.recipe(
        "with-calculator",
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=learn)},
        schedule=constant_schedule(solve_with_calculator, "generator", name="generator"),
        evaluate=solve_with_calculator,
    )
