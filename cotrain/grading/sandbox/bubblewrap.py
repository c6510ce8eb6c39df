"""Bubblewrap: namespaces made by the program ``bwrap``, which may do so where a user may not.

The answer runs in a Python of its own (``inside.py``), started for each program: that costs ten times as much as a
fork. The examiner stays outside, where the answer, in its namespace, cannot see it. Killing bwrap's own two processes
kills all in the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from cotrain.grading.sandbox import filters, limits, system
from cotrain.grading.sandbox.sweeper import Folders
from cotrain.grading.sandbox.watch import descendants_of

BOX = "/box"  # where programs work, as they see it
PACKAGE = "/cotrain-package"  # where cotrain lies, as they see it


class Bubblewrap:
    """See ``sandbox.Sandbox``."""

    process_table: int | str = "/proc"

    def __init__(self, memory_bytes: int, runner: str) -> None:
        path = shutil.which("bwrap")
        if path is None:
            raise OSError("bwrap is not on the PATH")
        self._command = [path, *_bwrap_arguments()]
        self._memory_bytes = memory_bytes
        self._runner = runner
        self.folder: Path | None = None

    def enter(self) -> None:
        self._folders = Folders(os.geteuid())
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)

    def prepare_forks(self) -> None:
        self.folder = self._folders.next_folder()

    def shut_in(self, channel_fd: int) -> None:
        limits.prefer_oom_kill()
        limits.close_all_but(channel_fd)
        os.set_inheritable(channel_fd, True)
        python = [
            sys.executable,
            "-P",  # the working folder is no place to import from
            "-S",  # nor are site-packages added, which PYTHONPATH names already
            "-m",
            "cotrain.grading.sandbox.inside",
            str(channel_fd),
            str(self._memory_bytes),
            self._runner,
        ]
        folder = ["--bind", str(self.folder), BOX, "--chdir", BOX]
        command = [*self._command, *folder, "--remount-ro", "/", "--", *python]
        os.execve(command[0], command, {})

    def confine_examiner(self, keep: tuple[int, ...]) -> None:
        limits.close_all_but(*keep)
        limits.limit_examiner(self._memory_bytes)
        system.protect_examiner()

    def kill_processes(self, examiner_pid: int, answer_pid: int) -> None:
        # bwrap may start processes while we kill, so the list is read again until no child is left.
        while True:
            for process in descendants_of(os.getpid()):
                # A process that has ended, or that is not ours to kill: it ends with the first one of its namespace.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
            try:
                ended_pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not ended_pid:
                time.sleep(0.001)


def _bwrap_arguments() -> list[str]:
    """The sandbox, as arguments of bwrap."""
    arguments = ["--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    python_paths = limits.python_paths()
    for path in python_paths:
        if limits.is_relative_link(path):  # such as /lib, a link to usr/lib
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += ["--ro-bind", path, path]

    for device in filters.DEVICES:
        arguments += ["--dev-bind", device, device]
    cotrain = Path(__file__).resolve().parents[2]
    arguments += ["--ro-bind", str(cotrain), f"{PACKAGE}/cotrain"]
    python_is_in_tmp = any(path.startswith("/tmp/") for path in python_paths)
    if not python_is_in_tmp:
        arguments += ["--symlink", BOX, "/tmp"]
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    environment = {
        **limits.program_environment(BOX),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([PACKAGE, *packages]),
    }
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return arguments
