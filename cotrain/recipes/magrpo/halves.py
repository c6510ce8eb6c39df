"""A task that needs two: each of two agents sees half of the numbers, and both are to say what all of them add up to.

    Alice sees 3, 1    Bob sees 2, 4    right: 10

Nobody can do it alone. Without a message the best guess of Alice is right as often as the likeliest sum of Bob's
numbers is drawn (``guessing_accuracy``); an agent that sees all numbers can always be right. Numbers are 1 …
``largest``, ``count`` for each agent. Splits are disjoint by a hash of all numbers.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import rng_of
from cotrain.core.types import Grade, StepVerdicts, Task
from cotrain.data.word_problems.oracle import parse_integer
from cotrain.formats.answers import final_answer

SPLITS = {"train": range(0, 80), "validation": range(80, 90), "test": range(90, 100)}  # buckets of 100
ATTEMPTS = 5000
FEW = 1000  # combinations, below which nothing can be held out: all splits have all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvesGrader:
    """Grades an answer, and holds the numbers that each agent sees."""

    numbers: tuple[tuple[int, ...], tuple[int, ...]]  # [2] one tuple for each agent

    @property
    def total(self) -> int:
        return sum(map(sum, self.numbers))

    def view(self, agent: int) -> str:
        return ", ".join(map(str, self.numbers[agent]))

    def grade(self, task: Task, text: str) -> Grade:
        answer = parse_integer((final_answer(text) or "").strip())
        if answer is None:
            return Grade(value=False, reason="no answer")
        return Grade(value=answer == self.total)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


class Halves:
    """Endless; the same task for the same (split, index). Raises ConfigError for sizes that leave nothing to say."""

    def __init__(self, count: int = 1, largest: int = 4) -> None:
        if not 1 <= count <= 4 or not 3 <= largest <= 99:
            raise ConfigError(
                f"halves: count is {count} and largest {largest}, expected 1..4 and 3..99", code="E_SETTING_RANGE"
            )
        self.count = count
        self.largest = largest

    @property
    def name(self) -> str:
        return "halves"

    @property
    def guessing_accuracy(self) -> float:
        """Share of right answers of an agent that is told nothing and guesses best."""
        sums = Counter(map(sum, product(range(1, self.largest + 1), repeat=self.count)))
        return max(sums.values()) / self.largest**self.count

    def get(self, split: str, index: int) -> Task:
        self.size(split)
        if index < 0:
            raise IndexError(f"halves: index {index} of split {split!r} is negative; indices start at 0")
        for attempt in range(ATTEMPTS):
            rng = rng_of("halves", split, index, attempt)
            numbers = tuple(1 + int(rng.random() * self.largest) for _ in range(2 * self.count))
            grader = HalvesGrader(numbers=(numbers[: self.count], numbers[self.count :]))
            if self.largest ** (2 * self.count) < FEW or zlib.crc32(str(numbers).encode()) % 100 in SPLITS[split]:
                break
        prompt = f"{grader.view(0)} | {grader.view(1)}"
        return Task(
            id=f"halves/{split}/{index}",
            prompt=prompt,
            gold=str(grader.total),
            solution=None,
            difficulty=1.0,
            grader=grader,
        )

    def size(self, split: str) -> int | None:
        if split not in SPLITS:
            raise UnknownName("split of halves", split, SPLITS)
        return None

    def describe(self) -> dict[str, Any]:
        return {"kind": "halves", "settings": {"count": self.count, "largest": self.largest}}


def halves_grader_of(task: Task) -> HalvesGrader:
    """Who sees what. Raises ConfigError for a task that is not of this source."""
    if not isinstance(task.grader, HalvesGrader):
        raise ConfigError(f"task {task.id} is not seen by halves; expected --tasks halves", code="E_TASKS_UNSUITED")
    return task.grader
