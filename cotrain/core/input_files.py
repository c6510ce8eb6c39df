"""Files that a user names, read in bounded time and memory, whatever is behind the name.

A device, a pipe or a socket is refused before it is opened: it may never answer, or never end. No more is read than
the size that the file had, so that those of the system which say 0 and go on for ever count as empty. A line is cut
once it is longer than any row of data may be, a file refused that is larger than memory should hold.

Left out: input from a pipe; write it to a file first.
"""

from __future__ import annotations

import errno
import gzip
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
DEEPEST = 32  # tables and lists inside each other in a file of settings


def absolute_path(path: str | Path) -> Path:
    """A path that holds wherever the process goes: ``~`` and the links of its folder are followed, and its last name
    stays as it was given. What a file is called says what is in it, and files of a cache are links to others without an
    ending. Links in a circle, and a home that nobody has, stay as they are written."""
    expanded = os.path.expanduser(path)
    folder, name = os.path.split(expanded)
    if name in ("", ".", ".."):
        return Path(os.path.realpath(expanded))
    return Path(os.path.realpath(folder), name)


def lines_of_file(path: Path) -> Iterator[bytes]:
    """The lines of a file, unpacked where its name ends in ``.gz``, each with its line break. Of a line above
    ``MOST_ROW`` bytes only the first ``MOST_ROW + 1`` are given. Raises DataError."""
    with _open_bounded(path, MOST_LINES) as (stream, most):
        total = 0
        while line := stream.readline(min(MOST_ROW, most - total) + 1):
            total += len(line)
            rest = line
            length = len(line)
            while length > MOST_ROW and rest and not rest.endswith(b"\n") and total <= most:
                rest = stream.readline(min(1 << 20, most - total) + 1)
                total = total + len(rest)
                length = length + len(rest)
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
        if _DEEP_KEY.search(content):  # tomllib takes a time that grows with the square of it
            raise RecursionError
        table = tomllib.loads(content)
    except RecursionError as error:
        raise DataError(
            f"{path}: nested too deeply; expected at most {DEEPEST} tables inside each other", code="E_FILE_TOO_DEEP"
        ) from error
    except DataError:
        raise
    except ValueError as error:  # raised by TOML, and by Python for a number of thousands of digits
        raise DataError(f"{path}: not TOML ({str(error).partition(';')[0]:.200})", code="E_NOT_TOML") from error
    level: list[tuple[str, Any]] = [("", table)]
    for _ in range(DEEPEST):
        deeper = []
        for name, value in level:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inside in items:
                inside_name = f"{name}.{key}".lstrip(".")
                if isinstance(inside, dict | list) or _check_file_size(path, inside_name, inside):
                    deeper.append((inside_name, inside))
        level = deeper

    if level:
        raise DataError(
            f"{path}: nested too deeply; expected at most {DEEPEST} tables inside each other", code="E_FILE_TOO_DEEP"
        )
    return table


def _check_file_size(path: Path, name: str, value: Any) -> bool:
    """Raise DataError for a whole number of more than 64 bits; else False."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise DataError(
            f"{path}: {name:.60} is a number of more than 64 bits; write a smaller one", code="E_NUMBER_TOO_LARGE"
        )
    return False


def open_regular(path: Path | str) -> BufferedReader:
    """A file of a run, or of the user's, to be read. Raises OSError, also for what is no regular file: to open a pipe
    is to wait for whoever writes to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def read_regular(path: Path | str, most: int = MOST_DOCUMENT) -> bytes:
    """All of such a file. Raises OSError, also for one of more than ``most`` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return content


def whole_lines(file: BufferedReader, start: int = 0, most: int = MOST_LINE) -> Iterator[tuple[bytes | None, int]]:
    """The lines of a regular file from a byte on, each without its line break, and the byte where it ends. A line of
    more than ``most`` bytes is None, and a last line without a line break is left for later. Raises OSError for a file
    of more than ``MOST_LINES`` bytes: a file may have any size without taking up the disk."""
    if os.fstat(file.fileno()).st_size > MOST_LINES:
        raise OSError(errno.EFBIG, f"more than {MOST_LINES} bytes", file.name)
    file.seek(start)
    end = start
    while line := file.readline(most):
        end = end + len(line)
        last = line
        while not last.endswith(b"\n"):
            last = file.readline(MOST_ROW)
            if not last:
                return
            end += len(last)
        yield (line[:-1] if last is line else None), end


@contextmanager
def _open_bounded(path: Path, most: int) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file, and how many bytes of it, unpacked, are to be read at most."""
    try:
        size = _size_of_regular(path, os.stat(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            size = _size_of_regular(path, os.fstat(descriptor))
            packed = path.name.lower().endswith(".gz")
            if size > most:
                raise DataError(
                    f"{path}: {size} bytes, and at most {most} are read; give it in several files, of data with "
                    "one object a line (.jsonl)",
                    code="E_FILE_TOO_LARGE",
                )
            if packed and size:
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
    """The first ``left`` bytes of a file."""

    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file = file
        self._left = left

    def read(self, size: int) -> bytes:
        return self._count_read(self._file.read(min(size, self._left)))

    def readline(self, size: int) -> bytes:
        return self._count_read(self._file.readline(min(size, self._left)))

    def _count_read(self, part: bytes) -> bytes:
        self._left -= len(part)
        return part


def _size_of_regular(path: Path, status: os.stat_result) -> int:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise DataError(
            f"{path}: {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, not a regular file; name a file",
            code="E_FILE_NOT_REGULAR",
        )
    return status.st_size


def _check_expansion(path: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(
            f"{path}: unpacks to more than {most} bytes ({PACKED} times its size, or more than is read at once); "
            "unpack it by hand if it is right, into several files",
            code="E_FILE_UNPACKS_TOO_LARGE",
        )
