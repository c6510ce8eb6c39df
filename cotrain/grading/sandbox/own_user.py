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

    def __init__(self, memory_bytes: int) -> None:
        if os.geteuid() != 0:
            raise OSError("not root")
        self._memory_bytes = memory_bytes
        self._user, self._examiner_user, self._killer_user = spare_users(3)
        self.folder: Path | None = None

    def enter(self) -> None:
        self._folders = Folders(self._user, self._kill_user)
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)

    def prepare_forks(self) -> None:
        self.folder = self._folders.next_folder()

    def shut_in(self, channel_fd: int) -> None:
        folder = str(self.folder)
        limits.prefer_oom_kill()
        limits.enter_folder(folder)
        limits.close_all_but(channel_fd)
        limits.limit_all(self._memory_bytes, limits.PROCESSES)
        become_user(self._user)
        system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
        readable = [path for path in limits.python_paths() if os.access(path, os.R_OK)]
        if not any(sys.base_prefix.startswith(path) for path in readable):
            raise OSError(f"only root can read the Python in {sys.base_prefix}")
        filters.deny_files(readable, folder)
        filters.deny_calls(also_signals=False)
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)

    def confine_examiner(self, keep: tuple[int, ...]) -> None:
        limits.close_all_but(*keep)
        limits.limit_examiner(self._memory_bytes)
        become_user(self._examiner_user)
        system.protect_examiner()

    def kill_processes(self, examiner_pid: int, answer_pid: int) -> None:
        for pid in (examiner_pid, answer_pid):
            os.kill(pid, signal.SIGKILL)
        self._kill_user()
        with contextlib.suppress(ChildProcessError):  # until no child is left; the program's orphans are ours too
            while True:
                os.waitpid(-1, 0)

    def _kill_user(self) -> None:
        """Kill all processes of the program's user.

        ``kill(-1)`` reaches those that the caller may signal. So the process that calls it has the program's user as
        its effective id, which decides whom it may signal, and another one as its real and saved id, which decide who
        may signal it."""
        killer_pid = os.fork()
        if killer_pid:
            os.waitpid(killer_pid, 0)
            return
        try:
            os.setgroups([])
            os.setresgid(self._killer_user, self._killer_user, self._killer_user)
            os.setresuid(self._killer_user, self._user, self._killer_user)
            if os.geteuid() == self._user:
                os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the user has no process
        finally:
            os._exit(0)
