"""Variants of one word problem, the target: practice for a problem that nobody solves yet (AlphaProof, Nature 2025).

::

    target      There are 5 apples. There are 4 more pears than apples. There are 2 times as many nuts as pears. How …
    numbers     the same facts with other numbers, and the same question
    beginning   other numbers, a question from the middle of the chain, and the facts that this question needs

The split "train" is endless variants, "validation" and "test" are the target alone. A variant is never the target: its
facts or its question differ whatever the nouns are called (``reader.problem_signature``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import rng_of
from cotrain.core.types import Task
from cotrain.data.word_problems.problem import CONSTANT_MAX, FACTOR_MAX, GIVEN_MAX, Fact, Problem, assemble_problem
from cotrain.data.word_problems.reader import problem_signature, task_of
from cotrain.data.word_problems.source import ATTEMPTS, WordProblems

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Variants:
    """A source of one target and endless variants. Raises ConfigError for problems that have none."""

    source_settings: Mapping[str, Any]  # settings of the word problems, one of which is the target
    split: str  # split of the target
    index: int  # place of the target in it
    beginnings: float = 0.5  # share of the variants that ask for the middle of the chain
    practice: bool = True  # False: "train" is the target too, over and over
    name: str = field(default="variants", init=False)

    def __post_init__(self) -> None:
        if self.source.modulus is not None or not 0.0 <= self.beginnings <= 1.0:
            raise ConfigError(
                f"variants: modulus is {self.source.modulus} and beginnings {self.beginnings}; expected problems "
                "without a modulus, and a share in [0, 1]",
                code="E_SETTING_RANGE",
            )
        self.source.size(self.split)

    @cached_property
    def source(self) -> WordProblems:
        return WordProblems(**self.source_settings)

    @cached_property
    def target(self) -> Problem:
        return self.source.problem(self.split, self.index)

    def get(self, split: str, index: int) -> Task:
        """The same task for the same (split, index), always. Raises UnknownName for a split, IndexError past its
        size."""
        size = self.size(split)
        if index < 0 or (size is not None and index >= size):
            raise IndexError(f"variants: index {index} of split {split!r} is not in 0..{(size or 0) - 1}")
        if split != "train" or not self.practice:
            return task_of(self.target, f"variants/{split}/{index}")
        for attempt in range(ATTEMPTS):
            rng = rng_of("variants", self.split, self.index, index, attempt)
            beginning = rng.random() < self.beginnings
            candidate = draw_variant(self.target, rng, beginning=beginning, max_value=self.source.max_value)
            if candidate is not None and problem_signature(candidate) != problem_signature(self.target):
                return task_of(candidate, f"variants/train/{index}")
        raise ConfigError(
            f"variants: none of {self.split}/{self.index} in {ATTEMPTS} draws; choose another target",
            code="E_NO_VARIANT_DRAWN",
        )

    def size(self, split: str) -> int | None:
        if split not in SPLITS:
            raise UnknownName("split of variants", split, SPLITS)
        return None if split == "train" else 1

    def describe(self) -> dict[str, Any]:
        settings = {
            "source_settings": self.source.describe()["settings"],
            "split": self.split,
            "index": self.index,
            "beginnings": self.beginnings,
            "practice": self.practice,
        }
        return {"kind": self.name, "settings": settings}


def draw_variant(target: Problem, rng: Random, *, beginning: bool, max_value: int) -> Problem | None:
    """The target with other numbers; None where a value would not be in 1 … ``max_value``. ``beginning``: the question
    is drawn from the middle of the chain, where the chain has a middle."""
    question = target.question
    if beginning and len(target.needed) > 1:
        question = rng.choice(target.needed[:-1])
    facts = list(target.facts)
    if beginning:
        facts = facts_needed_by(target.facts, question)

    facts_with_numbers = tuple(_with_other_number(fact, rng) for fact in facts)
    problem = assemble_problem(facts_with_numbers, question, family=target.family)
    if not all(1 <= value <= max_value for value in problem.values.values()):
        return None
    return problem


def facts_needed_by(facts: Sequence[Fact], question: str) -> list[Fact]:
    """The facts from which the count of a noun follows, in reading order."""
    nouns = {question}
    size_before = 0
    while len(nouns) > size_before:  # until a pass over the facts adds no noun
        size_before = len(nouns)
        for fact in facts:
            if fact.target in nouns:
                nouns |= {part for part in (fact.left, fact.right) if isinstance(part, str) and part}
    return [fact for fact in facts if fact.target in nouns]


def _with_other_number(fact: Fact, rng: Random) -> Fact:
    """The fact with a number drawn from 2 … the largest that its kind may have; itself where it has no number."""
    if not isinstance(fact.right, int):
        return fact
    largest = {"given": GIVEN_MAX, "times": FACTOR_MAX}.get(fact.kind, CONSTANT_MAX)
    return replace(fact, right=2 + int(rng.random() * (largest - 1)))
