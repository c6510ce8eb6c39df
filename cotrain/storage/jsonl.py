"""Files of one JSON object per line that survive being killed and can be cut back to a step.

A line counts once its newline is on disk; anything after the last newline is a torn tail, dropped by readers and cut
off by the next writer. Floats are written by ``repr``, the shortest text that reads back to the same bits, and
non-finite ones as ``null``, so that a file depends on its rows alone and every JSON reader accepts it. A run that was
killed and resumed calls ``truncate_after`` with the step of its checkpoint and then writes the same bytes again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from cotrain.core.errors import DataError, StateError
from cotrain.core.input_files import MOST_LINE, MOST_LINES, open_regular, parse_json, read_regular, whole_lines
from cotrain.storage.file_ops import (
    REAL_FILES,
    Files,
    is_at,
    lost_file_error,
    make_directory,
    read_blocks,
    replace_file,
    report_disk_errors,
    sync_appended,
    write_all,
)


class JsonlWriter:
    """Appends rows to a file, creating it and its directory if need be. A torn last line is cut off at the start."""

    def __init__(self, path: Path, *, is_watched: bool = False, files: Files = REAL_FILES) -> None:
        """``is_watched``: refuse to write on where the file of this name is not the open one any more."""
        self.path = path
        self._files = files
        self._is_watched = is_watched
        self._file: FileIO | None = None
        self._end = 0  # where the last whole row ends
        self._torn = False  # whether a part of a row stands behind that
        with report_disk_errors(f"open {path}"):
            make_directory(files, path.parent)
            if path.exists():
                content = b"".join(read_blocks(files, path))
                self._end = content.rfind(b"\n") + 1
                self._torn = path.stat().st_size > self._end
            self._file = files.open(path, "ab")

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row and hand it to the system (it survives a kill from here on, a power cut after ``sync``).

        Raises DiskError; no part of the row then stays in the file.
        """
        line = encode_row(row)
        file = self._checked_file()
        with report_disk_errors(f"write to {self.path}", lambda: "rows written before are safe"):
            try:
                if self._torn:
                    self._files.truncate(file, self._end)
                self._torn = True  # until all of the line is written
                write_all(self._files, file, line)
            except OSError:
                with suppress(OSError):  # where this fails too, the next append does it
                    self._files.truncate(file, self._end)
                    self._torn = False
                raise
        self._torn = False
        self._end += len(line)

    def sync(self) -> None:
        """Make every row so far durable; call it before the checkpoint that counts on them."""
        sync_appended(self._files, self._checked_file(), self.path, "rows")

    def close(self) -> None:
        file = self._file
        self._file = None
        if file is not None:
            file.close()

    def _checked_file(self) -> FileIO:
        if self._file is None:
            raise ValueError(f"{self.path} was closed")
        if self._is_watched and not is_at(self._file.fileno(), self.path):
            raise lost_file_error(self.path)
        return self._file

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One line of ASCII JSON in the order of the mapping, non-finite floats as null, newline included.

    Raises TypeError for what JSON has no form for (convert tensors and NumPy numbers first).
    """
    return json.dumps(_replace_nonfinite(row), allow_nan=False, separators=(", ", ": ")).encode("ascii") + b"\n"


def check_json(value: Any, where: str, *, finite: bool = True) -> None:
    """Refuse what JSON would not take or would change in silence, such as keys that are numbers.

    A tuple is accepted and comes back as a list. Raises StateError naming the place, e.g. "document 'loop'.ema[3]".
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise StateError(
                    f"{where}: key {key!r} should be a string, which it would come back as", code="E_STATE_NOT_JSON"
                )
            check_json(part, f"{where}.{key}", finite=finite)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            check_json(part, f"{where}[{index}]", finite=finite)
    elif not isinstance(value, str | int | float | None):
        raise StateError(
            f"{where}: expected a JSON value, found {type(value).__name__} {value!r:.40}", code="E_STATE_NOT_JSON"
        )
    elif finite and isinstance(value, float) and not math.isfinite(value):
        raise StateError(f"{where}: {value} is not a JSON number", code="E_STATE_NOT_JSON")


def try_read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where there is none, or it cannot be read."""
    try:
        value = json.loads(read_regular(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a file, in order; a torn last line is dropped.

    Raises DataError with file and line for a missing file, or a line that is not a JSON object.
    """
    try:
        with open_regular(path) as file:
            lines = whole_lines(file)
            return [_decode_row(path, number, line) for number, (line, _) in enumerate(lines, start=1)]
    except FileNotFoundError:
        raise DataError(f"no such file: {path}", code="E_FILE_MISSING") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({(error.strerror or str(error)).lower()}); restore it", code="E_FILE_UNREADABLE"
        ) from error


def truncate_after(path: Path, step: int, *, files: Files = REAL_FILES) -> int:
    """Keep only the rows whose "step" is at most ``step``, and rows without one, byte for byte; return how many rows
    went (a torn last line not counted). A missing file is an empty one.

    The file is replaced in one rename, so a kill leaves the old or the new one. No writer may be open on it. Raises
    DiskError, and DataError as ``read_jsonl`` does.
    """
    if not path.exists():
        return 0
    with report_disk_errors(f"cut {path}"):
        content = read_regular(path, MOST_LINES)
    lines = _split_lines(content)
    kept = [line for number, line in enumerate(lines, start=1) if _row_step(path, number, line) <= step]
    kept_content = b"".join(line + b"\n" for line in kept)
    if kept_content != content:
        replace_file(path, kept_content, files=files)
    return len(lines) - len(kept)


def cut_to_size(path: Path, size: int, *, files: Files = REAL_FILES) -> None:
    """Keep only the first ``size`` bytes, in one rename, as above. A missing file is an empty one. Raises DiskError."""
    with report_disk_errors(f"cut {path}"):
        if path.exists() and path.stat().st_size > size:
            replace_file(path, read_regular(path, MOST_LINES)[:size], files=files)


def _row_step(path: Path, number: int, line: bytes) -> float:
    step = _decode_row(path, number, line).get("step", -math.inf)
    if not isinstance(step, int | float):
        raise DataError(
            f'{path}, line {number}: "step" should be a number, found {step!r}', code="E_LINE_STEP_NOT_NUMBER"
        )
    return step


def _split_lines(content: bytes) -> list[bytes]:
    return content.split(b"\n")[:-1]  # what follows the last newline is nothing, or torn


def _decode_row(path: Path, number: int, line: bytes | None) -> dict[str, Any]:
    if line is None:
        raise DataError(
            f"{path}, line {number}: more than {MOST_LINE} bytes; expected one object per line", code="E_LINE_TOO_LONG"
        )
    try:
        row = parse_json(line)
    except ValueError as error:  # bad JSON or bad UTF-8
        raise DataError(
            f"{path}, line {number}: not JSON ({error}); expected one object per line", code="E_LINE_NOT_JSON"
        ) from error
    if not isinstance(row, dict):
        raise DataError(
            f"{path}, line {number}: expected a JSON object, found {type(row).__name__}", code="E_LINE_NOT_OBJECT"
        )
    return row


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(part) for part in value]
    return value
