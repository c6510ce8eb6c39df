"""Removing the folders that programs worked in, in sandboxes whose folders lie on the disk.

A program may leave a hundred thousand directories, and the next program is not to wait for their removal. So each
program works in a new folder, and a process beside the server, the sweeper, removes the old ones, however deep they
are. The sweeper also outlives a server that was killed: then it does what the sandbox wants done at the end, such as
killing its processes, and removes what is left.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from cotrain.grading.sandbox import limits


class Folders:
    """The folders of one server: "1", "2", … in one temporary directory, one at a time in use."""

    def __init__(self, user: int, at_end: Callable[[], None] | None = None) -> None:
        """``user``: the owner of the folders. ``at_end``: what the sweeper does when the server has ended, before it
        removes the last folder."""
        self._directory = Path(tempfile.mkdtemp(prefix="cotrain-"))
        self._directory.chmod(0o711)
        self._user = user
        self._count = 0
        # The server writes a byte for each folder that is done with. As no other process holds the writing end, the
        # pipe ends when the server does, however that ends.
        reading_end, self._writing_end = os.pipe()
        # Forked twice, so that the sweeper is no child that the server would have to wait for.
        first_child = os.fork()
        if first_child:
            os.waitpid(first_child, 0)
            os.close(reading_end)
        else:
            if not os.fork():
                os.setsid()
                limits.close_all_but(reading_end)
                _sweep_folders(self._directory, reading_end, at_end)
            os._exit(0)

    def next_folder(self) -> Path:
        """Make the next folder, and have the sweeper remove the one before."""
        if self._count:
            os.write(self._writing_end, b".")
        self._count += 1
        folder = self._directory / str(self._count)
        folder.mkdir(mode=0o700)
        os.chown(folder, self._user, -1)
        return folder


def _sweep_folders(directory: Path, reading_end: int, at_end: Callable[[], None] | None) -> None:
    removed = 0
    while os.read(reading_end, 1):
        removed += 1
        _remove_folder(directory / str(removed))
    if at_end is not None:
        at_end()
    for folder in list(directory.iterdir()):
        _remove_folder(folder)
    with contextlib.suppress(OSError):
        directory.rmdir()


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        clear_folder(folder)
        folder.rmdir()


def clear_folder(folder: Path) -> None:
    """Empty a folder that no process writes to any more. Its directories may lie deeper than a path can be long, so the
    children of each are moved up into the folder itself before it is removed; the next round removes those."""
    moved = 0  # a directory that is moved up is called by a number that is free
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            with contextlib.suppress(OSError):  # first as if it were empty, as most are
                os.rmdir(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for child in list(os.scandir(entry.path)):
                if not child.is_dir(follow_symlinks=False):
                    os.unlink(child.path)
                    continue
                os.chmod(child.path, 0o700)
                moved += 1
                while os.path.lexists(folder / str(moved)):
                    moved += 1
                os.rename(child.path, folder / str(moved))

            os.rmdir(entry.path)
