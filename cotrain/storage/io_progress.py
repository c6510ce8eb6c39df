"""Progress of reading and writing large files, in megabytes.

Left out: time in which no byte is read or written, such as hashing on the way or putting weights together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from cotrain.core.verbosity import ProgressPrinter
from cotrain.storage.file_ops import Files

MEGABYTE = 1_000_000
LOOK = 1.0  # seconds between looks at a directory that grows
Say = Callable[[str], None]


class MegabytePace:
    """A pace in whole megabytes, of bytes as they come."""

    def __init__(self, total: int, what: str, say: Say) -> None:
        """``total``: bytes; ``what``: with "{}" where the counts go."""
        self._bytes = self._told = 0
        self.pace = ProgressPrinter(max(1, -(-total // MEGABYTE)), what, say)

    def add(self, count: int) -> None:
        """So many bytes more."""
        self._bytes += count
        whole = self._bytes // MEGABYTE - self._told
        self._told = self._bytes // MEGABYTE
        if whole > 0:
            self.pace.add(whole)


class WatchedFiles(Files):
    """The real file system, which tells how many bytes are read."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell

    def read(self, file: FileIO, size: int) -> bytes:
        content = super().read(file, size)
        self._tell(len(content))
        return content


@contextmanager
def watch_growth(directory: Path, total: int, what: str, say: Say) -> Iterator[None]:
    """Tells how large a directory has become while somebody else writes into it: of ``total`` bytes."""
    done = threading.Event()
    seen = 0
    pace = MegabytePace(total, what, say)

    def watch_size() -> None:
        nonlocal seen
        while not done.wait(LOOK):
            size = min(total, directory_bytes(directory))
            pace.add(max(0, size - seen))
            seen = max(seen, size)

    watcher = threading.Thread(target=watch_size, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def directory_bytes(directory: Path) -> int:
    """Bytes of the files in a directory and below."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # gone while we look
            total += path.stat().st_size
    return total
