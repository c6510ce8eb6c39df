"""Warnings for a source that has too few test problems to show what training changed. Reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    if not _reads_a_file(source.describe()):
        return [f"note: {_few_text(tested)}"]
    return [f"note: {few_test_rows_text(tested)}"]


def few_test_rows_text(tested: int) -> str:
    """Explain what so few test problems of a file mean, and what to do."""
    return (
        f"{_few_text(tested)}; give a directory with train.jsonl and test.jsonl, or more rows with an answer "
        f"({FEW_QUESTIONS} make {FEW_TESTED} test problems)"
    )


def _few_text(tested: int) -> str:
    return f"{count_of(tested, 'test problem')}: the figures before and after say next to nothing"


def _reads_a_file(description: Mapping[str, Any]) -> bool:
    """Whether a source, as it describes itself, reads a file, or one of the sources does on which it rests."""
    settings = description.get("settings", {})
    if "path" in settings:
        return True
    inner = [value for value in settings.values() if isinstance(value, Mapping) and "settings" in value]
    return any(_reads_a_file(value) for value in inner)
