"""ProcessBench (arXiv 2412.06559): solutions by many models, each with the index of its first wrong step.

Rows: ``problem``, ``steps`` (list of text), ``label`` (0-based index of the first wrong step, −1 when all are right),
and where there are ``id``, ``split`` and ``final_answer_correct``. The label says nothing of the steps after the first
wrong one, and a right final answer may follow a wrong step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cotrain.core.errors import DataError
from cotrain.core.input_files import absolute_path
from cotrain.data.hub import hub_rows, is_hub_name
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.read_rows import numbered_lines, parse_rows
from cotrain.data.row_files import RawRow, files_in, kind_of, split_named_by, text_of
from cotrain.data.unread_columns import check_lost_parts, unread_columns

HUB = "Qwen/ProcessBench"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSolution:
    """One solution to be judged."""

    id: str
    split: str  # "gsm8k", "math", "olympiadbench", "omnimath"
    problem: str
    steps: tuple[str, ...]  # [K >= 1]
    label: int  # first wrong step in 0 … K − 1, −1 for none
    final_answer_correct: bool | None  # None where the row does not say
    unread: tuple[str, ...] = ()  # columns that have a value and were not read
    wrong: tuple[int, ...] | None = None  # all wrong steps, from 0; None where the row names the first one only


Reader = Callable[[dict[str, Any], str, str], FixedSolution]


def read_samples(paths: Sequence[str], aside: Quarantine | None = None) -> list[FixedSolution]:
    """The samples of files, of all files of directories, or of a data set of the Hub.

    Raises DataError with file, row and field, or sets such a row ``aside``; also for an id that occurs twice.
    """
    samples = read_all_rows(paths, "ProcessBench", solution_of_row, aside)
    if not samples:
        raise DataError(
            f"{', '.join(paths)}: no rows; expected JSON lines with 'problem', 'steps' and 'label'", code="E_DATA_EMPTY"
        )
    seen_ids: set[str] = set()
    for sample in samples:
        if sample.id in seen_ids:
            raise DataError(
                f"{', '.join(paths)}: id {sample.id!r} occurs twice; give each file once", code="E_SAMPLE_TWICE"
            )
        seen_ids.add(sample.id)
    return samples


def read_all_rows(paths: Sequence[str], kind: str, read: Reader, aside: Quarantine | None) -> list[FixedSolution]:
    """Return ``read(row, where, split)`` of every row; ``split`` is the name of its file or split. Raises DataError for
    the first row that it refuses, or sets such rows ``aside``."""
    samples: list[FixedSolution] = []
    for split, lines in _split_files(paths, kind):
        samples += parse_rows(lines, partial(_read_with_split, read, split), aside)
    if aside is not None:
        aside.check_share(", ".join(paths))
    return samples


def _read_with_split(read: Reader, split: str, row: dict[str, Any], where: str) -> FixedSolution:
    return read(row, where, split)


def _split_files(paths: Sequence[str], kind: str) -> Iterator[tuple[str, Iterator[tuple[str, RawRow]]]]:
    for path in paths:
        if is_hub_name(path):
            for split, rows in hub_rows(path).items():
                yield split, ((f"{path}, {split}, row {n}", row) for n, row in enumerate(rows, start=1))
            continue
        folder = absolute_path(path)
        files = files_in(folder) if folder.is_dir() else [folder]
        if not files:
            raise DataError(
                f"{folder}: no .jsonl or .parquet file in this directory; expected those of {kind}",
                code="E_DATA_DIRECTORY_EMPTY",
            )
        for file in files:
            yield split_named_by(file), numbered_lines(file)


def steps_of(row: dict[str, Any], column: str, where: str) -> tuple[str, ...]:
    """The texts of a solution's steps, at least one. Raises DataError."""
    steps = row[column]
    if not isinstance(steps, list) or not steps:
        raise DataError(
            f"{where}, field {column!r}: expected a list of at least one text, found {kind_of(steps)}",
            code="E_STEPS_NOT_TEXTS",
        )
    return tuple(text_of(step, f"{where}, field {column!r}, {i}", numbers=False) for i, step in enumerate(steps))


def solution_of_row(row: dict[str, Any], where: str, split: str) -> FixedSolution:
    """One row, checked. ``split``: where the row does not say. Raises DataError that begins with ``where``."""
    for column in ("problem", "steps", "label"):
        if column not in row:
            raise DataError(
                f"{where}: no field {column!r} (there are: {', '.join(map(repr, row)) or 'none'})",
                code="E_FIELD_MISSING",
            )
    texts = steps_of(row, "steps", where)
    label = row["label"]
    final = row.get("final_answer_correct")
    if not isinstance(label, int) or isinstance(label, bool) or not -1 <= label < len(texts):
        raise DataError(
            f"{where}, field 'label': expected −1 … {len(texts) - 1}, found {label!r}", code="E_STEP_LABELS"
        )
    if final is not None and not isinstance(final, bool):
        raise DataError(
            f"{where}, field 'final_answer_correct': expected true or false, found {kind_of(final)}",
            code="E_FIELD_NOT_BOOLEAN",
        )
    read = ["problem", "steps", "label", "final_answer_correct", "id", "split"]
    check_lost_parts(row, read, where)
    name = str(row.get("split", split))
    return FixedSolution(
        id=str(row.get("id", where)),
        split=name,
        problem=text_of(row["problem"], f"{where}, field 'problem'", numbers=False),
        steps=texts,
        label=label,
        final_answer_correct=final,
        unread=unread_columns(row, read),
    )
