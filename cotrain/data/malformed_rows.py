"""Malformed rows of a data file, which with ``--lenient`` are set aside, each with its reason, and counted. Without it
the first one ends the reading (``read_rows.py``).

``quarantine.jsonl`` has one object a row that was set aside: ``where`` (file and row), ``reason`` (what the strict
reader says), ``row``, the line as it is, up to ``SHOWN`` characters, in which bytes that are no UTF-8 are written
``\\xNN``, and ``code``, that of the strict reader's error. Mend the lines, or leave them out: rows read and rows set
aside add up to the lines that are not blank.

Left out: leniency about whole files (one that is missing, packed wrongly or empty is an error either way).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from cotrain.core.errors import DataError
from cotrain.core.types import TaskSource
from cotrain.storage.file_ops import replace_file
from cotrain.storage.jsonl import encode_row

SHOWN = 10_000  # characters of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that was set aside."""

    where: str
    reason: str
    row: str
    code: str  # of the error that the strict reader ends with


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
        """Write all that was set aside as JSON lines; the file is there whole or not at all. Raises DiskError."""
        replace_file(Path(path), b"".join(encode_row(asdict(one)) for one in self.refused))


def quarantine_of(tasks: TaskSource) -> Quarantine | None:
    """The rows that a task source refused; None for a source that reads no rows, such as a generator of problems."""
    quarantine = getattr(tasks, "quarantine", None)
    return quarantine if isinstance(quarantine, Quarantine) else None
