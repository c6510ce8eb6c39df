"""The process that compares answers with gold answers; ``grading.GradingPool`` starts and kills it.

Answers are written by a model and may be anything: ``9^{9^{9^9}}`` keeps sympy busy for ever, and a thread cannot be
killed. So this runs in a process of its own, in its own session, with limits on CPU time, memory and files. Loading
math-verify takes longer than most deadlines, so that process loads it once and has a fork of itself do the work: after
a deadline only the fork is killed, with its group, and the next one is there within milliseconds. What a fork has
learned dies with it (ANTLR's tables, sympy's lazy imports: the first answer of a kind takes twenty times as long), so
before the next one the process itself makes a few comparisons: of many kinds, and those that forks have survived and
were slow at. The deadline is one of CPU time, so that a busy machine does not turn right answers into ungraded ones;
several times as long by the clock ends it too. Gold answers are read before it begins: nobody hostile wrote them. Both
speak JSON lines: ``{"id", "gold", "answer", "deadline_s"}`` in, ``{"id", "value", "reason"}`` out. It is no sandbox:
answers that are programs are run by ``program_server.py``.

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

PATIENCE = 4.0  # seconds by the clock for each of the deadline's
LEAST_PATIENCE_S = 20.0  # seconds by the clock, at least, for what never sleeps: then it is the machine that is busy
ENOUGH = 512  # comparisons that are learned from, in all
LESSON_S = 0.03, 1.0  # CPU time: what took less taught little, what took longer is not done again
GOLD_S = 5.0  # CPU time for reading a gold answer
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STRAYS_S = 2.0  # to end what an answer's program started; then the whole process gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How answers are compared."""

    judge: Callable[[str, str], Verdict]  # (gold, answer) → verdict
    read: Callable[[str], object] | None = None  # reads the gold answer before the deadline begins
    least_patience_s: float = 0.0
    lessons: tuple[tuple[str, str], ...] = ()  # comparisons that are slow the first time, made again after a kill


def main(memory_bytes: int, loader: str, *argument: str) -> None:
    """Serve until standard input ends."""
    replies = _take_stdout()
    module, _, function = loader.partition(":")
    try:
        judging: Judging = getattr(importlib.import_module(module), function)(*argument)
    except ImportError as error:
        _send_reply(replies, {"ready": False, "error": str(error)})
        return

    tempfile.gettempdir()  # found by writing a file, which is not possible any more after this
    _set_soft_limit("AS", memory_bytes)
    _set_soft_limit("FSIZE", 0)
    _set_soft_limit("CORE", 0)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _send_reply(replies, {"ready": True})
    fork: _Fork | None = None
    lessons = deque(judging.lessons)  # what this process, and so a new fork, does not know yet
    learned = 0
    for line in sys.stdin:
        if sys.platform == "win32":
            _send_reply(replies, _grade_line(judging, line))
            continue
        request = json.loads(line)
        deadline_s = request["deadline_s"]
        fork = fork or _Fork(judging)
        reply = fork.request_reply(line, deadline_s)
        failed = isinstance(reply, str)
        if isinstance(reply, str):  # why there is none
            reply = {"id": request["id"], "value": None, "reason": reply}
        elif (
            judging.lessons
            and learned + len(lessons) < ENOUGH
            and reply["value"] is not None
            and LESSON_S[0] < reply["spent_s"] < LESSON_S[1]
        ):
            lessons.append((request["gold"], request["answer"]))

        if failed:
            fork.kill()
            fork = None
        _send_reply(replies, reply)
        while failed and lessons:
            judging.judge(*lessons.popleft())
            learned += 1

    if fork is not None:
        fork.kill()


def _grade_line(judging: Judging, line: str) -> dict[str, Any]:
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
    """End this process when it has spent so much CPU time from now on, wherever it is; 0 takes that back."""
    if sys.platform == "win32":
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)  # nothing handles its signal
    if seconds:
        _set_soft_limit("CPU", math.ceil(time.process_time() + seconds) + 1)  # in case nobody is left to kill us


class _Fork:
    """A copy of this process, with everything loaded, that answers until it is killed."""

    def __init__(self, judging: Judging) -> None:
        requests, ask = os.pipe()
        said, say = os.pipe()
        gc.freeze()  # a collection in the fork would copy every page that it looks at
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(ask)  # else it would never see the end of its requests
                _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                with os.fdopen(requests, encoding="ascii") as lines, os.fdopen(say, "w", encoding="ascii") as replies:
                    for line in lines:
                        _send_reply(replies, _grade_line(judging, line))
            finally:
                os._exit(0)

        os.close(requests)
        os.close(say)
        self._ask = ask
        self._said = said
        self._least_patience_s = judging.least_patience_s
        self._status: int | None = None  # once it has ended

    def request_reply(self, line: str, deadline_s: float) -> dict[str, Any] | str:
        """The reply, or why there is none."""
        try:
            with os.fdopen(self._ask, "w", encoding="ascii", closefd=False) as requests:
                requests.write(line)
        except OSError:
            return "grader died"

        if not select.select([self._said], [], [], max(PATIENCE * deadline_s, self._least_patience_s))[0]:
            return "timeout"
        if raw_reply := os.read(self._said, 1 << 16):  # one short line
            with contextlib.suppress(ValueError):
                reply = json.loads(raw_reply)
                if isinstance(reply, dict):
                    return reply
            return "grader died"

        for _ in range(20):  # it has ended, or closed its files and goes on
            ended_pid, status = os.waitpid(self.pid, os.WNOHANG)
            if ended_pid:
                self._status = status
                late = -os.waitstatus_to_exitcode(status) in (signal.SIGPROF, signal.SIGXCPU)
                return "timeout" if late else "grader died"
            time.sleep(0.01)
        return "grader died"

    def kill(self) -> None:
        """End it and all that it started; orphans are adopted here (Linux)."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._ask)
        os.close(self._said)
        _end_strays()


def _end_strays() -> None:
    """End the processes that a fork has left behind, wherever they went. Ends this one where they come faster."""
    until = time.monotonic() + STRAYS_S
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for process in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(process.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    os.kill(int(process.parent.name), signal.SIGKILL)
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


def _set_soft_limit(what: str, value: int) -> None:
    """Set a soft resource limit. Windows has none: there the pool's deadline is all."""
    if sys.platform == "win32":
        return
    import resource

    kind = getattr(resource, f"RLIMIT_{what}")
    most = resource.getrlimit(kind)[1]
    soft = value if most == resource.RLIM_INFINITY else min(value, most)
    try:
        resource.setrlimit(kind, (soft, most))
    except ValueError:  # macOS refuses a limit on address space below what is mapped
        if what != "AS":
            raise


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
    os._exit(0)  # there is nothing to clear up, and Python takes its time for it
