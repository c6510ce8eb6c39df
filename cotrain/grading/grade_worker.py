"""The process that compares answers with gold answers; ``grading.GradingPool`` starts and kills it.

Answers are written by a model and may be anything: ``9^{9^{9^9}}`` keeps sympy busy for ever, and a thread cannot be
killed. So comparisons run in a process of their own, in its own session, with limits on CPU time, memory and files.

**Forks.** Loading math-verify takes longer than most deadlines. So this process loads it once and has a fork of itself
compare: after a deadline only the fork is killed, with all that it started, and the next fork is there within
milliseconds.

**Lessons.** What a fork has loaded and cached dies with it (ANTLR's tables, sympy's lazy imports: the first answer of a
kind takes twenty times as long). So after a fork was killed this process makes some comparisons itself, which the next
forks then inherit: those that a ``Judging`` names, and such as forks were slow at, and survived.

**Deadlines** are of CPU time, so that a busy machine does not turn right answers into ungraded ones; several times as
long by the clock (``PATIENCE``) ends a fork too. A gold answer is read before its deadline begins, as nobody hostile
wrote it.

Requests are lines of JSON, ``{"id", "gold", "answer", "deadline_s"}``, and replies ``{"id", "value", "reason"}``. This
is no sandbox: answers that are programs are run by ``program_server.py``.

What compares is a ``Judging``, named as ``module:function`` that loads it: ``mathematics.py``, environments of
verifiers in ``envs/verifiers/worker.py``.

Left out: forks on Windows, where the pool kills the whole process.

Run as ``python -m cotrain.grading.grade_worker MEMORY_BYTES MODULE:FUNCTION [ARGUMENT]``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import select
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from cotrain.grading.exam import Verdict

PATIENCE = 4.0  # seconds by the clock for each second of the deadline
# At least so many seconds by the clock, for a ``Judging`` that never sleeps: where it takes long, the machine is busy.
LEAST_PATIENCE_S = 20.0
MOST_LESSONS = 512
LESSON_S = 0.03  # CPU time of a comparison from which on it is worth to be made again
LONGEST_LESSON_S = 1.0  # and up to which it is
GOLD_S = 5.0  # CPU time for reading a gold answer
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STRAYS_S = 2.0  # to end the processes that a fork has left behind; then this process gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How answers are compared."""

    judge: Callable[[str, str], Verdict]  # (gold, answer) → verdict
    read: Callable[[str], object] | None = None  # reads the gold answer before the deadline begins; ``judge`` reuses it
    least_patience_s: float = 0.0  # see ``LEAST_PATIENCE_S``
    lessons: tuple[tuple[str, str], ...] = ()  # (gold, answer) pairs that are slow the first time; () teaches nothing


def main(memory_bytes: int, loader: str, *argument: str) -> None:
    """Serve until standard input ends."""
    replies = _take_stdout()
    module, _, function = loader.partition(":")
    try:
        judging: Judging = getattr(importlib.import_module(module), function)(*argument)
    except ImportError as error:
        _send_reply(replies, {"ready": False, "error": str(error)})
        return

    tempfile.gettempdir()  # it tries folders by writing a file, which the limit below forbids, and keeps the result
    _set_soft_limit("AS", memory_bytes)
    _set_soft_limit("FSIZE", 0)
    _set_soft_limit("CORE", 0)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _send_reply(replies, {"ready": True})
    fork: _Fork | None = None
    lessons = _Lessons(judging)
    for line in sys.stdin:
        if sys.platform == "win32":
            _send_reply(replies, _grade_line(judging, line))
            continue
        request = json.loads(line)
        fork = fork or _Fork(judging)
        reply = fork.request_reply(line, request["deadline_s"])
        if isinstance(reply, str):
            fork.kill()
            fork = None
            _send_reply(replies, {"id": request["id"], "value": None, "reason": reply})
            lessons.learn_all()
        else:
            lessons.add(request, reply)
            _send_reply(replies, reply)

    if fork is not None:
        fork.kill()


class _Lessons:
    """Comparisons that this process makes itself, so that later forks inherit what they load and cache."""

    def __init__(self, judging: Judging) -> None:
        self._judging = judging
        self._to_learn = deque(judging.lessons)
        self._n_learned = 0

    def add(self, request: dict[str, Any], reply: dict[str, Any]) -> None:
        """Keep a comparison that a fork has survived, if it was slow."""
        if not self._judging.lessons or self._n_learned + len(self._to_learn) >= MOST_LESSONS:
            return
        if reply["value"] is not None and LESSON_S < reply["spent_s"] < LONGEST_LESSON_S:
            self._to_learn.append((request["gold"], request["answer"]))

    def learn_all(self) -> None:
        while self._to_learn:
            gold, answer = self._to_learn.popleft()
            self._judging.judge(gold, answer)
            self._n_learned += 1


def _grade_line(judging: Judging, line: str) -> dict[str, Any]:
    """The reply to a request, in this process, which ends where it takes too long."""
    request = json.loads(line)
    gold = request["gold"]
    began = time.process_time()
    if judging.read is not None:
        _die_after(GOLD_S)
        judging.read(gold)
    _die_after(request["deadline_s"])
    value, reason = judging.judge(gold, request["answer"])
    _die_after(0.0)
    return {"id": request["id"], "value": value, "reason": reason, "spent_s": time.process_time() - began}


def _die_after(seconds: float) -> None:
    """End this process when it has used so many seconds of CPU time from now on; 0 takes that back."""
    if sys.platform == "win32":
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal has no handler, and so ends the process
    if seconds:
        # For code that blocks or handles the signal.
        _set_soft_limit("CPU", math.ceil(time.process_time() + seconds) + 1)


class _Fork:
    """A copy of this process, with everything loaded, that answers until it is killed."""

    def __init__(self, judging: Judging) -> None:
        fork_requests, our_requests = os.pipe()
        our_replies, fork_replies = os.pipe()
        gc.freeze()  # a collection in the fork would copy every page that it looks at
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(our_requests)  # else it would never see the end of its requests
                _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                with (
                    os.fdopen(fork_requests, encoding="ascii") as lines,
                    os.fdopen(fork_replies, "w", encoding="ascii") as replies,
                ):
                    for line in lines:
                        _send_reply(replies, _grade_line(judging, line))
            finally:
                os._exit(0)

        os.close(fork_requests)
        os.close(fork_replies)
        self._requests_fd = our_requests
        self._replies_fd = our_replies
        self._least_patience_s = judging.least_patience_s
        self._has_been_waited_for = False

    def request_reply(self, line: str, deadline_s: float) -> dict[str, Any] | str:
        """The reply; a text, the reason, where there is none."""
        try:
            with os.fdopen(self._requests_fd, "w", encoding="ascii", closefd=False) as requests:
                requests.write(line)
        except OSError:
            return "grader died"

        patience_s = max(PATIENCE * deadline_s, self._least_patience_s)
        if not select.select([self._replies_fd], [], [], patience_s)[0]:
            return "timeout"
        raw_reply = os.read(self._replies_fd, 1 << 16)  # a reply is one short line
        if not raw_reply:
            return self._why_it_ended()
        with contextlib.suppress(ValueError):
            reply = json.loads(raw_reply)
            if isinstance(reply, dict):
                return reply
        return "grader died"

    def _why_it_ended(self) -> str:
        """The reason of a fork that has closed its replies: it has ended, as a rule, which may take it a moment."""
        for _ in range(20):
            ended_pid, status = os.waitpid(self.pid, os.WNOHANG)
            if ended_pid:
                self._has_been_waited_for = True
                ended_by = -os.waitstatus_to_exitcode(status)
                return "timeout" if ended_by in (signal.SIGPROF, signal.SIGXCPU) else "grader died"
            time.sleep(0.01)
        return "grader died"

    def kill(self) -> None:
        """Kill the fork and all that it started."""
        if not self._has_been_waited_for:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._requests_fd)
        os.close(self._replies_fd)
        _kill_strays()


def _kill_strays() -> None:
    """Kill the processes that a fork has left behind. On Linux they become children of this process, whatever session
    they are in (``PR_SET_CHILD_SUBREAPER``), and so do their children when they end. Ends this process where new ones
    come faster than they are killed."""
    until = time.monotonic() + STRAYS_S
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # no child is left
        for stat_file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat_file.read_text().rpartition(")")[2].split()  # from the third on, proc_pid_stat(5)
                parent_pid = int(fields[1])
                if parent_pid == os.getpid():
                    os.kill(int(stat_file.parent.name), signal.SIGKILL)
    os._exit(1)


def _prctl(what: int, value: int) -> None:
    """A setting of this process, on Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def _take_stdout() -> TextIO:
    """Keep standard output for replies; whatever a library prints goes nowhere."""
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return replies


def _send_reply(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _set_soft_limit(name: str, value: int) -> None:
    """Set the soft limit RLIMIT_NAME, which can be raised again: CPU time gets a new one with each answer. Windows has
    no limits: there the pool's deadline is all."""
    if sys.platform == "win32":
        return
    import resource

    limit = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(limit)
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(limit, (soft, hard))
    except ValueError:  # macOS refuses a limit on address space below what is mapped
        if name != "AS":
            raise


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
    os._exit(0)  # at once: there is nothing to clear up, which would take Python a while
