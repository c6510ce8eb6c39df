"""Warnings for a source that has too few test problems to show what training changed. Reads no file."""

from __future__ import annotations

from cotrain.core.statistics import FEW_TESTED
from cotrain.core.types import TaskSource, has_split
from cotrain.core.verbosity import count_of

FEW_QUESTIONS = 200  # fewer of them are cut into splits by exact counts


def few_test_problems_note(source: TaskSource) -> list[str]:
    """The note that is printed before a run or a comparison whose test problems are too few; [] where there are
    enough."""
    tested = source.size("test") if has_split(source, "test") else None
    if tested is None or tested >= FEW_TESTED:
        return []
    return [f"note: {few_test_problems_text(tested)}"]


def few_test_problems_text(tested: int) -> str:
    """Explain what so few test problems mean, and what to do."""
    return (
        f"{count_of(tested, 'test problem')}: the figures before and after say next to nothing; give a directory with "
        f"train.jsonl and test.jsonl, or more rows ({FEW_QUESTIONS} make {FEW_TESTED} test problems)"
    )
