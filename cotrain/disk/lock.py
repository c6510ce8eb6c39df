"""One process per run directory: an advisory lock that the kernel itself lets go of when its holder dies.

``flock`` belongs to the open file, so a killed run leaves no stale lock and nothing has to be cleaned up by hand. A
forked child inherits open files and would keep the lock alive after its parent's death; it therefore closes its copy
at once. The process number written into the file is for the error message only.

Left out: locking between machines (a network file system may or may not honour flock), and systems without fcntl.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from types import TracebackType

from cotrain.core.errors import RunDirectoryError

NAME = ".lock"


class RunLock:
    """Holds a run directory from construction to ``release`` (or the end of a ``with`` block, or of the process).

    Raises RunDirectoryError when another process, or another lock of this one, holds it.
    """

    def __init__(self, directory: Path) -> None:
        import fcntl

        self.directory = directory
        self._handle: int | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunDirectoryError(
                f"cannot use run directory {directory}: {error.strerror}; choose another one or check its permissions"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
            os.close(handle)
            raise RunDirectoryError(
                f"run directory {directory} is in use by process {holder or 'unknown'}; "
                "wait for it, stop it, or choose another directory"
            ) from error
        except OSError as error:
            os.close(handle)
            raise RunDirectoryError(
                f"cannot lock run directory {directory}: {error.strerror}; choose another one or check its disk"
            ) from error
        self._handle = handle
        _HELD.add(self)

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two different files of one name."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
