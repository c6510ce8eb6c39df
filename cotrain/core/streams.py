"""Standard output and error that may go away: a run goes on when its terminal closes or the reader of its pipe ends.

A pipe whose reader has left (``cotrain run … | head``), a terminal that is gone and a full disk under a redirected
output make an ordinary stream raise at the next line, wherever in a run that is. These let go of the line instead, and
of all that follow. What the stream's encoding has no character for is written as ``\\u2588``.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

ERRORS = "backslashreplace"
_LOST: dict[str, str] = {}  # name of a stream → why nothing reaches its reader any more


def lost_streams() -> dict[str, str]:
    """The streams that nothing is written to any more, and why."""
    return dict(_LOST)


def secure_streams() -> None:
    """Make standard output and error such streams; called once, by the command."""
    sys.stdout, sys.stderr = _secure_stream(sys.stdout, 1, "stdout"), _secure_stream(sys.stderr, 2, "stderr")


def _secure_stream(stream: TextIO | None, number: int, name: str) -> TextIO:
    if stream is None:  # it was closed before the command began, and its number must not become that of a file
        _LOST[name] = "closed from the beginning"
        handle = os.open(os.devnull, os.O_WRONLY)
        if handle != number:
            os.dup2(handle, number)
            os.close(handle)
        return open(number, "w", encoding="utf-8", errors=ERRORS, closefd=False)
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    raw: Any = _LenientFile(os.dup(stream.fileno()), name)  # which stays where a protocol closes the stream's own
    return _StaysOpen(
        raw if stream.write_through else io.BufferedWriter(raw),  # PYTHONUNBUFFERED: each text goes out at once
        encoding=stream.encoding,
        errors=ERRORS,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _StaysOpen(io.TextIOWrapper):
    """A stream that no code of a user's closes for those who print after it."""

    def close(self) -> None:
        self.flush()


class _LenientFile(io.FileIO):
    """A descriptor that takes everything, whether or not it gets anywhere."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number, "wb", closefd=False)
        self._stream = name

    def write(self, block: Any) -> int:
        rest = memoryview(block).cast("B")
        size = rest.nbytes
        try:
            while rest and self._stream not in _LOST:
                written = super().write(rest)
                rest = rest[size if written is None else written :]  # None: a pipe that is full and does not wait
        except OSError as error:
            _LOST[self._stream] = (error.strerror or str(error)).lower()
        return size
