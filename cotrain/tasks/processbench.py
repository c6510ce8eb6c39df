"""ProcessBench (arXiv 2412.06559): solutions by many models, each with the index of its first wrong step.

Rows: ``problem``, ``steps`` (list of text), ``label`` (0-based index of the first wrong step, −1 when all are right), and where
there are ``id``, ``split`` and ``final_answer_correct``. The label says nothing of the steps after the first wrong one, and a
right final answer may follow a wrong step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.core.errors import DataError
from cotrain.tasks.hub import hub_rows, is_hub_name
from cotrain.tasks.rows import kind_of, lines_of, object_of, text_of

HUB = "Qwen/ProcessBench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One solution to be judged."""

    id: str
    split: str  # "gsm8k", "math", "olympiadbench", "omnimath"
    problem: str
    steps: tuple[str, ...]  # [K >= 1]
    label: int  # first wrong step in 0 … K − 1, −1 for none
    final_answer_correct: bool | None  # None where the row does not say


def read_samples(paths: Sequence[str]) -> list[Sample]:
    """The samples of files, of all ``.jsonl`` files of directories, or of a data set of the Hub.

    Raises DataError with file, row and field; also for an id that occurs twice.
    """
    found: list[Sample] = []
    for path in paths:
        if is_hub_name(path):
            for split, rows in hub_rows(path).items():
                found += [sample_of(row, f"{path}, {split}, row {n}", split) for n, row in enumerate(rows, start=1)]
            continue
        folder = Path(path).expanduser().resolve()
        files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
        if not files:
            raise DataError(f"{folder}: no .jsonl file in this directory; expected those of ProcessBench")
        for file in files:
            for number, line in lines_of(file):
                where = f"{file}, row {number}"
                found.append(sample_of(object_of(line, where), where, file.name.partition(".")[0]))
    if not found:
        raise DataError(f"{', '.join(paths)}: no rows; expected JSON lines with 'problem', 'steps' and 'label'")
    seen: set[str] = set()
    for sample in found:
        if sample.id in seen:
            raise DataError(f"{', '.join(paths)}: id {sample.id!r} occurs twice; give each file once")
        seen.add(sample.id)
    return found


def sample_of(row: dict[str, Any], where: str, split: str) -> Sample:
    """One row, checked. ``split``: where the row does not say. Raises DataError that begins with ``where``."""
    for column in ("problem", "steps", "label"):
        if column not in row:
            raise DataError(f"{where}: no field {column!r} (there are: {', '.join(map(repr, row)) or 'none'})")
    steps, label, final = row["steps"], row["label"], row.get("final_answer_correct")
    if not isinstance(steps, list) or not steps:
        raise DataError(f"{where}, field 'steps': expected a list of at least one text, found {kind_of(steps)}")
    texts = tuple(text_of(step, f"{where}, field 'steps', {i}", numbers=False) for i, step in enumerate(steps))
    if not isinstance(label, int) or isinstance(label, bool) or not -1 <= label < len(texts):
        raise DataError(f"{where}, field 'label': expected −1 … {len(texts) - 1}, found {label!r}")
    if final is not None and not isinstance(final, bool):
        raise DataError(f"{where}, field 'final_answer_correct': expected true or false, found {kind_of(final)}")
    name = str(row.get("split", split))
    return Sample(
        id=str(row.get("id", where)),
        split=name,
        problem=text_of(row["problem"], f"{where}, field 'problem'", numbers=False),
        steps=texts,
        label=label,
        final_answer_correct=final,
    )
