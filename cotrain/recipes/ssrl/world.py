"""A world of facts that never change, and questions about it that do not say them.

::

    world      There are 12 apples. There are 4 more pears than apples. …     the same for every task
    question   There are 5 more kites than pears. How many kites are there?   21

Whoever answers must know the facts or look them up (``library``): so a model can learn them and be its own search
engine. Some nouns are given a count, others rest on one that is, which takes another look-up. A question adds one
fact about a noun outside of the world. Splits are disjoint by a hash of the question. One wording; values up to 99.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import rng_of
from cotrain.core.types import Task
from cotrain.data.word_problems.problem import CONSTANT_MAX, GIVEN_MAX, Fact, Problem, assemble_problem
from cotrain.data.word_problems.source import ATTEMPTS, BUCKETS, WordGrader, text_bucket
from cotrain.data.word_problems.wording import NOUNS, PLAIN, fact_sentence

SPLITS = ("train", "validation", "test")
MOST = 99  # the largest value of a question's answer
UNKNOWN = "Nothing is known."  # what a search for anything else finds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldGrader(WordGrader):
    """Grades answers and steps, and knows the whole world, of which the problem holds what the question needs."""

    library: Mapping[str, str]  # noun → the sentence about it

    def look_up(self, noun: str) -> str:
        """Return what a search engine answers."""
        return self.library.get(noun.strip(), UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An endless source of questions about one world. Raises ConfigError for sizes that leave nothing to ask."""

    nouns: int = 12  # that the world has facts about
    derived: int = 4  # of these, nouns that rest on one that is given
    seed: int = 0  # of the world
    name: str = field(default="world", init=False)

    def __post_init__(self) -> None:
        if not 2 <= self.nouns <= len(NOUNS) // 2 or not 0 <= self.derived < self.nouns:
            raise ConfigError(
                f"world: nouns is {self.nouns} and derived {self.derived}, expected 2..{len(NOUNS) // 2} nouns, of "
                "which fewer are derived",
                code="E_SETTING_RANGE",
            )

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All that is known, each fact behind the one that it rests on."""
        return _draw_facts(self.nouns, self.derived, self.seed)

    @property
    def library(self) -> dict[str, str]:
        """Noun → the sentence about it."""
        return {fact.target: fact_sentence(PLAIN, fact) for fact in self.facts}

    def get(self, split: str, index: int) -> Task:
        """The same task for the same (split, index), always; ``prompt`` is the question alone. Raises UnknownName for a
        split, IndexError below 0."""
        self.size(split)
        if index < 0:
            raise IndexError(f"world: index {index} of split {split!r} is negative; indices start at 0")
        for attempt in range(ATTEMPTS):
            problem = self._draw_question(split, index, attempt)
            if problem is None:
                continue
            prompt = f"{fact_sentence(PLAIN, problem.facts[-1])} {PLAIN.question.format(t=problem.question)}"
            if text_bucket(prompt) in BUCKETS[split]:
                return Task(
                    id=f"world/{split}/{index}",
                    prompt=prompt,
                    gold=str(problem.answer),
                    solution=problem.solution,
                    difficulty=float(len(problem.needed)),
                    grader=WorldGrader(problem=problem, library=self.library),
                )
        raise ConfigError(
            f"world: no question for {split}/{index} in {ATTEMPTS} draws; give it more nouns than {self}",
            code="E_WORLD_TOO_NARROW",
        )

    def size(self, split: str) -> int | None:
        """Endless; raises UnknownName for a split that there is not."""
        if split not in SPLITS:
            raise UnknownName("split of world", split, SPLITS)
        return None

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "settings": {k: v for k, v in asdict(self).items() if k != "name"}}

    def _draw_question(self, split: str, index: int, attempt: int) -> Problem | None:
        """The needed facts of the world and the question's own, last; None where a value is out of range."""
        rng = rng_of("world", self.seed, split, index, attempt)
        known_nouns = {fact.target for fact in self.facts}
        target = rng.choice([noun for noun in NOUNS if noun not in known_nouns])
        left, other = rng.sample([fact.target for fact in self.facts], 2)
        kind = rng.choice(("plus", "minus", "sum", "difference"))
        right = other if kind in ("sum", "difference") else 2 + int(rng.random() * (CONSTANT_MAX - 1))
        new = Fact(target=target, kind=kind, left=left, right=right)
        needed = {left, right}
        for fact in reversed(self.facts):
            needed |= {fact.left} if fact.target in needed else set()
        facts = (*(fact for fact in self.facts if fact.target in needed), new)
        problem = assemble_problem(facts, target, family=PLAIN.name)
        return problem if 1 <= problem.answer <= MOST else None


@lru_cache(maxsize=64)
def _draw_facts(nouns: int, derived: int, seed: int) -> tuple[Fact, ...]:
    rng = rng_of("world", seed)
    found: list[Fact] = []
    for place, noun in enumerate(rng.sample(NOUNS, nouns)):
        if place < nouns - derived:
            found.append(Fact(target=noun, kind="given", right=2 + int(rng.random() * (GIVEN_MAX - 1))))
        else:
            constant = 2 + int(rng.random() * (CONSTANT_MAX - 1))
            found.append(
                Fact(target=noun, kind="plus", left=rng.choice(found[: nouns - derived]).target, right=constant)
            )
    return tuple(found)


def world_grader_of(task: Task) -> WorldGrader:
    """The world of a task. Raises ConfigError for a task that is not of this source."""
    if not isinstance(task.grader, WorldGrader):
        raise ConfigError(f"task {task.id} asks about no world; expected --tasks world", code="E_TASKS_UNSUITED")
    return task.grader
