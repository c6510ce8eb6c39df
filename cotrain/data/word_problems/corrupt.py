"""Wrong solutions, made on purpose: what a fallible solver would write, with the oracle's judgement of it.

Two sources of error:

    random       with probability ``Habits.random`` per step one error of a random kind: an arithmetic slip (±1, ±2,
                 ±10, two digits swapped), a wrong premise value, a wrong operator or operand, rarely a step too many
                 or one left out
    systematic   habits tied to features of the problem, each followed with probability ``Habits.systematic`` wherever
                 its trigger appears. A solver has those of ``Habits.kinds``, tried in that order:

        carry      the carry is dropped when the units of an addition overflow
        fewer      adds instead of subtracting in the minus sentences of one wording
        opposite   the opposite operation, in any step: adds instead of subtracting or multiplying, else subtracts

After an error the solution goes on consistently from the wrong value, and its answer is the last step's result, so
one error usually spoils the answer while every later step is right in itself. Values may become negative.

Left out on purpose: errors of format. A corrupted solution always parses.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.types import StepVerdicts
from cotrain.data.word_problems.fact import OPERATOR, Fact
from cotrain.data.word_problems.oracle import grade_steps
from cotrain.data.word_problems.problem import Problem, compute
from cotrain.formats.solutions import write_solution

FEWER_FAMILY = "plain"  # the wording whose "fewer ... than" triggers the habit "fewer"
HABITS = ("carry", "fewer", "opposite")
OPPOSITE: dict[str, str] = {"plus": "minus", "minus": "plus", "times": "plus", "sum": "difference", "difference": "sum"}
TRIES = 20  # the first half of the kind asked for, then slips


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How often a solver goes wrong, and how."""

    random: float = 0.12  # probability of a random error, per step
    systematic: float = 0.6  # probability of following a habit where it is triggered
    premise: float = 0.25  # share of random errors that are wrong premise values
    relation: float = 0.25  # share of random errors that are wrong operators or operands
    structure: float = 0.06  # share of random errors that are an unneeded or a missing step
    swap: float = 0.0  # share of random errors that swap two values, where that matters; the rest is arithmetic
    kinds: tuple[str, ...] = ("carry", "fewer")  # the systematic habits, some of ``HABITS``

    def __post_init__(self) -> None:
        shares = (self.premise, self.relation, self.structure, self.swap)
        if not all(0.0 <= p <= 1.0 for p in (self.random, self.systematic, *shares)) or sum(shares) > 1.0:
            raise ConfigError(
                f"words: {self} needs probabilities in 0..1, the four shares adding up to at most 1",
                code="E_CORRUPTION_SHARES",
            )
        for kind in self.kinds:
            if kind not in HABITS:
                raise UnknownName("habit", kind, HABITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A solution, right or wrong, with what the oracle says of it."""

    steps: tuple[str, ...]  # [K] inside of each step tag
    answer: str
    judgement: StepVerdicts  # [K]

    @property
    def text(self) -> str:
        return write_solution(self.steps, self.answer)


Choice = Callable[[int, Fact, int, int], str | None]  # (position, fact, left value, right value) → kind of error


def clean_attempt(problem: Problem) -> Attempt:
    """The exact solution."""
    count = len(problem.needed)
    judgement = StepVerdicts(ok=(True,) * count, reasons=("",) * count)
    return Attempt(steps=problem.steps, answer=str(problem.answer), judgement=judgement)


def with_habits(problem: Problem, habits: Habits, rng: random.Random) -> Attempt:
    """Return an attempt of a solver with these habits; it is often right."""

    def choose_error(position: int, fact: Fact, left: int, right: int) -> str | None:
        for habit in triggered_habits(problem, fact, left, right, habits.kinds):
            if rng.random() < habits.systematic:
                return habit
        return random_kind(habits, rng) if rng.random() < habits.random else None

    return _write_attempt(problem, choose_error, rng)


def with_errors(problem: Problem, count: int, habits: Habits, rng: random.Random) -> Attempt:
    """A solution with errors put into ``count`` of its steps (fewer if it is shorter); never a right solution.

    At least one step is wrong, or the last one is missing and so the answer is wrong. Where a habit is triggered it is
    taken with probability ``habits.systematic``, else a random kind.
    """
    while True:
        where = set(rng.sample(range(len(problem.needed)), min(count, len(problem.needed))))

        def choose_error(position: int, fact: Fact, left: int, right: int, where: set[int] = where) -> str | None:
            if position not in where:
                return None
            habits_here = triggered_habits(problem, fact, left, right, habits.kinds)
            if habits_here and rng.random() < habits.systematic:
                return rng.choice(habits_here)
            return random_kind(habits, rng)

        attempt = _write_attempt(problem, choose_error, rng)
        if not all(attempt.judgement.ok) or attempt.answer != str(problem.answer):
            return attempt


def another_answer(text: str, answer: str, rng: random.Random) -> str:
    """A solution over whose answer another one was written, from the last step on; a number becomes one that is
    near."""
    if re.fullmatch(r"-?[0-9]+", answer):
        wrong = str(int(answer) + rng.choice((-10, -2, -1, 1, 2, 10)))
    elif re.search(r"\.[0-9]*$", answer):
        wrong = answer + "1"  # a 0 behind a decimal would say the same number
    else:
        wrong = answer + "0"
    last = max(0, text.rfind("<step>"))
    # By a function, since ``re`` would read the backslash of \sqrt{2} as one of its own.
    return text[:last] + re.sub(rf"(?<![0-9]){re.escape(answer)}(?![0-9])", lambda _: wrong, text[last:])


def triggered_habits(problem: Problem, fact: Fact, left: int, right: int, kinds: Sequence[str]) -> tuple[str, ...]:
    """Those of the systematic habits ``kinds`` whose trigger this step has."""
    result = compute(fact.operator, left, right, problem.modulus)
    opposite_result = compute(OPERATOR[OPPOSITE[fact.kind]], left, right, problem.modulus)
    has_trigger = {
        "carry": fact.operator == "+" and left >= 0 and right >= 0 and left % 10 + right % 10 >= 10,
        "fewer": fact.kind == "minus" and problem.family == FEWER_FAMILY,
        "opposite": opposite_result != result,
    }
    return tuple(kind for kind in kinds if has_trigger[kind])


def random_kind(habits: Habits, rng: random.Random) -> str:
    """One of "premise", "relation", "unneeded", "skip", "swap", "slip"."""
    draw = rng.random()
    if draw < habits.premise:
        return "premise"
    if draw < habits.premise + habits.relation:
        return "relation"
    if draw < habits.premise + habits.relation + habits.structure:
        return "unneeded" if rng.random() < 0.5 else "skip"
    return "swap" if draw < habits.premise + habits.relation + habits.structure + habits.swap else "slip"


def slipped_number(value: int, rng: random.Random) -> int:
    """A number that is easily mistaken for this one: off by 1, 2 or 10, or with two neighbouring digits swapped."""
    draw = rng.random()
    digits = str(abs(value))
    if draw < 0.15 and len(digits) > 1:
        at = int(rng.random() * (len(digits) - 1))
        swapped = int(digits[:at] + digits[at + 1] + digits[at] + digits[at + 2 :])
        if len(str(swapped)) == len(digits) and swapped != abs(value):
            return swapped if value >= 0 else -swapped
    if draw < 0.55:
        size = 1
    elif draw < 0.75:
        size = 2
    else:
        size = 10

    down = rng.random() < 0.5 and not 0 <= value < size  # a slip does not change the sign
    return value - size if down else value + size


def _write_attempt(problem: Problem, choose: Choice, rng: random.Random) -> Attempt:
    """Walk through the right steps, put in the errors that ``choose`` asks for, go on from what was claimed."""
    claimed = dict(problem.given)  # values as claimed so far
    steps: list[str] = []
    answer = problem.answer
    spoilt = False
    for position, noun in enumerate(problem.needed):
        fact = problem.relations[noun]
        line = _StepLine(
            fact=fact,
            left=_operand_value(problem, claimed, fact.left),
            right=_operand_value(problem, claimed, fact.right),
        )
        kind = choose(position, fact, line.left, line.right)
        spoilt = spoilt or kind is not None
        if kind == "skip" and (steps or noun != problem.question):
            continue
        if kind == "unneeded" and (extra := _unneeded_line(problem, claimed)) is not None:
            claimed[extra.fact.target] = extra.result(problem)
            steps.append(extra.text(claimed[extra.fact.target]))
        elif kind == "unneeded" and steps:
            steps.append(steps[-1])  # nothing superfluous to work out: say the last step again
        elif kind is not None:
            line = _wrong_line(problem, kind, line, claimed, rng)

        claimed[noun] = answer = line.result(problem)
        steps.append(line.text(answer))

    if not spoilt:
        return clean_attempt(problem)
    return Attempt(steps=tuple(steps), answer=str(answer), judgement=grade_steps(problem, tuple(steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepLine:
    """A step about to be written."""

    fact: Fact  # what the solver takes the relation to be
    left: int  # value it puts in for the left operand
    right: int
    offset: int = 0  # what an arithmetic error adds to the result

    def result(self, problem: Problem) -> int:
        value = compute(self.fact.operator, self.left, self.right, None) + self.offset
        return value if problem.modulus is None else value % problem.modulus

    def text(self, result: int) -> str:
        fact = self.fact
        return f" {fact.target}={fact.expression}={self.left}{fact.operator}{self.right}={result} {fact.target}"


def _operand_value(problem: Problem, claimed: Mapping[str, int], operand: str | int) -> int:
    """The value a solver puts in: the known one, or for a quantity it left out, that of what the quantity rests on."""
    while isinstance(operand, str) and operand not in claimed:
        operand = problem.relations[operand].left
    return claimed[operand] if isinstance(operand, str) else operand


def _unneeded_line(problem: Problem, claimed: Mapping[str, int]) -> _StepLine | None:
    """A right step for a quantity that the question does not need, if there is one that can be worked out now."""
    for noun, fact in problem.relations.items():
        operands = [operand for operand in (fact.left, fact.right) if isinstance(operand, str)]
        if noun not in problem.needed and noun not in claimed and all(operand in claimed for operand in operands):
            return _StepLine(
                fact=fact,
                left=_operand_value(problem, claimed, fact.left),
                right=_operand_value(problem, claimed, fact.right),
            )
    return None


def _wrong_line(
    problem: Problem, kind: str, line: _StepLine, claimed: Mapping[str, int], rng: random.Random
) -> _StepLine:
    """The line with an error of this kind; a slip where the kind would not change the result."""
    right_result = line.result(problem)
    for attempt in range(TRIES):
        wrong = _change_line(kind if attempt < TRIES // 2 else "slip", line, claimed, rng)
        if wrong.result(problem) != right_result:
            return wrong
    return replace(line, offset=1)


def _change_line(kind: str, line: _StepLine, claimed: Mapping[str, int], rng: random.Random) -> _StepLine:
    fact = line.fact
    if kind == "carry":
        return replace(line, offset=-10)
    if kind == "fewer":
        return replace(line, fact=replace(fact, kind="plus"))
    if kind == "opposite":
        return replace(line, fact=replace(fact, kind=OPPOSITE[fact.kind]))
    if kind == "premise":
        on_left = isinstance(fact.right, int) or rng.random() < 0.5
        value = line.left if on_left else line.right
        value = rng.choice(list(claimed.values())) if rng.random() < 0.5 else slipped_number(value, rng)
        return replace(line, left=value) if on_left else replace(line, right=value)
    if kind == "swap" and isinstance(fact.right, str):
        return replace(line, left=line.right, right=line.left)
    if kind == "relation":
        others = [noun for noun in claimed if noun not in (fact.left, fact.right)]
        if not others or rng.random() < 0.6:
            return replace(line, fact=replace(fact, kind=OPPOSITE[fact.kind]))
        other = rng.choice(others)
        if isinstance(fact.right, int) or rng.random() < 0.5:
            return replace(line, fact=replace(fact, left=other), left=claimed[other])
        return replace(line, fact=replace(fact, right=other), right=claimed[other])

    exact = compute(fact.operator, line.left, line.right, None)
    return replace(line, offset=slipped_number(exact, rng) - exact)
