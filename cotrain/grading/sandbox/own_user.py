"""A user of its own: for root where there are no namespaces, as in a container without privileges.

The limit on processes holds for that user, as nothing else runs as it. All its processes are ended by one ``kill(-1)``
of a process that may signal them and nobody else; no fork escapes that call. A process outside does the same when the
server itself dies (``sweeper.py``).

Root's own files stay shut to this user by their modes, and all others by Landlock where the kernel has it; there is no
network and no socket of another process (seccomp). The working folder lies in the file system, and is watched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from cotrain.grading.sandbox import filters, limits, system
from cotrain.grading.sandbox.sweeper import Folders
from cotrain.grading.sandbox.users import become_user, spare_users


class OwnUser:
    """See ``sandbox.Sandbox``."""

    process_table: int | str = "/proc"

    def __init__(self, memory: int) -> None:
        if os.geteuid() != 0:
            raise OSError("not root")
        self._memory = memory
        self._user, self._examiner, self._ender = spare_users(3)
        self.folder: Path | None = None

    def enter(self) -> None:
        self._folders = Folders(self._user, self._end_user)
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)

    def prepare_forks(self) -> None:
        self.folder = self._folders.next_folder()

    def shut_in(self, channel: int) -> None:
        folder = str(self.folder)
        limits.prefer_oom_kill()
        limits.enter_folder(folder)
        limits.close_all_but(channel)
        limits.limit_all(self._memory, limits.PROCESSES)
        become_user(self._user)
        system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
        readable = [place for place in limits.python_paths() if os.access(place, os.R_OK)]
        if not any(sys.base_prefix.startswith(place) for place in readable):
            raise OSError(f"only root can read the Python in {sys.base_prefix}")
        filters.deny_files(readable, folder)
        filters.deny_calls(alone=False)
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)

    def confine_examiner(self, keep: tuple[int, ...]) -> None:
        limits.close_all_but(*keep)
        limits.limit_examiner(self._memory)
        become_user(self._examiner)
        system.protect_examiner()

    def kill_processes(self, examiner: int, answer: int) -> None:
        for pid in (examiner, answer):
            os.kill(pid, signal.SIGKILL)
        self._end_user()
        with contextlib.suppress(ChildProcessError):  # orphans come here
            while True:
                os.waitpid(-1, 0)

    def _end_user(self) -> None:
        """End all processes of the program's user, from a process that takes no signal from them."""
        if ender := os.fork():
            os.waitpid(ender, 0)
            return
        try:
            os.setgroups([])
            os.setresgid(self._ender, self._ender, self._ender)
            os.setresuid(self._ender, self._user, self._ender)
            if os.geteuid() == self._user:
                os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass  # there was none
        finally:
            os._exit(0)
