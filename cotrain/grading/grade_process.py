"""One grading process (``grade_worker.py``, ``program_server.py``), as its pool sees it: started, sent requests, killed
with all that it started.

Left out: more than one request at a time; a pool has several processes.
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
GRACE_S = 2.0  # a worker replies "timeout" itself when ``PATIENCE`` is over, and has so much longer to say it
DIED = "grader died"
MOST_LINE = 1 << 24  # bytes of a reply; a process that writes a longer one is ended
MOST_UNREAD = 64  # replies that may wait to be read
LOOK_S = 0.5  # between looks at whether the process was killed, while a reply waits for a place in the queue
START_S = 120.0  # a worker that has not loaded by then is given up

# All that a worker gets of this process's environment: it holds keys, too.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "XDG_CONFIG_HOME")


class NotLoaded(UserError):
    """The library or program that compares answers cannot be loaded."""

    code = "E_GRADER_NOT_LOADED"

    def __init__(self, what: str, why: str) -> None:
        self.why = why
        super().__init__(f"answers are graded with {what}, which cannot be loaded: {why}")


class LineProcess:
    """One process that answers lines with lines, and a thread that reads its replies. A process that nobody kills is
    killed when this object is collected, or when this process ends."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        errors: int | None = None,
        end: Callable[[subprocess.Popen[bytes]], None] | None = None,
        folder: str | None = None,
    ) -> None:
        """
        Args:
            environment: its environment; None: that of this process.
            errors: where its standard error goes, as ``stderr`` of ``subprocess.Popen``.
            end: kills it with all that it started; None: ``end_group``.
            folder: its working directory; None: that of this process.
        """
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
        self.replies: queue.Queue[bytes | None] = queue.Queue(MOST_UNREAD)  # at the end, or for a line too long: None
        killed = threading.Event()
        threading.Thread(target=_forward_lines, args=(process.stdout, self.replies, killed), daemon=True).start()
        self._kill_once = weakref.finalize(self, _kill_process, killed, end or end_group, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_killed(self) -> bool:
        return not self._kill_once.alive

    def has_ended(self) -> bool:
        """Whether the process has ended; its children may go on. Nobody has waited for it yet, so its id is not given
        to another process. Always False on macOS before Python 3.13."""
        waitid = getattr(os, "waitid", None)
        return bool(waitid and waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def kill(self) -> None:
        """Kill the process with all that it started; a second call does nothing."""
        self._kill_once()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line. That the process has ended shows when its reply is read."""
        with contextlib.suppress(OSError, ValueError):
            self._requests.write((json.dumps(message) + "\n").encode("ascii"))
            self._requests.flush()


class Worker(LineProcess):
    """A process that grades answers: ``program_server.py`` where they are programs, else ``grade_worker.py``."""

    def __init__(self, memory_bytes: int, judging: tuple[str, ...], sandbox: Kind | None = None) -> None:
        """
        Args:
            memory_bytes: its address space, or that of a program.
            judging: MODULE:FUNCTION that loads what answers are compared with, and its argument, if it has one.
            sandbox: the kind that programs run in; None where answers are no programs.
        """
        root = str(Path(__file__).resolve().parents[2])
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment["PYTHONHASHSEED"] = "0"  # a program prints the items of a set in the same order in each process
        environment["PYTHONPATH"] = os.pathsep.join([root, *(path for path in sys.path if path and path != root)])
        if sandbox is None:
            server = ["cotrain.grading.grade_worker", str(memory_bytes)]
        else:
            server = ["cotrain.grading.program_server", str(memory_bytes), sandbox]
        command = [sys.executable, "-P", "-m", *server, *judging]
        super().__init__(command, environment, errors=subprocess.DEVNULL)
        self._judging_name = "math-verify" if judging[0] == MATHEMATICS else " ".join(judging)
        self._least_patience_s = LEAST_PATIENCE_S if sandbox is None else 0.0
        self._is_ready = False
        self._n_requests = 0

    def request_grade(self, gold: str, answer: str, deadline_s: float) -> Grade:
        """Grade one answer; the process is killed when it does not reply as it should."""
        if not self._is_ready:
            greeting = self._next_reply(START_S)
            if isinstance(greeting, str):
                return Grade(value=None, reason=greeting)
            if greeting.get("ready") is not True:
                self.kill()
                raise NotLoaded(self._judging_name, str(greeting.get("error")))
            self._is_ready = True
        self._n_requests += 1
        self.send({"id": self._n_requests, "gold": gold, "answer": answer, "deadline_s": deadline_s})
        reply = self._next_reply(max(PATIENCE * deadline_s, self._least_patience_s) + GRACE_S)
        if isinstance(reply, str):
            return Grade(value=None, reason=reply)
        if reply.get("id") != self._n_requests:
            self.kill()
            return Grade(value=None, reason=DIED)
        return Grade(value=reply["value"], reason=reply["reason"])

    def _next_reply(self, timeout_s: float) -> dict[str, Any] | str:
        """The next reply. Where there is none, the process is killed, and the result is the reason, a text."""
        try:
            line = self.replies.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            return "timeout"
        if line is None:
            self.kill()
            return DIED
        return json.loads(line)


def _forward_lines(stream: IO[bytes], replies: queue.Queue[bytes | None], killed: threading.Event) -> None:
    """Put the lines of a stream into a queue as they come, and None at the end, which a line that is too long is, too.
    While the queue is full nothing is read, so that the process waits as for a full pipe."""
    with stream:
        while (line := stream.readline(MOST_LINE)).endswith(b"\n"):
            if not _put_line(replies, line, killed):
                return
    _put_line(replies, None, killed)


def _put_line(replies: queue.Queue[bytes | None], line: bytes | None, killed: threading.Event) -> bool:
    """Whether the queue took the line before the process was killed."""
    while not killed.is_set():
        with contextlib.suppress(queue.Full):
            replies.put(line, timeout=LOOK_S)
            return True
    with contextlib.suppress(queue.Full):
        replies.put_nowait(None)  # for whoever still waits for a reply
    return False


def _kill_process(
    killed: threading.Event, end: Callable[[subprocess.Popen[bytes]], None], process: subprocess.Popen[bytes]
) -> None:
    killed.set()
    end(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group, in which all is that it started and that has not left. To be called once, before
    anybody has waited for the process: until then no other process gets its id."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
