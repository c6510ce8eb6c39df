"""A program and its tests, run to their end: the judging of ``programs.py``, loaded by ``grade_worker.py``.

This, with ``script_worker.py``, is the one place that runs what a model wrote. **It is not a security boundary.** The program runs
as the same user, in a fork of its own that has limits (CPU seconds, address space, size of files, number of files; processes and
threads for any user but root), no open files of ours, an empty folder to work in, an empty environment, and output that goes nowhere;
at the deadline its process group is killed, and on Linux whatever left the group too. It can still read files, use the network, and
find in its own memory how a verdict is reported. For models that may be hostile name a real sandbox (``programs.Sandbox``).

Left out: a wrong program's message (it may be anything), partial credit, programs that read input.
"""

from __future__ import annotations

import builtins
from types import CodeType
from typing import Any

from cotrain.tasks.grade_worker import Judging, Verdict


def load_programs() -> Judging:
    """The loader that ``GradingPool`` names."""
    return Judging(judge=run, alone=True)


def run(tests: str, program: str) -> Verdict:
    """Right: the program and then the tests, in the same names, end without an exception.

    Wrong: "syntax error", "test failed", "NameError" or another built-in exception, "error" for one of the program's own. Not
    graded: "tests not readable".
    """
    checks, code = compiled(tests, "<tests>"), compiled(program, "<answer>")
    if checks is None:
        return None, "tests not readable"
    if code is None:
        return False, "syntax error"
    names: dict[str, Any] = {"__name__": "answer"}  # so that a block under __main__ is not run
    for part in (code, checks):
        try:
            exec(part, names)  # noqa: S102  this is what the module is for
        except BaseException as error:  # noqa: BLE001  whatever the program does is its verdict
            failed_test = part is checks and type(error) is AssertionError
            return False, "test failed" if failed_test else kind_of_failure(error)
    return True, None


def compiled(source: str, name: str) -> CodeType | None:
    """A program's code; None where it is not Python."""
    try:
        return compile(source, name, "exec")
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None


def kind_of_failure(error: BaseException) -> str:
    """A short phrase of a fixed set: metrics are counted under it, and a program may call its exceptions anything."""
    kind = type(error)
    return kind.__name__ if getattr(builtins, kind.__name__, None) is kind else "error"
