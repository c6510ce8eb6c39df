"""One process at a time in a run directory, or at one file of it: an advisory file lock, which the kernel releases
when its holder dies.

``flock`` belongs to the open file, so a killed run leaves no stale lock and nothing has to be cleaned up by hand. A
forked child inherits open files and would keep the lock alive after its parent's death; it therefore closes its copy
at once. The process number and the time written into the file are for the error message only.

A holder that removes the file does so before it lets go, and whoever locks a file looks whether it is still the one of
that name. So a run that was refused leaves nothing behind, and two processes never hold two files of one name.

Left out: locking between machines (a network file system may or may not honour flock), and systems without fcntl.
"""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path

from cotrain.core.errors import RunDirectoryError
from cotrain.storage.file_ops import is_at

NAME = ".lock"
PATIENCE = 0.5  # seconds that a holder is given to write who it is


class RunLock:
    """Holds a run directory from construction to ``release`` (or the end of a ``with`` block, or of the process).

    Raises RunDirectoryError when another process, or another lock of this one, holds it.
    """

    def __init__(self, directory: Path, name: str = NAME, *, what: str = "") -> None:
        """``name``: of the lock's file. Locks of different names do not see each other. ``what``: what is locked, for
        the error; the directory, if nothing is said."""
        self.directory = directory
        self._what = what or f"run directory {directory}"
        self._path = directory / name
        self._handle: int | None = None
        handle = self._try_lock()
        while handle is None:
            handle = self._try_lock()
        self._handle = handle
        _HELD.add(self)

    def _try_lock(self) -> int | None:
        """The open and locked file; None where its last holder removed the file meanwhile, so that another one may have
        its name."""
        import fcntl

        directory = self.directory
        path = self._path
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunDirectoryError(
                f"cannot use run directory {directory}: {error.strerror}; choose another one or check its permissions",
                code="E_RUN_DIRECTORY_UNUSABLE",
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_at(handle, path):
                os.close(handle)
                return None
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode(), 0)
        except BlockingIOError as error:
            holder = _read_holder(handle)
            os.close(handle)
            raise RunDirectoryError(
                f"{self._what} is in use by process {holder}; wait for it, stop it, or choose another directory",
                code="E_RUN_DIRECTORY_IN_USE",
            ) from error
        except OSError as error:
            os.close(handle)
            raise RunDirectoryError(
                f"cannot lock run directory {directory}: {error.strerror}; choose another one or check its disk",
                code="E_RUN_DIRECTORY_UNUSABLE",
            ) from error
        return handle

    def release(self) -> None:
        """Let go. The file stays."""
        handle = self._handle
        self._handle = None
        if handle is not None:
            os.close(handle)

    def remove(self) -> None:
        """Remove the file and let go."""
        self._path.unlink(missing_ok=True)
        self.release()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _read_holder(handle: int) -> str:
    """Who wrote into the file that it holds it: "1234 since 2026-01-31 12:00:00"."""
    deadline = time.monotonic() + PATIENCE
    content = os.pread(handle, 64, 0)
    while not content.endswith(b"\n") and time.monotonic() < deadline:
        time.sleep(0.01)
        content = os.pread(handle, 64, 0)
    return content.decode("ascii", "replace").strip() or "unknown"


_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
