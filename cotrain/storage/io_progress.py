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
        self._bytes = 0
        self._megabytes = 0  # those that the printer knows of
        total_megabytes = -(-total // MEGABYTE)  # rounded up
        self.pace = ProgressPrinter(max(1, total_megabytes), what, say)

    def add(self, count: int) -> None:
        """Count so many bytes more."""
        self._bytes += count
        new_megabytes = self._bytes // MEGABYTE - self._megabytes
        self._megabytes += new_megabytes
        if new_megabytes > 0:
            self.pace.add(new_megabytes)


class WatchedFiles(Files):
    """The real file system. ``on_read`` is called with the number of bytes of each read."""

    def __init__(self, on_read: Callable[[int], None]) -> None:
        self._on_read = on_read

    def read(self, file: FileIO, size: int) -> bytes:
        content = super().read(file, size)
        self._on_read(len(content))
        return content


@contextmanager
def watch_growth(directory: Path, total: int, what: str, say: Say) -> Iterator[None]:
    """Say how large a directory has become while the block writes into it, of ``total`` bytes."""
    done = threading.Event()
    pace = MegabytePace(total, what, say)

    def watch_size() -> None:
        largest = 0  # a file may be written under a name for a while, and then be gone
        while not done.wait(LOOK):
            size = min(total, directory_bytes(directory))
            pace.add(max(0, size - largest))
            largest = max(largest, size)

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
