"""A file of a user's to which rows are appended: one JSON object a line, by any number of processes at once.

Nothing that stands in it is ever cut. A last line without its newline gets one where it is a whole row; a file that
holds anything else than rows of its kind is refused before anything is written. Each row is written under a lock of the
system on the file; where the disk takes only a part of it, that part is taken back, and nothing before it. Where the
file was moved away or removed meanwhile, as programs that rotate logs do, its name gets a new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from cotrain.core.errors import DataError
from cotrain.core.input_files import MOST_LINE, MOST_ROW
from cotrain.storage.file_ops import REAL_FILES, DiskError, Files, is_at, make_directory, report_disk_errors, write_all
from cotrain.storage.jsonl import encode_row

PRIVATE = 0o600  # mode of a file that is made here: what it holds is for its owner
OF_A_RUN = ("recipe.json", "compare.json", "study.json", "seal.json")  # one of them next to a file: it may be a run's


class RecordFile:
    """Appends rows to a file of the user's, which is made where it is not there."""

    def __init__(self, path: Path, *, field: str, files: Files = REAL_FILES) -> None:
        """``field``: what every row of such a file has. Raises DataError for a file that is something else, DiskError
        for one that cannot be opened."""
        self.path = path
        self._field = field
        self._files = files
        self._file: FileIO = self._open()

    def _open(self) -> FileIO:
        _check_kind(self.path, self._field)
        with report_disk_errors(f"open {self.path}"):
            make_directory(self._files, self.path.parent)
            if not self.path.exists():
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE))
            return self._files.open(self.path, "ab")

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row. Raises DiskError; no part of the row then stays in the file."""
        if not is_at(self._file.fileno(), self.path):
            self._open_again()
        with report_disk_errors(f"write to {self.path}", lambda: "rows written before are safe"), self._locked():
            end = os.fstat(self._file.fileno()).st_size
            line = encode_row(row) if self._ends_with_newline(end) else b"\n" + encode_row(row)
            try:
                write_all(self._files, self._file, line)
            except OSError:
                with suppress(OSError):
                    self._files.truncate(self._file, end)
                raise

    def close(self) -> None:
        self._file.close()

    def _open_again(self) -> None:
        """Another file has this name by now, or none has. Raises DiskError for one that rows are not appended to."""
        try:
            file = self._open()
        except DataError as error:
            raise DiskError(
                f"{error} (it took the place of the file that was opened)", code="E_RECORD_REPLACED"
            ) from error
        self._file.close()
        self._file = file

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _ends_with_newline(self, size: int) -> bool:
        """Whether the last row is ended, also where another process has written it meanwhile."""
        if size == 0:
            return True
        with self.path.open("rb") as reader:
            reader.seek(size - 1)
            return reader.read(1) == b"\n"


def _check_kind(path: Path, field: str) -> None:
    """Raise DataError for what is no file of such rows."""
    real = Path(os.path.realpath(path))
    if path.suffix.lower() not in ("", ".jsonl", ".json", ".ndjson"):
        raise DataError(
            f"{path}: rows are appended to JSON lines; give a file whose name ends in .jsonl", code="E_RECORD_NOT_JSONL"
        )
    if any((folder / name).is_file() for folder in (real.parent, real.parent.parent) for name in OF_A_RUN):
        raise DataError(
            f"{path} is in the directory of a run, whose files are its own; give a file elsewhere",
            code="E_RECORD_IN_RUN",
        )
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({(error.strerror or str(error)).lower()}); give another file",
            code="E_RECORD_UNREADABLE",
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(
            f"{path} is no regular file; rows are appended to a file of JSON lines, give another",
            code="E_RECORD_NOT_REGULAR",
        )
    for where, line in _first_and_last_line(path, status.st_size):
        if not _is_row(line, field):
            raise DataError(
                f"{path}: its {where} line is no row with {field!r}, and rows are appended to a file of such rows "
                "alone; mend it, or give another file",
                code="E_RECORD_OTHER_ROWS",
            )


def _first_and_last_line(path: Path, size: int) -> list[tuple[str, bytes]]:
    """The lines that tell what a file is; none of an empty one."""
    if size == 0:
        return []
    with path.open("rb") as file:
        first = file.readline(MOST_LINE)
        return [("first", first), ("last", _last_line(file, size))]


def _last_line(file: BinaryIO, size: int) -> bytes:
    """The last line that holds anything, looked for from the end in steps that double."""
    reach = MOST_ROW
    while True:
        file.seek(max(0, size - reach))
        _, newline, last = file.read(reach).rstrip(b"\r\n").rpartition(b"\n")
        if newline or reach >= min(size, MOST_LINE):
            return last
        reach *= 2


def _is_row(line: bytes, field: str) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and field in row
