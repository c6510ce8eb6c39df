"""Runs one command and kills all processes that it has started: ``python keeper.py COMMAND …``. Imports nothing of the
package.

All processes that the command starts become children of this process when their own parent ends
(``PR_SET_CHILD_SUBREAPER``), also a daemon that has cleared its environment and gone into a session of its own. They
are killed, until none is left, when the command ends, when this process gets SIGTERM, and when the run is gone. Where
somebody has killed this process itself, the run looks for processes with the rollout's key in their environment
(``program.py``).

Left out: systems without ``prctl``, where only that search is left.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PATIENCE_S = 10.0  # for processes that start others faster than they are killed
UNKNOWN_COMMAND = 127  # exit code where the command cannot be started


def main(words: list[str]) -> int:
    """The command's exit code, as a shell has it."""
    signal.signal(signal.SIGTERM, _end_early)
    _become_keeper()
    child = os.fork()
    if not child:
        _become_command(words)
    try:
        return os.waitstatus_to_exitcode(_wait_for(child))
    finally:
        end_children()


class EndedEarly(BaseException):
    """The rollout is over, or the run is gone."""


def _end_early(*_: object) -> None:
    raise EndedEarly


def _become_keeper() -> None:
    """From now on this process inherits what its descendants leave behind, and hears when the run is gone."""
    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _become_command(words: list[str]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{words[0]}: {error.strerror}\n".encode())
    os._exit(UNKNOWN_COMMAND)


def _wait_for(child: int) -> int:
    """The wait status of the command. Other children that end before it are reaped."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def end_children() -> None:
    """Kill all children until there are none: those of a child that was killed become this process's own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for child in children_of(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            while has_reaped_child():
                pass
        except ChildProcessError:  # there is no child any more
            return
        time.sleep(0.002)


def has_reaped_child() -> bool:
    """Reap a child that has ended; False where all of them are still running. Raises ChildProcessError for none."""
    pid, _ = os.waitpid(-1, os.WNOHANG)
    return pid != 0


def children_of(parent: int) -> list[int]:
    """The processes whose parent this is."""
    children = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                # "PID (NAME) STATE PARENT …", and a name may have brackets and spaces.
                _, _, behind_name = file.read().rpartition(b")")
                _, parent_text, *_ = behind_name.split()
                if int(parent_text) == parent:
                    children.append(int(name))
    return children


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except EndedEarly:
        code = -signal.SIGTERM
    os._exit(code if code >= 0 else 128 - code)
