"""The process that compares two mathematical answers with math-verify; ``grading.GradingPool`` starts and kills it.

Answers are written by a model and may be anything: ``9^{9^{9^9}}`` keeps sympy busy for ever, and a thread cannot be
killed. So this runs in a process of its own, in its own session, with limits on CPU time, memory and files. Loading
math-verify takes longer than most deadlines, so that process loads it once and has a fork of itself do the work: after a
deadline only the fork is killed, and the next one is there within milliseconds. The deadline is one of CPU time, so that
a busy machine does not turn right answers into ungraded ones; ``PATIENCE`` times as long by the clock ends it too. Both speak JSON lines:
``{"id", "gold", "answer"}`` in, ``{"id", "value", "reason"}`` out. It is no sandbox: it only ever reads mathematics.

Left out: math-verify's own timeouts (signals), since the deadline covers parsing as well; forks on Windows, where the pool
kills the whole process.

Run as ``python -m cotrain.tasks.grade_worker DEADLINE_SECONDS MEMORY_BYTES``.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

PATIENCE = 4.0  # seconds by the clock for each of the deadline's
Verdict = tuple[bool | None, str | None]  # (value, reason when there is none)

# What sympy raises on odd mathematics. Anything else ends the process, which the pool reports as "grader died".
_ODD = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def main(deadline_s: float, memory_bytes: int) -> None:
    """Serve until standard input ends."""
    replies = _take_stdout()
    try:
        judge = load_judge()
    except ImportError as error:
        _send(replies, {"ready": False, "error": str(error)})
        return
    _limit("AS", memory_bytes)
    _limit("FSIZE", 0)
    _limit("CORE", 0)
    judge("\\frac12", "x^2+x")  # the first comparisons load half of sympy: not at the expense of somebody's deadline
    _send(replies, {"ready": True})
    fork: _Fork | None = None
    for line in sys.stdin:
        if sys.platform == "win32":
            _send(replies, _reply(judge, line, deadline_s))
            continue
        fork = fork or _Fork(judge, deadline_s)
        reply = fork.ask(line, deadline_s)
        if isinstance(reply, str):  # why there is none
            fork.kill()
            fork, reply = None, {"id": json.loads(line)["id"], "value": None, "reason": reply}
        _send(replies, reply)
    if fork is not None:
        fork.kill()


def _reply(judge: Callable[[str, str], Verdict], line: str, deadline_s: float) -> dict[str, Any]:
    request = json.loads(line)
    _limit("CPU", math.ceil(time.process_time() + deadline_s) + 1)  # in case nobody is left to kill us
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, deadline_s)  # ends the process, wherever it is: nothing handles the signal
    value, reason = judge(request["gold"], request["answer"])
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"id": request["id"], "value": value, "reason": reason}


class _Fork:
    """A copy of this process, with everything loaded, that answers requests until it is killed."""

    def __init__(self, judge: Callable[[str, str], Verdict], deadline_s: float) -> None:
        requests, ask = os.pipe()
        said, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ask)  # else it would never see the end of its requests
            try:
                with os.fdopen(requests, encoding="ascii") as lines, os.fdopen(say, "w", encoding="ascii") as replies:
                    for line in lines:
                        _send(replies, _reply(judge, line, deadline_s))
            finally:
                os._exit(0)
        os.close(requests)
        os.close(say)
        self._ask, self._said = ask, said

    def ask(self, line: str, deadline_s: float) -> dict[str, Any] | str:
        """The reply, or why there is none."""
        try:
            with os.fdopen(self._ask, "w", encoding="ascii", closefd=False) as requests:
                requests.write(line)
        except OSError:
            return "grader died"
        if not select.select([self._said], [], [], PATIENCE * deadline_s)[0]:
            return "timeout"
        if line := os.read(self._said, 1 << 16).decode():  # one short line
            reply: dict[str, Any] = json.loads(line)
            return reply
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return "timeout" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF else "grader died"

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._ask)
        os.close(self._said)


def load_judge() -> Callable[[str, str], Verdict]:
    """Import math-verify (slow) and return the comparison. Raises ImportError when it is not installed."""
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> list[Any]:
        return parse("\\boxed{" + text + "}", config, fallback_mode="no_fallback", parsing_timeout=None)

    def judge(gold: str, answer: str) -> Verdict:
        try:
            golds, answers = read(gold), read(answer)
            if not golds:
                return None, "gold not readable"
            if not answers:
                return False, None
            return bool(verify(golds, answers, timeout_seconds=None, raise_on_error=True)), None
        except MemoryError:
            return None, "out of memory"
        except _ODD:
            return None, "grader error"

    return judge


def _take_stdout() -> TextIO:
    """Keep standard output for replies; whatever a library prints goes nowhere."""
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return replies


def _send(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _limit(what: str, value: int) -> None:
    """Set a soft resource limit; the hard limit stays. Windows has none: there the pool's deadline is all."""
    if sys.platform == "win32":
        return
    import resource

    kind = getattr(resource, f"RLIMIT_{what}")
    hard = resource.getrlimit(kind)[1]
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (soft, hard))
    except ValueError:  # macOS refuses a limit on address space below what is mapped
        if what != "AS":
            raise


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # there is nothing to clear up, and Python takes its time for it
