"""Malformed rows of a data file: the first one ends the reading, or, with ``--lenient``, each is set aside with its
reason and counted.

``quarantine.jsonl`` has one object a row that was set aside: ``where`` (file and row), ``reason`` (what the strict
reader says), ``row``, the line as it is, up to ``SHOWN`` characters, in which bytes that are no UTF-8 are written
``\\xNN``, and ``code``, that of the strict reader's error. Mend the lines, or leave them out: rows read and rows set
aside add up to the lines that are not blank.

Left out: leniency about whole files (one that is missing, packed wrongly or empty is an error either way).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cotrain.core.errors import DataError, RowError, UserError
from cotrain.core.types import TaskSource
from cotrain.data.columns import Row, plain_name, row_of
from cotrain.data.row_files import RawRow, format_of, lines_of, object_of

SHOWN = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that was set aside."""

    where: str
    reason: str
    row: str
    code: str = RowError.code  # code of the error that the strict reader ends with


@dataclass(slots=True)
class Quarantine:
    """Collects what is set aside while files are read, and how many rows were read."""

    refused: list[RefusedRow] = field(default_factory=list)
    read: int = 0

    def check_share(self, path: str | Path) -> None:
        """Raises DataError where more rows were set aside than read: then it is the format that is wrong, not the
        rows."""
        if len(self.refused) > self.read:
            total = self.read + len(self.refused)
            raise DataError(
                f"{path}: {len(self.refused)} of {total} rows cannot be read, and at most half may be left out; the "
                f"first: {self.refused[0].reason}",
                code="E_TOO_MANY_BAD_ROWS",
            )

    def summary_line(self) -> str:
        """The summary, in one line, of the rows that were left out."""
        count = len(self.refused)
        total = self.read + count
        verb = "is" if count == 1 else "are"
        return f"{count} of {total} rows cannot be read and {verb} left out; the first: {self.refused[0].reason}"

    def write(self, path: str | Path) -> None:
        """Write all that was set aside as JSON lines; the file is there whole or not at all. Raises UserError."""
        target = Path(path)
        staging = target.with_name(f".{target.name}.staging")
        try:
            with staging.open("w", encoding="utf-8") as stream:
                stream.writelines(json.dumps(asdict(one), ensure_ascii=True) + "\n" for one in self.refused)
                stream.flush()
                os.fsync(stream.fileno())
            staging.replace(target)
        except OSError as error:
            raise UserError(
                f"{target}: cannot be written ({error.strerror}); name another file", code="E_QUARANTINE_UNWRITABLE"
            ) from error


def quarantine_of(tasks: TaskSource) -> Quarantine | None:
    """The rows that a task source refused; None for a source that reads no rows, such as a generator of problems."""
    quarantine = getattr(tasks, "quarantine", None)
    return quarantine if isinstance(quarantine, Quarantine) else None


class RowReader(NamedTuple):
    """How an object of a file becomes a row."""

    read: Callable[[dict[str, Any], str], Row]  # (object, where it is); raises DataError
    fields: str  # what it expects, in words


def row_reader(question: str, answer: str, unanswered: bool = False) -> RowReader:
    """Questions and answers in these columns, see ``columns.py``; ``unanswered``: rows without an answer are
    allowed."""
    fields = f"{plain_name(question)!r} and {plain_name(answer)!r}"
    return RowReader(lambda row, where: row_of(row, question, answer, where, unanswered), fields)


def read_rows(path: Path, reader: RowReader, aside: Quarantine | None = None) -> list[Row]:
    """Read and check a file of JSON lines, ``.gz`` or plain, or of parquet. Blank lines are allowed, and so is a byte
    order mark.

    Raises DataError with file, row (counted from 1) and, for broken JSON, column: no such file, not a file, empty, not
    UTF-8, a NUL, broken JSON, a row that is no object, a field that is missing or of the wrong type. With ``aside``
    those that are about a row are set aside there.
    """
    lines = list(numbered_lines(path))
    if not lines:
        raise DataError(
            f"{path}: no rows; expected {format_of(path)} with the fields {reader.fields}", code="E_DATA_EMPTY"
        )
    return parse_rows(lines, reader.read, aside)


def numbered_lines(path: Path) -> Iterator[tuple[str, RawRow]]:
    """The lines of a file, each with where it is. Raises DataError, see ``lines_of``."""
    return ((f"{path}, row {number}", line) for number, line in lines_of(path))


def parse_rows(
    lines: Iterable[tuple[str, RawRow]], read: Callable[[dict[str, Any], str], T], aside: Quarantine | None = None
) -> list[T]:
    """Return ``read(object, where)`` of each line. Raises DataError for the first line that it refuses, or sets the
    line ``aside``; a RowError where other rows can be read, so that setting it aside would help."""
    results: list[T] = []
    remaining = iter(lines)
    for where, line in remaining:
        try:
            results.append(read(object_of(line, where), where))
        except DataError as error:
            if aside is None and (results or _can_read_any(remaining, read)):
                raise RowError(str(error), code=error.code) from error
            if aside is None:
                raise
            aside.refused.append(RefusedRow(where=where, reason=str(error), row=_row_text(line)))
        else:
            if aside is not None:
                aside.read += 1
    return results


def _can_read_any(lines: Iterator[tuple[str, RawRow]], read: Callable[[dict[str, Any], str], Any]) -> bool:
    """Whether one of these lines is a row."""
    try:
        for where, line in lines:
            with suppress(DataError):
                read(object_of(line, where), where)
                return True
    except DataError:  # the file itself cannot be read on
        pass
    return False


def _row_text(line: RawRow) -> str:
    if isinstance(line, bytes):
        return line[: 4 * SHOWN].decode("utf-8", "backslashreplace")[:SHOWN]
    return json.dumps(line, default=str)[:SHOWN]
