"""Read the rows of a data file, one by one: the first malformed one is an error, or each is set aside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cotrain.core.errors import DataError, RowError
from cotrain.data.columns import Row, plain_name, row_of
from cotrain.data.malformed_rows import SHOWN, Quarantine, RefusedRow
from cotrain.data.row_files import RawRow, format_of, lines_of, object_of

T = TypeVar("T")


class RowReader(NamedTuple):
    """How an object of a file becomes a row."""

    read: Callable[[dict[str, Any], str], Row]  # (object, where it is); raises DataError
    fields: str  # what it expects, in words


def row_reader(question: str, answer: str, may_lack_answer: bool = False) -> RowReader:
    """Questions and answers in these columns, see ``columns.py``."""

    def read(row: dict[str, Any], where: str) -> Row:
        return row_of(row, question, answer, where, may_lack_answer)

    return RowReader(read, f"{plain_name(question)!r} and {plain_name(answer)!r}")


def read_rows(path: Path, reader: RowReader, aside: Quarantine | None = None) -> list[Row]:
    """Read and check all rows of a file. Raises DataError with file, row (counted from 1) and, for broken JSON, column;
    with ``aside`` a malformed row is set aside there instead."""
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
    """Return ``read(object, where)`` of each line. A line that it refuses is set ``aside``, with the code of the error;
    without that DataError is raised, and RowError of the same code where other lines can be read, so that setting this
    one aside would help."""
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
            row = RefusedRow(where=where, reason=str(error), row=_row_text(line), code=error.code)
            aside.refused.append(row)
        else:
            if aside is not None:
                aside.read += 1
    return results


def _can_read_any(lines: Iterator[tuple[str, RawRow]], read: Callable[[dict[str, Any], str], Any]) -> bool:
    """Whether one of the remaining lines is a row."""
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
