"""The oracle: what each step of a solution claims, and whether that is right given what came before it.

A step is judged on its own: its numbers must be the given facts or the *earlier steps' claimed* values (the latest
claim counts), so a step that goes on correctly from an earlier wrong value is itself right. The first wrong step is
therefore where the solution went wrong, and later steps are wrong only for mistakes of their own.

Reasons, in the order they are looked for, stand in ``REASONS``.

Left out on purpose: equivalent steps in another notation. The format is part of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotrain.core.types import StepVerdicts
from cotrain.data.word_problems.problem import Fact, Problem, compute

OPERATORS = "+-*"
REASONS = {  # in words, as the viewer shows them
    "malformed": "not of the form target = operand op operand = number op number = result target",
    "relation": "the problem defines this quantity in another way, or not at all",
    "repeated": "an earlier step has already worked this quantity out",
    "unneeded": "this quantity does not lead to the question",
    "premise": "a number is not the value given or worked out for its quantity, or two have changed places",
    "arithmetic": "the numbers are combined by another operator, or to a wrong result",
}
DIGITS = 9  # longer numbers are malformed, so that a runaway sample costs nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One parsed step. An operand is a noun or a number."""

    target: str
    left: str | int
    operator: str
    right: str | int
    left_value: int
    value_operator: str
    right_value: int
    result: int


def parse_integer(text: str) -> int | None:
    """``text`` as an integer written canonically (no sign +, no leading zero, no -0), else None."""
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > DIGITS:
        return None
    if digits[0] == "0" and text != "0":
        return None
    return int(text)


def _parse_noun(text: str) -> str | None:
    """The noun in `` noun``: one space, then lower-case ASCII letters."""
    word = text[1:]
    return word if text[:1] == " " and word.isascii() and word.isalpha() and word.islower() else None


def _split_operation(text: str) -> tuple[str, str, str] | None:
    """``left OP right`` at the first operator that is not the sign of the left side."""
    for position in range(1, len(text)):
        if text[position] in OPERATORS:
            return text[:position], text[position], text[position + 1 :]
    return None


def _parse_operand(text: str) -> str | int | None:
    """A noun, or a number without a sign."""
    noun = _parse_noun(text)
    if noun:
        return noun
    return None if text.startswith("-") else parse_integer(text)


def parse_step(text: str) -> Step | None:
    """Read `` target= operand OP operand=number OP number=result target`` strictly; None if it is anything else."""
    parts = text.split("=")
    if len(parts) != 4:
        return None
    number, space, again = parts[3].partition(" ")
    target = _parse_noun(parts[0])
    result = parse_integer(number)
    relation = _split_operation(parts[1])
    numbers = _split_operation(parts[2])
    if target is None or space + again != parts[0] or result is None or relation is None or numbers is None:
        return None
    left = _parse_operand(relation[0])
    right = _parse_operand(relation[2])
    left_value = parse_integer(numbers[0])
    right_value = parse_integer(numbers[2])
    if left is None or right is None or left_value is None or right_value is None:
        return None
    return Step(
        target=target,
        left=left,
        operator=relation[1],
        right=right,
        left_value=left_value,
        value_operator=numbers[1],
        right_value=right_value,
        result=result,
    )


def states_fact(fact: Fact, step: Step) -> bool:
    """Whether the step writes the relation that the fact states."""
    if step.operator != fact.operator:
        return False
    if (step.left, step.right) == (fact.left, fact.right):
        return True
    return step.operator in "+*" and (step.right, step.left) == (fact.left, fact.right)


def _wrong_reason(problem: Problem, step: Step, claimed: Mapping[str, int], seen: set[str]) -> str:
    fact = problem.relations.get(step.target)
    if fact is None:
        return "relation"
    if step.target in seen:
        return "repeated"
    if step.target not in problem.needed:
        return "unneeded"
    if not states_fact(fact, step):
        return "relation"
    for operand, value in ((step.left, step.left_value), (step.right, step.right_value)):
        if value != (operand if isinstance(operand, int) else claimed.get(operand)):
            return "premise"
    right = compute(step.operator, step.left_value, step.right_value, problem.modulus)
    if step.value_operator != step.operator or step.result != right:
        return "arithmetic"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReading:
    """One step as the oracle met it."""

    step: Step | None  # None where it is malformed
    claim: str  # the result as written; "" where a malformed step ends in no integer
    reason: str  # "" where it is right
    known: Mapping[str, int]  # value of every noun just before this step: given, or claimed by an earlier step


def read_steps(problem: Problem, steps: tuple[str, ...]) -> tuple[StepReading, ...]:
    """[K] parse and judge each step in turn."""
    claimed: dict[str, int] = dict(problem.given)
    seen: set[str] = set()
    readings = []
    for text in steps:
        step = parse_step(text)
        reason = "malformed" if step is None else _wrong_reason(problem, step, claimed, seen)
        claim = text.rpartition("=")[2].partition(" ")[0]
        claim = claim if parse_integer(claim) is not None else ""
        readings.append(StepReading(step=step, claim=claim, reason=reason, known=dict(claimed)))
        if step is not None and step.target in problem.relations:
            claimed[step.target] = step.result
            seen.add(step.target)
    return tuple(readings)


def grade_steps(problem: Problem, steps: tuple[str, ...]) -> StepVerdicts:
    """Judge each step's text (the inside of its tag)."""
    reasons = tuple(reading.reason for reading in read_steps(problem, steps))
    return StepVerdicts(ok=tuple(not reason for reason in reasons), reasons=reasons)
