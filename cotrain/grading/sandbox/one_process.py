"""One process: for a user who has neither namespaces nor root's rights, on any Unix.

The program cannot start a second process or thread, as a limit of 0 on processes holds for every user but root. So
nothing is left to find when the one process is killed. It runs as the user of the trainer. On Linux seccomp refuses it
signals to other processes and whatever reaches into them, and Landlock all files but Python's and its own; elsewhere,
or on older kernels, **it can read this user's files and signal his processes**.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cotrain.grading.sandbox import limits
from cotrain.grading.sandbox.sweeper import Folders


class OneProcess:
    """See ``sandbox.Sandbox``."""

    process_table: int | str = "/proc"

    def __init__(self, memory_bytes: int) -> None:
        if os.geteuid() == 0:
            raise OSError("no limit on processes holds for root")
        self._memory_bytes = memory_bytes
        self.folder: Path | None = None

    def enter(self) -> None:
        self._folders = Folders(os.geteuid())
        if sys.platform == "linux":
            from cotrain.grading.sandbox import system

            system.prctl(system.PR_SET_DUMPABLE, 0)  # its memory is shut to its own user

    def prepare_forks(self) -> None:
        self.folder = self._folders.next_folder()

    def shut_in(self, channel_fd: int) -> None:
        folder = str(self.folder)
        limits.enter_folder(folder)
        limits.close_all_but(channel_fd)
        limits.limit_all(self._memory_bytes, 0)  # no process besides this one, which has begun already
        if sys.platform == "linux":
            from cotrain.grading.sandbox import filters, system

            system.prctl(system.PR_SET_DUMPABLE, 1)
            limits.prefer_oom_kill()
            system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
            system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
            filters.deny_files(limits.python_paths(), folder)
            filters.deny_calls(also_signals=True)

    def confine_examiner(self, keep: tuple[int, ...]) -> None:
        limits.close_all_but(*keep)
        limits.limit_examiner(self._memory_bytes)
        if sys.platform == "linux":
            from cotrain.grading.sandbox import system

            system.protect_examiner()

    def kill_processes(self, examiner_pid: int, answer_pid: int) -> None:
        for pid in (examiner_pid, answer_pid):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
