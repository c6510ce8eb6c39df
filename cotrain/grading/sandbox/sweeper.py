"""Removing the folders that programs worked in, where no file system of their own goes away with them.

A program may leave a hundred thousand directories, and the next one is not to wait for their removal. So each works in
a new folder, and the old one is named to a process that empties it, however deep it is. That process also outlives a
server that was killed: then it clears what is left, after a last act of its sandbox's.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from cotrain.grading.sandbox import limits


class Folders:
    """One folder after the other, in one directory. ``last``: what is done before the end, in the process that clears
    up."""

    def __init__(self, user: int, last: Callable[[], None]) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="cotrain-"))
        self._directory.chmod(0o711)
        self._user = user
        self._count = 0
        held, self._hold = os.pipe()  # its end is that of the server: no other process keeps it open
        if first := os.fork():
            os.waitpid(first, 0)
            os.close(held)
        else:
            if not os.fork():
                os.setsid()
                limits.close_all_but(held)
                _sweep_folders(self._directory, held, last)
            os._exit(0)

    def next_folder(self) -> Path:
        """A new one; whatever was there before is cleared up."""
        if self._count:
            os.write(self._hold, b".")
        self._count += 1
        folder = self._directory / str(self._count)
        folder.mkdir(mode=0o700)
        os.chown(folder, self._user, -1)
        return folder


def _sweep_folders(directory: Path, held: int, last: Callable[[], None]) -> None:
    done = 0
    while os.read(held, 1):
        done += 1
        _remove_folder(directory / str(done))
    last()
    for folder in list(directory.iterdir()):
        _remove_folder(folder)
    with contextlib.suppress(OSError):
        directory.rmdir()


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        clear_folder(folder)
        folder.rmdir()


def clear_folder(folder: Path) -> None:
    """Empty a folder: what lies deeper is brought up first. Nobody else writes to it any more."""
    number = 0
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            with contextlib.suppress(OSError):  # most are empty
                os.rmdir(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for below in list(os.scandir(entry.path)):
                if not below.is_dir(follow_symlinks=False):
                    os.unlink(below.path)
                    continue
                os.chmod(below.path, 0o700)
                number += 1
                while os.path.lexists(folder / str(number)):
                    number += 1
                os.rename(below.path, folder / str(number))

            os.rmdir(entry.path)
