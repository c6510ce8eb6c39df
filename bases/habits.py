"""``python -m bases --habits``: ``shipped-habits``, a solver with two habits that are wrong. ``--step-habits``: a
solver with a wrong habit that every step triggers.

    shipped-checker → supervised: its solutions follow a habit in 60 % of the steps that trigger it; true reviews
      → sharpening of the logits

The habits are of ``data/word_problems/corrupt.py``:

- ``shipped-habits``: "carry" drops the carry of an addition, "fewer" adds in place of subtracting in one wording.
  Sampled and greedy solutions follow a habit in about half of the steps that trigger it, and are right equally often
  (``benchmarks/habit_rates.py``): lower entropy alone gains nothing.
- ``base-step-habits``: "opposite" takes the opposite operation, which any step can trigger. So a right step is common
  and a right answer of five steps hardly ever sampled. It does not ship.

Reviews are practised beside it, all of them true and of errors of skill: nobody shows the verifier the habits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bases.base import BATCH
from bases.taught_on import Lesson, teach_on
from bases.words_corpus import solver_conversation
from cotrain.core.shipped import SHIPPED_CHECKER
from cotrain.data.word_problems.corrupt import Habits
from cotrain.data.word_problems.practice import check_practice
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.pretraining.corpora import Corpus, procedural_corpus

NAME = "base-habits"
STEP_NAME = "base-step-habits"


@dataclass(frozen=True, slots=True, kw_only=True)
class HabitSettings(Lesson):
    """Everything this base depends on, beside the one it begins from."""

    start: str = SHIPPED_CHECKER
    problems: WordProblems = field(default_factory=lambda: study_problems((2, 9)))
    habits: Habits = field(default_factory=lambda: Habits(random=0.0, systematic=0.6))
    tokens: int = 200 * BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHabitSettings(HabitSettings):
    """The same with the habit that every step triggers, which is soon learned."""

    habits: Habits = field(default_factory=lambda: Habits(random=0.0, systematic=0.6, kinds=("opposite",)))
    tokens: int = 60 * BATCH


def build_habits(
    out: Path, settings: HabitSettings, *, resume: bool = False, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train the model into ``out/base-habits`` or ``out/base-step-habits``, described in the JSON file beside it."""
    name = STEP_NAME if isinstance(settings, StepHabitSettings) else NAME
    return teach_on(out, name, settings, conversations_of(settings), resume=resume, report=report)


def conversations_of(settings: HabitSettings) -> list[tuple[Corpus, int]]:
    """Solutions with the habits and true reviews, in equal numbers."""
    source, seed = settings.problems, settings.seed
    solve = procedural_corpus("solve", lambda i: solver_conversation(source, settings.habits, seed, i))
    check = procedural_corpus("check", lambda i: check_practice(source, "habits", seed, i))
    return [(solve, 1), (check, 1)]
