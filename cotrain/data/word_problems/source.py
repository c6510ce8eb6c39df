"""The task source "words": problems addressable by (split, index), with splits that cannot overlap.

A problem belongs to a bucket 0..99 by a hash of its text. Training problems come from buckets 0-89, validation from
90-94, test and both out-of-distribution splits from 95-99; a draw that lands elsewhere is drawn again under the next
attempt number. So no text can be in two of these groups, whatever the settings of two sources are.

    train, validation, test   ``operations`` steps, wordings of ``families``
    ood_length                one or two steps more than the longest of ``operations``, at most 10
    ood_template              ``operations`` steps, wordings that no other split uses

Each task has one paraphrase: the same facts in another wording of its split, that of a training problem from the
training buckets too (none where ``families`` has one wording).
"""

from __future__ import annotations

import random
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import rng_of
from cotrain.core.types import Grade, ParseFailure, StepVerdicts, Task
from cotrain.data.word_problems import oracle, wording
from cotrain.data.word_problems.problem import Problem, draw_problem
from cotrain.formats.solutions import tagged_solution

BUCKETS: dict[str, range] = {
    "train": range(0, 90),
    "validation": range(90, 95),
    "test": range(95, 100),
    "ood_length": range(95, 100),
    "ood_template": range(95, 100),
}
LONGEST = 10  # most operations of any split
ATTEMPTS = 5000  # a bucket of 5 % is missed this often with probability 1e-111
AS_THEY_STAND = 12  # draws of a paraphrase before its facts are put in another order


def text_bucket(text: str) -> int:
    """0..99, the same on every machine."""
    return zlib.crc32(text.encode()) % 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WordGrader:
    """Grades answers and steps of one problem."""

    problem: Problem

    def grade(self, task: Task, text: str) -> Grade:
        """True if the answer tag holds exactly the right integer; no readable answer is False, "no answer"."""
        solution = tagged_solution(text)
        value = None if isinstance(solution, ParseFailure) else oracle.parse_integer(solution.answer)
        if value is None:
            return Grade(value=False, reason="no answer")
        return Grade(value=value == self.problem.answer)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts:
        """Judge each step by ``oracle.grade_steps``."""
        return oracle.grade_steps(self.problem, steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordProblems:
    """An endless source of word problems."""

    operations: tuple[int, int] = (2, 8)  # fewest and most steps
    modulus: int | None = None  # all arithmetic modulo this, and the problem says so
    max_value: int = 99  # without a modulus every value is at most this
    distractors: tuple[int, int] = (0, 2)  # facts that the question does not need
    shuffle: float = 0.25  # probability that facts are in random order
    cancel: float = 0.05  # probability of u = x + y; z = u - y, where a wrong y still leads to the right answer
    families: tuple[str, ...] | None = None  # wordings of the splits in distribution; None is all of them
    name: str = field(default="words", init=False)

    def __post_init__(self) -> None:
        for pair in ("operations", "distractors"):
            low, high = getattr(self, pair)
            object.__setattr__(self, pair, (low, high))
        if self.families is not None:
            object.__setattr__(self, "families", tuple(self.families))
            for family in self.families:
                if family not in wording.FAMILIES:
                    raise UnknownName("wording family", family, wording.FAMILIES)
        _check_settings(self)

    def problem(self, split: str, index: int) -> Problem:
        """The problem behind ``get(split, index)``."""
        self.size(split)
        if index < 0:
            raise IndexError(f"words: index {index} of split {split!r} is negative; indices start at 0")
        for attempt in range(ATTEMPTS):
            problem = self._draw_for_split(split, rng_of("words", split, index, attempt))
            if text_bucket(problem.text) in BUCKETS[split]:
                return problem
        raise ConfigError(
            f"words: no problem for {split}/{index} in {ATTEMPTS} draws; widen the settings {self}",
            code="E_WORDS_TOO_NARROW",
        )

    def get(self, split: str, index: int) -> Task:
        """The same task for the same (split, index), always. Raises UnknownName for a split, IndexError below 0."""
        problem = self.problem(split, index)
        return Task(
            id=f"words/{split}/{index}",
            prompt=problem.text,
            gold=str(problem.answer),
            solution=problem.solution,
            difficulty=float(len(problem.needed)),
            grader=WordGrader(problem=problem),
            paraphrases=self._draw_paraphrases(problem, split, index),
        )

    def size(self, split: str) -> int | None:
        """Endless; raises UnknownName for a split that there is not."""
        if split not in BUCKETS:
            raise UnknownName("split of words", split, BUCKETS)
        return None

    def describe(self) -> dict[str, Any]:
        """``WordProblems(**source.describe()["settings"])`` is this source."""
        settings = asdict(self)
        del settings["name"]
        for key, value in settings.items():
            if isinstance(value, tuple):
                settings[key] = list(value)
        return {"kind": self.name, "settings": settings}

    def training_problem(self, rng: random.Random, operations: int) -> Problem:
        """A problem of the training buckets from any generator, for corpora."""
        while True:
            problem = self._draw_problem(rng, operations, self.families or tuple(wording.FAMILIES))
            if text_bucket(problem.text) in BUCKETS["train"]:
                return problem

    def _draw_for_split(self, split: str, rng: random.Random) -> Problem:
        low, high = self.operations
        if split == "ood_length":
            low, high = high + 1, min(high + 2, LONGEST)
        return self._draw_problem(rng, low + int(rng.random() * (high - low + 1)), self._split_families(split))

    def _split_families(self, split: str) -> tuple[str, ...]:
        return tuple(wording.UNSEEN) if split == "ood_template" else self.families or tuple(wording.FAMILIES)

    def _draw_paraphrases(self, problem: Problem, split: str, index: int) -> tuple[str, ...]:
        """The same facts in another wording of the split, if it has one. For training only a text of the training
        buckets will do; where no wording gives one, the facts change their order too."""
        others = [family for family in self._split_families(split) if family != problem.family]
        rng = rng_of("words", split, index, "paraphrase")
        for attempt in range(ATTEMPTS if others else 0):
            facts = problem.facts if attempt < AS_THEY_STAND else rng.sample(problem.facts, len(problem.facts))
            text = wording.render_problem(
                wording.family_named(rng.choice(others)), facts, problem.question, problem.modulus
            )
            if split != "train" or text_bucket(text) in BUCKETS["train"]:
                return (text,)
        return ()

    def _draw_problem(self, rng: random.Random, operations: int, families: tuple[str, ...]) -> Problem:
        return draw_problem(
            rng,
            operations,
            family=families[int(rng.random() * len(families))],
            modulus=self.modulus,
            max_value=self.max_value,
            distractors=self.distractors,
            shuffle=self.shuffle,
            cancel=self.cancel,
        )


def word_problems(
    *,
    operations: tuple[int, int] = (2, 8),
    modulus: int | None = None,
    max_value: int = 99,
    distractors: tuple[int, int] = (0, 2),
    shuffle: float = 0.25,
    cancel: float = 0.05,
    families: tuple[str, ...] | None = None,
) -> WordProblems:
    """``WordProblems`` as a function, for recipes. Raises ConfigError or UnknownName for bad settings."""
    return WordProblems(
        operations=operations,
        modulus=modulus,
        max_value=max_value,
        distractors=distractors,
        shuffle=shuffle,
        cancel=cancel,
        families=families,
    )


def _check_settings(source: WordProblems) -> None:
    low, high = source.operations
    if not 1 <= low <= high <= LONGEST - 1:
        raise ConfigError(
            f"words: operations is {source.operations}, expected 1 <= low <= high <= {LONGEST - 1}",
            code="E_WORDS_SETTING_RANGE",
        )
    if source.modulus is not None and not 5 <= source.modulus <= 100:
        raise ConfigError(f"words: modulus is {source.modulus}, expected None or 5..100", code="E_WORDS_SETTING_RANGE")
    if not 20 <= source.max_value <= 9999:
        raise ConfigError(f"words: max_value is {source.max_value}, expected 20..9999", code="E_WORDS_SETTING_RANGE")
    low, high = source.distractors
    if not 0 <= low <= high <= 6:
        raise ConfigError(
            f"words: distractors is {source.distractors}, expected 0 <= low <= high <= 6", code="E_WORDS_SETTING_RANGE"
        )
    for setting in ("shuffle", "cancel"):
        if not 0.0 <= getattr(source, setting) <= 1.0:
            raise ConfigError(
                f"words: {setting} is {getattr(source, setting)}, expected a probability in 0..1",
                code="E_WORDS_SETTING_RANGE",
            )
    if source.families is not None and not source.families:
        raise ConfigError("words: families is empty; leave it None for all wordings", code="E_WORDS_SETTING_RANGE")


def study_problems(operations: tuple[int, int] = (3, 4)) -> WordProblems:
    """The problems that the shipped models are studied on: facts in order, at most one that is not needed."""
    return WordProblems(operations=operations, distractors=(0, 1), shuffle=0.0)
