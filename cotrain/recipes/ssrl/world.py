"""A world of facts that never change, and questions that need facts of it without stating them.

::

    world      There are 12 apples. There are 4 more pears than apples. …     the same for every task
    question   There are 5 more kites than pears. How many kites are there?   21

Whoever answers must know the facts or look them up (``library``). So a model that has learned the facts can be its own
search engine. Some nouns are given a count; others are stated by such a noun, which takes another look-up. A question
adds one fact about a noun outside of the world. Splits are disjoint by a hash of the question. There is one wording,
and values go up to 99.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import rng_of
from cotrain.core.types import Task
from cotrain.data.word_problems.problem import CONSTANT_MAX, GIVEN_MAX, Fact, Problem, assemble_problem
from cotrain.data.word_problems.source import ATTEMPTS, BUCKETS, WordGrader, text_bucket
from cotrain.data.word_problems.wording import NOUNS, PLAIN, fact_sentence

SPLITS = ("train", "validation", "test")
MAX_ANSWER = 99
UNKNOWN = "Nothing is known."  # result of a search for none of the world's nouns


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldGrader(WordGrader):
    """Grades answers and steps. It knows the whole world; ``problem`` has only the facts that the question needs."""

    library: Mapping[str, str]  # noun → the sentence about it

    def look_up(self, noun: str) -> str:
        """Return a search engine's answer to a question about ``noun``."""
        return self.library.get(noun.strip(), UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An endless source of questions about one world. Raises ConfigError for sizes that leave nothing to ask."""

    nouns: int = 12  # nouns that the world has facts about
    derived: int = 4  # how many of them are stated by a noun whose count is given
    seed: int = 0  # draws the facts
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
        """All facts, each after the one that it depends on."""
        return _draw_facts(self.nouns, self.derived, self.seed)

    @property
    def library(self) -> dict[str, str]:
        """Noun → the sentence about it."""
        return {fact.target: fact_sentence(PLAIN, fact) for fact in self.facts}

    def get(self, split: str, index: int) -> Task:
        """The same task for the same (split, index), always; ``prompt`` is the question alone. Raises UnknownName for a
        split, IndexError below 0."""
        self.size(split)  # raises UnknownName
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
        """A question about a new noun: the facts of the world that it needs, and its own fact last. None where the
        answer is out of range."""
        rng = rng_of("world", self.seed, split, index, attempt)
        known_nouns = [fact.target for fact in self.facts]
        target = rng.choice([noun for noun in NOUNS if noun not in known_nouns])
        noun_1, noun_2 = rng.sample(known_nouns, 2)
        kind = rng.choice(("plus", "minus", "sum", "difference"))
        right: str | int = noun_2
        if kind in ("plus", "minus"):
            right = _draw_number(rng, CONSTANT_MAX)
        question_fact = Fact(target=target, kind=kind, left=noun_1, right=right)

        needed_nouns = {noun_1, right}
        for fact in reversed(self.facts):  # a fact stands after those that it depends on
            if fact.target in needed_nouns:
                needed_nouns.add(fact.left)
        needed_facts = [fact for fact in self.facts if fact.target in needed_nouns]
        problem = assemble_problem((*needed_facts, question_fact), target, family=PLAIN.name)
        return problem if 1 <= problem.answer <= MAX_ANSWER else None


@lru_cache(maxsize=64)
def _draw_facts(nouns: int, derived: int, seed: int) -> tuple[Fact, ...]:
    """The facts of a world: first the given counts, then the nouns that are stated by one of these."""
    rng = rng_of("world", seed)
    drawn_nouns = rng.sample(NOUNS, nouns)
    n_given = nouns - derived

    given_facts: list[Fact] = []
    for noun in drawn_nouns[:n_given]:
        given_facts.append(Fact(target=noun, kind="given", right=_draw_number(rng, GIVEN_MAX)))

    stated_facts: list[Fact] = []
    for noun in drawn_nouns[n_given:]:
        difference = _draw_number(rng, CONSTANT_MAX)
        base = rng.choice(given_facts)
        stated_facts.append(Fact(target=noun, kind="plus", left=base.target, right=difference))
    return (*given_facts, *stated_facts)


def _draw_number(rng: Random, largest: int) -> int:
    """A number from 2 to ``largest``."""
    return 2 + int(rng.random() * (largest - 1))


def world_grader_of(task: Task) -> WorldGrader:
    """The world of a task. Raises ConfigError for a task that is not of this source."""
    if not isinstance(task.grader, WorldGrader):
        raise ConfigError(f"task {task.id} asks about no world; expected --tasks world", code="E_TASKS_UNSUITED")
    return task.grader
