"""Bubblewrap: namespaces made by the program ``bwrap``, which may do so where a user may not.

The answer runs in a Python of its own (``inside.py``), started for each program: that costs ten times as much as a
fork. The examiner stays outside, where no process of the answer can be seen from within. Killing bwrap's own two
processes kills all in it.
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

BOX = "/box"
PACKAGE = "/cotrain-package"


class Bubblewrap:
    """See ``sandbox.Sandbox``."""

    process_table: int | str = "/proc"

    def __init__(self, memory: int, inside: str) -> None:
        path = shutil.which("bwrap")
        if path is None:
            raise OSError("bwrap is not on the PATH")
        self._command = [path, *_bwrap_arguments()]
        self._memory = memory
        self._inside = inside
        self.folder: Path | None = None

    def enter(self) -> None:
        self._folders = Folders(os.geteuid(), lambda: None)
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)

    def prepare_forks(self) -> None:
        self.folder = self._folders.next_folder()

    def shut_in(self, channel: int) -> None:
        limits.prefer_oom_kill()
        limits.close_all_but(channel)
        os.set_inheritable(channel, True)
        python = [
            sys.executable,
            "-P",
            "-S",
            "-m",
            "cotrain.grading.sandbox.inside",
            str(channel),
            str(self._memory),
            self._inside,
        ]
        command = [*self._command, "--bind", str(self.folder), BOX, "--chdir", BOX, "--remount-ro", "/", "--", *python]
        os.execve(command[0], command, {})

    def confine_examiner(self, keep: tuple[int, ...]) -> None:
        limits.close_all_but(*keep)
        limits.limit_examiner(self._memory)
        system.protect_examiner()

    def kill_processes(self, examiner: int, answer: int) -> None:
        while True:
            for process in descendants_of(os.getpid()):
                # ended, or ends with its namespace's first one
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
            try:
                ended = os.waitpid(-1, os.WNOHANG)[0]
            except ChildProcessError:
                return
            if not ended:
                time.sleep(0.001)


def _bwrap_arguments() -> list[str]:
    """The sandbox, in bwrap's words."""
    words = ["--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    for place in limits.python_paths():
        if Path(place).is_symlink() and not Path(os.readlink(place)).is_absolute():
            words += ["--symlink", os.readlink(place), place]
        else:
            words += ["--ro-bind", place, place]

    for device in filters.DEVICES:
        words += ["--dev-bind", device, device]
    words += ["--ro-bind", str(Path(__file__).resolve().parents[2]), f"{PACKAGE}/cotrain"]
    if not any(place.startswith("/tmp/") for place in limits.python_paths()):  # else Python itself lies there
        words += ["--symlink", BOX, "/tmp"]
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    settings = {
        **limits.program_environment(BOX),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([PACKAGE, *packages]),
    }
    for name, value in settings.items():
        words += ["--setenv", name, value]
    return words
