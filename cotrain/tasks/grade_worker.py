"""The process that compares two mathematical answers with math-verify; ``grading.GradingPool`` starts and kills it.

Answers are written by a model and may be anything: ``9^{9^{9^9}}`` keeps sympy busy for ever, and a thread cannot be
killed. So this runs in a process of its own, in its own session, with limits on CPU time, memory and files. It speaks
JSON lines: ``{"id", "gold", "answer"}`` in, ``{"id", "value", "reason"}`` out. It is no sandbox: it only ever reads
mathematics. Left out: math-verify's own timeouts (signals), since the pool's deadline covers parsing as well.

Run as ``python -m cotrain.tasks.grade_worker DEADLINE_SECONDS MEMORY_BYTES``.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

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
    _send(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        _limit("CPU", math.ceil(time.process_time() + deadline_s) + 1)  # in case nobody is left to kill us
        value, reason = judge(request["gold"], request["answer"])
        _send(replies, {"id": request["id"], "value": value, "reason": reason})


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
