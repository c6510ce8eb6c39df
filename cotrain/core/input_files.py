"""Files that a user names, read in bounded time and memory, whatever is behind the name.

- A device, a pipe or a socket is refused before it is opened: it may never answer, or never end.
- No more is read than the size that the file had when it was opened. So a file of the system that says it has 0 bytes,
  and never ends, counts as empty.
- A line is cut once it is longer than any row of data may be.
- A file that is larger than memory should hold is refused.

Left out: input from a pipe; write it to a file first.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from cotrain.core.errors import DataError

MOST_ROW = 1 << 21  # bytes of one row or paragraph: about half a million tokens
MOST_LINE = 64 * MOST_ROW  # bytes of a line that is passed over as too long
MOST_LINES = 1 << 32  # bytes of a file that is read line by line
MOST_WHOLE = 1 << 29  # bytes of a file that is read in one piece
MOST_HANDWRITTEN = 1 << 20  # bytes of a file that somebody wrote by hand: code, settings, a prompt
MOST_DOCUMENT = 1 << 25  # bytes of a JSON document of a run; parsed it may take forty times as many
PACKED = 200  # a gzip file may unpack to so many times its size
PACKED_LEAST = 1 << 26  # and to so many bytes in any case
_DEEP_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){200}")  # a.a.a…
DEEPEST = 32  # tables and lists inside each other in a TOML file
_TOO_DEEP = f"nested too deeply; expected at most {DEEPEST} tables inside each other"


def absolute_path(path: str | Path) -> Path:
    """A path that stays the same wherever the process goes: ``~`` and the links of its folder are followed. Links in a
    circle, and the home of an unknown user, stay as they are written.

    If the file itself is a link, it keeps its name: the ending says what is in it, and in a download cache links point
    to files without one."""
    expanded = os.path.expanduser(path)
    folder, name = os.path.split(expanded)
    if name in ("", ".", ".."):
        return Path(os.path.realpath(expanded))
    return Path(os.path.realpath(folder), name)


def lines_of_file(path: Path) -> Iterator[bytes]:
    """The lines of a file, unpacked where its name ends in ``.gz``, each with its line break. Of a line above
    ``MOST_ROW`` bytes only the first ``MOST_ROW + 1`` are given, by which the caller sees that it is too long. Raises
    DataError."""
    with _open_bounded(path, MOST_LINES) as (stream, most):
        total = 0  # bytes that were read; one more than ``most`` shows that the file is too large
        while line := stream.readline(min(MOST_ROW, most - total) + 1):
            total += len(line)
            piece = line
            length = len(line)
            # Pass over what is left of a line that is too long.
            while length > MOST_ROW and piece and not piece.endswith(b"\n") and total <= most:
                piece = stream.readline(min(1 << 20, most - total) + 1)
                total += len(piece)
                length += len(piece)
                if length > MOST_LINE:
                    raise DataError(
                        f"{path}: a line of more than {MOST_LINE} bytes; expected one row a line",
                        code="E_LINE_TOO_LONG",
                    )
            _check_expansion(path, total, most)
            yield line


def content_of_file(path: Path, most: int = MOST_WHOLE) -> bytes:
    """All of a file of at most ``most`` bytes, unpacked where its name ends in ``.gz``. Raises DataError."""
    with _open_bounded(path, most) as (stream, limit):
        content = stream.read(limit + 1)
    _check_expansion(path, len(content), limit)
    return content


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for what is none, and for one that is nested more deeply than Python
    reads, of which ``json`` raises RecursionError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def text_of_file(path: Path, most: int = MOST_HANDWRITTEN) -> str:
    """A UTF-8 text, without a byte order mark. Raises DataError."""
    try:
        return content_of_file(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8", code="E_TEXT_ENCODING"
        ) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file whose numbers are of 64 bits. Raises DataError."""
    content = text_of_file(path)
    try:
        if _DEEP_KEY.search(content):  # tomllib takes a time that grows with the square of its depth
            raise RecursionError
        table = tomllib.loads(content)
    except RecursionError as error:
        raise DataError(f"{path}: {_TOO_DEEP}", code="E_FILE_TOO_DEEP") from error
    except DataError:
        raise
    except ValueError as error:  # raised by TOML, and by Python for a number of thousands of digits
        raise DataError(f"{path}: not TOML ({str(error).partition(';')[0]:.200})", code="E_NOT_TOML") from error
    _check_values(path, table)
    return table


def _check_values(path: Path, table: dict[str, Any]) -> None:
    """Raise DataError for tables nested deeper than ``DEEPEST``, and for a whole number of more than 64 bits."""
    level: list[tuple[str, Any]] = [("", table)]  # the containers of one depth, by their dotted names
    for _ in range(DEEPEST):
        next_level = []
        for name, container in level:
            items = container.items() if isinstance(container, dict) else enumerate(container)
            for key, value in items:
                value_name = f"{name}.{key}".lstrip(".")
                if isinstance(value, dict | list):
                    next_level.append((value_name, value))
                else:
                    _check_number(path, value_name, value)
        level = next_level

    if level:
        raise DataError(f"{path}: {_TOO_DEEP}", code="E_FILE_TOO_DEEP")


def _check_number(path: Path, name: str, value: Any) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise DataError(
            f"{path}: {name:.60} is a number of more than 64 bits; write a smaller one", code="E_NUMBER_TOO_LARGE"
        )


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file of a run, or of the user's, for reading. Raises OSError, also for what is no regular file: reading a
    pipe would wait for whoever writes to it."""
    descriptor = _open_without_waiting(path)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def _open_without_waiting(path: Path | str) -> int:
    """A descriptor. Without O_NONBLOCK, opening a pipe would wait for a writer."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def read_regular(path: Path | str, most: int = MOST_DOCUMENT) -> bytes:
    """All of a file that ``open_regular`` opens. Raises OSError, also for one of more than ``most`` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return content


def whole_lines(file: BufferedReader, start: int = 0, most: int = MOST_LINE) -> Iterator[tuple[bytes | None, int]]:
    """The lines of a regular file from byte ``start`` on, each without its line break, with the byte at which the next
    line begins. For a line of more than ``most`` bytes the text is None. A last line without a line break is not given:
    it is still being written.

    Raises OSError for a file of more than ``MOST_LINES`` bytes: one with holes in it may be larger than the disk."""
    if os.fstat(file.fileno()).st_size > MOST_LINES:
        raise OSError(errno.EFBIG, f"more than {MOST_LINES} bytes", file.name)
    file.seek(start)
    end = start
    while line := file.readline(most):
        end += len(line)
        piece = line
        while not piece.endswith(b"\n"):
            piece = file.readline(MOST_ROW)
            if not piece:
                return
            end += len(piece)
        is_complete = piece is line
        yield (line[:-1] if is_complete else None), end


@contextmanager
def _open_bounded(path: Path, most: int) -> Iterator[tuple[BinaryIO, int]]:
    """A stream of a regular file, unpacked where its name ends in ``.gz``, and the most bytes to be read of it. Errors
    of the system, and of gzip, become DataError, also those that are raised while the caller reads."""
    try:
        _size_of_regular(path, os.stat(path))  # before it is opened, which for a device may have effects
        descriptor = _open_without_waiting(path)
        with open(descriptor, "rb") as file:
            size = _size_of_regular(path, os.fstat(descriptor))
            is_packed = path.name.lower().endswith(".gz")
            if size > most:
                raise DataError(
                    f"{path}: {size} bytes, and at most {most} are read; give it in several files, of data with "
                    "one object a line (.jsonl)",
                    code="E_FILE_TOO_LARGE",
                )
            if is_packed and size:
                with gzip.open(file) as stream:
                    yield stream, min(most, max(PACKED_LEAST, PACKED * size))  # type: ignore[misc]
            else:
                yield _BoundedFile(file, size), size  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: cannot be unpacked ({error}); expected a gzip file", code="E_FILE_NOT_GZIP"
        ) from error
    except (OSError, ValueError) as error:
        if isinstance(error, DataError | UnicodeError):
            raise
        raise DataError(
            f"{path}: cannot be read ({(getattr(error, 'strerror', None) or str(error)).lower()}); check its name and "
            "its permissions",
            code="E_FILE_UNREADABLE",
        ) from error


class _BoundedFile:
    """The first ``size`` bytes of a file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._unread = size

    def read(self, size: int) -> bytes:
        return self._count_read(self._file.read(min(size, self._unread)))

    def readline(self, size: int) -> bytes:
        return self._count_read(self._file.readline(min(size, self._unread)))

    def _count_read(self, part: bytes) -> bytes:
        self._unread -= len(part)
        return part


def _size_of_regular(path: Path, status: os.stat_result) -> int:
    """The size of a file in bytes. Raises DataError for what is no regular file."""
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise DataError(
            f"{path}: {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, not a regular file; name a file",
            code="E_FILE_NOT_REGULAR",
        )
    return status.st_size


def _check_expansion(path: Path, size: int, most: int) -> None:
    """Raise DataError where more was read than ``_open_bounded`` allows, which only a packed file has."""
    if size > most:
        raise DataError(
            f"{path}: unpacks to more than {most} bytes ({PACKED} times its size, or more than is read at once); "
            "unpack it by hand if it is right, into several files",
            code="E_FILE_UNPACKS_TOO_LARGE",
        )
