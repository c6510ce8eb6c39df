"""Word problems as data: a random acyclic graph of named quantities, and its worked solution ("step-GSM").

Some quantities are given, the others are derived by one operation each:

    t = x + c    t = x - c    t = x * c    t = x + y    t = x - y

A problem with n operations has exactly n derived quantities that the question needs; each of them is used by a later
one (or is the question), so every step of the solution matters. ``draw`` guarantees that by keeping count of the
quantities that nothing uses yet: with r steps left there may be at most r + 1 of them, since a step closes at most one.

Left out on purpose: division, fractions, units, and quantities defined only by an equation to be solved.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from cotrain.core.errors import ConfigError
from cotrain.data.word_problems import wording
from cotrain.data.word_problems.fact import OPERATOR, Fact
from cotrain.formats.solutions import write_solution

GIVEN_MAX = 20  # givens are 2..20
CONSTANT_MAX = 12  # constants are 2..12
FACTOR_MAX = 4  # factors are 2..4


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem with everything the oracle needs. Build it with ``assemble_problem`` or ``draw_problem``."""

    text: str  # facts and question in English
    family: str  # name of the wording
    facts: tuple[Fact, ...]  # in reading order
    question: str  # the noun asked for
    modulus: int | None
    given: Mapping[str, int]  # noun → value
    relations: Mapping[str, Fact]  # derived noun → its definition
    values: Mapping[str, int]  # noun → right value, derived ones included
    needed: tuple[str, ...]  # [K] derived nouns that lead to the question, in the order of the solution

    @property
    def steps(self) -> tuple[str, ...]:
        """[K] the inside of each step tag of the exact solution."""
        values = self.values
        return tuple(step_text(self.relations[noun], values, values[noun]) for noun in self.needed)

    @property
    def answer(self) -> int:
        return self.values[self.question]

    @property
    def solution(self) -> str:
        return write_solution(self.steps, str(self.answer))


def step_text(fact: Fact, values: Mapping[str, int], result: int) -> str:
    """`` pears= apples+4=12+4=16 pears``: definition, numbers, result. The result is before its noun, as given
    numbers do in most wordings ("12 apples"), so that every known value is found in the same way."""
    right = fact.right if isinstance(fact.right, int) else values[fact.right]
    return f" {fact.target}={fact.expression}={values[fact.left]}{fact.operator}{right}={result} {fact.target}"


def compute(operator: str, left: int, right: int, modulus: int | None) -> int:
    """``left operator right``, reduced to 0..modulus-1 if there is a modulus."""
    if operator == "+":
        value = left + right
    elif operator == "-":
        value = left - right
    else:
        value = left * right
    return value if modulus is None else value % modulus


def assemble_problem(facts: tuple[Fact, ...], question: str, *, family: str, modulus: int | None = None) -> Problem:
    """Work out values and solution order, and put the facts into words.

    The solution takes, again and again, the first fact in reading order whose operands are known. Raises ConfigError
    if a noun is defined twice, an operand is defined nowhere or by a circle, or the question is not derived.
    """
    values = {f.target: f.right for f in facts if f.kind == "given" and isinstance(f.right, int)}
    givens = dict(values)
    relations = {f.target: f for f in facts if f.kind != "given"}
    if len(givens) + len(relations) != len(facts) or not givens.keys().isdisjoint(relations):
        raise ConfigError(
            "word problem: a noun is defined twice, or a given has no number; define each noun once",
            code="E_WORD_PROBLEM_NOUNS",
        )
    if question not in relations:
        raise ConfigError(
            f"word problem: the question {question!r} is not a derived quantity; ask for one that is",
            code="E_WORD_PROBLEM_QUESTION",
        )
    order: list[str] = []
    waiting = [f for f in facts if f.kind != "given"]
    while waiting:
        ready = (f for f in waiting if f.left in values and (isinstance(f.right, int) or f.right in values))
        fact = next(ready, None)
        if fact is None:
            raise ConfigError(
                f"word problem: {waiting[0].target!r} rests on an undefined quantity or on a circle",
                code="E_WORD_PROBLEM_CIRCLE",
            )
        waiting.remove(fact)
        order.append(fact.target)
        operand = fact.right if isinstance(fact.right, int) else values[fact.right]
        values[fact.target] = compute(OPERATOR[fact.kind], values[fact.left], operand, modulus)

    needed = {question}
    for noun in reversed(order):
        if noun in needed:
            needed.add(relations[noun].left)
            needed.add(relations[noun].right)  # type: ignore[arg-type]  # a constant is no noun and does no harm
    return Problem(
        text=wording.render_problem(wording.family_named(family), facts, question, modulus),
        family=family,
        facts=facts,
        question=question,
        modulus=modulus,
        given=givens,
        relations=relations,
        values=values,
        needed=tuple(noun for noun in order if noun in needed),
    )


class _Stuck(Exception):
    """No operation keeps the value in range here; the whole draw is thrown away."""


class _Draft:
    """A problem being drawn. ``open`` are derived nouns that nothing uses yet, ``closed`` those that something does."""

    def __init__(self, rng: random.Random, modulus: int | None, max_value: int) -> None:
        self.random = rng.random
        self.modulus = modulus
        self.max_value = max_value
        self.nouns = rng.sample(wording.NOUNS, len(wording.NOUNS))
        self.facts: list[Fact] = []
        self.values: dict[str, int] = {}
        self.givens: list[str] = []
        self.open: list[str] = []
        self.closed: list[str] = []

    def draw_between(self, low: int, high: int) -> int:
        return low + int(self.random() * (high - low + 1))

    def pick_noun(self, nouns: list[str]) -> str:
        return nouns[int(self.random() * len(nouns))]

    def add_given(self) -> str:
        """State a new given quantity."""
        top = self.max_value if self.modulus is None else self.modulus - 1
        noun = self.nouns.pop()
        value = self.draw_between(2, min(GIVEN_MAX, top))
        self.facts.append(Fact(target=noun, kind="given", right=value))
        self.values[noun] = value
        self.givens.append(noun)
        return noun

    def known_quantity(self, other: str = "") -> str:
        """A quantity that may be used without closing an open one: mostly a new given, else one used before."""
        used = self.givens + self.closed
        if used and self.random() < 0.3:
            noun = self.pick_noun(used)
            if noun != other:
                return noun
        return self.add_given()

    def constant_in_range(self, left: str, kind: str) -> int | None:
        """A constant with which ``left kind constant`` stays in range, if there is one."""
        value = self.values[left]
        limit = FACTOR_MAX if kind == "times" else CONSTANT_MAX
        if self.modulus is not None:
            limit = min(limit, self.modulus - 1)
        elif kind == "plus":
            limit = min(limit, self.max_value - value)
        elif kind == "minus":
            limit = min(limit, value - 1)
        else:
            limit = min(limit, self.max_value // value)
        return self.draw_between(2, limit) if limit >= 2 else None

    def add_derived(self, kind: str, left: str, right: str | int) -> str:
        """State a derived quantity; what it uses is open no longer."""
        operand = right if isinstance(right, int) else self.values[right]
        noun = self.nouns.pop()
        self.facts.append(Fact(target=noun, kind=kind, left=left, right=right))
        self.values[noun] = compute(OPERATOR[kind], self.values[left], operand, self.modulus)
        for used in (left, right):
            if used in self.open:
                self.open.remove(used)
                self.closed.append(used)
        self.open.append(noun)
        return noun

    def add_combination(self, one: str, two: str) -> str:
        """``one + two`` or their difference, whichever stays in range."""
        a, b = self.values[one], self.values[two]
        if self.modulus is not None:
            return self.add_derived("sum" if self.random() < 0.5 else "difference", one, two)
        if a + b <= self.max_value and (a == b or self.random() < 0.55):
            return self.add_derived("sum", one, two)
        if a == b:
            raise _Stuck
        if a < b:
            one, two = two, one
        return self.add_derived("difference", one, two)

    def add_step(self, left_over: int) -> None:
        """Add one operation, with ``left_over`` still to come after it."""
        count = len(self.open)
        least = max(0, count - left_over)  # how many open quantities this step must use
        draw = self.random()
        if draw < 0.45 and count >= 2:
            use = 2
        elif draw < 0.85:
            use = 1
        else:
            use = 0

        use = min(max(use, least), count)
        if use == 2:
            one = self.pick_noun(self.open)
            self.add_combination(one, self.pick_noun([noun for noun in self.open if noun != one]))
            return
        if use == 0:
            left = self.known_quantity()
        elif self.random() < 0.5:
            left = self.open[-1]
        else:
            left = self.pick_noun(self.open)

        if self.random() < 0.35:
            in_order = self.random() < 0.7
            known = self.known_quantity(left)
            if in_order:
                self.add_combination(left, known)
            else:
                self.add_combination(known, left)
            return

        first = int(self.random() * 3)
        for turn in range(3):
            kind = ("plus", "minus", "times")[(first + turn) % 3]
            constant = self.constant_in_range(left, kind)
            if constant is not None:
                self.add_derived(kind, left, constant)
                return
        raise _Stuck

    def add_cancelling(self, left_over: int) -> bool:
        """``u = x + y; z = u - y``: z is right whatever y is. True if it fits with ``left_over`` steps to come."""
        if len(self.open) - 1 > left_over + 1:
            return False
        y = self.pick_noun(self.open)
        others = [noun for noun in self.open if noun != y]
        x = self.pick_noun(others) if others else self.add_given()
        if self.modulus is None and self.values[x] + self.values[y] > self.max_value:
            raise _Stuck
        u = self.add_derived("sum", x, y)
        self.add_derived("difference", u, y)
        self.closed = [noun for noun in self.closed if noun not in (y, u)]  # nothing else may rest on them
        return True

    def add_distractor(self) -> None:
        """A fact that the question does not need: a given one, rarely a derived one."""
        if self.random() < 0.9:
            self.add_given()
            self.facts.insert(self.draw_between(0, len(self.facts) - 1), self.facts.pop())
            return
        left = self.pick_noun(list(self.values))
        kind = ("plus", "minus")[int(self.random() * 2)]
        constant = self.constant_in_range(left, kind)
        if constant is not None:
            self.add_derived(kind, left, constant)
            defined = next(i for i, fact in enumerate(self.facts) if fact.target == left)
            self.facts.insert(self.draw_between(defined + 1, len(self.facts) - 1), self.facts.pop())


def draw_problem(
    rng: random.Random,
    operations: int,
    *,
    family: str,
    modulus: int | None = None,
    max_value: int = 99,
    distractors: tuple[int, int] = (0, 2),
    shuffle: float = 0.25,
    cancel: float = 0.05,
) -> Problem:
    """Draw a problem with this many operations; every value lies in 1..max_value, or in 0..modulus-1."""
    motif = 1 + int(rng.random() * (operations - 2)) if operations >= 3 and rng.random() < cancel else -1
    while True:
        draft = _Draft(rng, modulus, max_value)
        steps_done = 0
        try:
            while steps_done < operations:
                if steps_done == motif and draft.add_cancelling(operations - steps_done - 2):
                    steps_done += 2
                else:
                    draft.add_step(operations - steps_done - 1)
                    steps_done += 1
        except _Stuck:
            continue

        question = draft.open[-1]
        for _ in range(draft.draw_between(*distractors)):
            draft.add_distractor()
        if rng.random() < shuffle:
            rng.shuffle(draft.facts)
        return assemble_problem(tuple(draft.facts), question, family=family, modulus=modulus)
