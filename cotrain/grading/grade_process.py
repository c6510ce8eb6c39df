"""One grading process (``grade_worker.py``, ``program_server.py``), as its pool holds it: started, asked, killed with
all that it started.

Left out: more than one request at a time; a pool has several of these.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cotrain.core.errors import UserError
from cotrain.core.types import Grade
from cotrain.grading.grade_worker import LEAST_PATIENCE_S, PATIENCE
from cotrain.grading.sandbox import Kind

MATHEMATICS = "cotrain.grading.mathematics:load_mathematics"
GRACE_S = 2.0  # after all patience, for a worker to say that it is at an end
DIED = "grader died"
MOST_LINE = 1 << 24  # bytes of a reply; a process that says more at once is ended
UNREAD = 64  # replies that may wait to be read
LOOK_S = 0.5  # seconds between looks at whether anybody will read them
START_S = 120.0  # a worker that has not loaded by then is given up

# nothing else of it, such as keys, is passed on
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "XDG_CONFIG_HOME")


class NotLoaded(UserError):
    """The library or program that compares answers cannot be loaded."""

    code = "E_GRADER_NOT_LOADED"

    def __init__(self, what: str, why: str) -> None:
        self.why = why
        super().__init__(f"answers are graded with {what}, which cannot be loaded: {why}")


class LineProcess:
    """One process that answers lines with lines, and a thread that reads these. ``end`` kills it with all that it
    started; forgotten ones end with this process."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        errors: int | None = None,
        end: Callable[[subprocess.Popen[bytes]], None] | None = None,
        folder: str | None = None,
    ) -> None:
        """``folder``: its working directory; None: that of this process."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._requests = process.stdin
        self.replies: queue.Queue[bytes | None] = queue.Queue(UNREAD)  # None: no more lines, or one too long
        ended = threading.Event()
        threading.Thread(target=_forward_lines, args=(process.stdout, self.replies, ended), daemon=True).start()
        self._end = weakref.finalize(self, _end_reading, ended, end or end_group, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_killed(self) -> bool:
        return not self._end.alive

    def has_ended(self) -> bool:
        """Whether the process itself has, its children aside; its id stays its own. Never on macOS before Python
        3.13."""
        waitid = getattr(os, "waitid", None)
        return bool(waitid and waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def kill(self) -> None:
        self._end()

    def send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):  # a process that has gone away shows in the reply
            self._requests.write((json.dumps(message) + "\n").encode("ascii"))
            self._requests.flush()


class Worker(LineProcess):
    """A process that grades. ``sandbox``: the kind of sandbox that it runs answers in, where they are programs."""

    def __init__(self, memory: int, judging: tuple[str, ...], sandbox: Kind | None = None) -> None:
        root = str(Path(__file__).resolve().parents[2])
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment["PYTHONHASHSEED"] = "0"  # what a program prints of a set does not depend on the process
        environment["PYTHONPATH"] = os.pathsep.join([root, *(p for p in sys.path if p and p != root)])
        server = ["grade_worker", str(memory)] if sandbox is None else ["program_server", str(memory), sandbox]
        command = [sys.executable, "-P", "-m", f"cotrain.grading.{server[0]}", *server[1:], *judging]
        super().__init__(command, environment, subprocess.DEVNULL)
        self._what = "math-verify" if judging[0] == MATHEMATICS else " ".join(judging)
        self._least_patience_s = LEAST_PATIENCE_S if sandbox is None else 0.0
        self._ready = False
        self._asked = 0

    def request_grade(self, gold: str, answer: str, deadline_s: float) -> Grade:
        """Grade one answer; the process is killed when it does not reply as it should."""
        if not self._ready:
            greeting = self._next_reply(START_S)
            if isinstance(greeting, str):
                return Grade(value=None, reason=greeting)
            if greeting.get("ready") is not True:
                self.kill()
                raise NotLoaded(self._what, str(greeting.get("error")))
            self._ready = True
        self._asked += 1
        self.send({"id": self._asked, "gold": gold, "answer": answer, "deadline_s": deadline_s})
        reply = self._next_reply(max(PATIENCE * deadline_s, self._least_patience_s) + GRACE_S)
        if isinstance(reply, str):
            return Grade(value=None, reason=reply)
        if reply.get("id") != self._asked:
            self.kill()
            return Grade(value=None, reason=DIED)
        return Grade(value=reply["value"], reason=reply["reason"])

    def _next_reply(self, timeout_s: float) -> dict[str, Any] | str:
        """The next reply, or why there is none; then the process is killed."""
        try:
            line = self.replies.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            return "timeout"
        if line is None:
            self.kill()
            return DIED
        return json.loads(line)


def _forward_lines(stream: IO[bytes], replies: queue.Queue[bytes | None], ended: threading.Event) -> None:
    """Lines as they come, until there are no more or one is too long. A process that writes what nobody reads waits for
    it, as for a full pipe; ``ended``: it was killed, and nobody reads any more."""
    with stream:
        while (line := stream.readline(MOST_LINE)).endswith(b"\n"):
            if not _put_line(replies, line, ended):
                return
    _put_line(replies, None, ended)


def _put_line(replies: queue.Queue[bytes | None], line: bytes | None, ended: threading.Event) -> bool:
    """Whether the line was taken before the process was killed."""
    while not ended.is_set():
        with contextlib.suppress(queue.Full):
            replies.put(line, timeout=LOOK_S)
            return True
    with contextlib.suppress(queue.Full):
        replies.put_nowait(None)  # for whoever still waits
    return False


def _end_reading(
    ended: threading.Event, end: Callable[[subprocess.Popen[bytes]], None], process: subprocess.Popen[bytes]
) -> None:
    ended.set()
    end(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started. Runs once, before anybody has waited for it: the id is still its own."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
