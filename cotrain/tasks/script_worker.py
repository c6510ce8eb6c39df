"""A program run for what it prints, loaded by ``grade_worker.py``: the limits and the warning of ``program_worker.py`` hold.

The verdict carries two things in its phrase: why the program failed, "" where it did not, on the first line, and below it what
it printed, cut at ``MAX_OUTPUT``. The same program prints the same: hashes and ``random`` are seeded. What depends on the clock, on
addresses in memory or on the network is not repeatable, and neither is a program that needs about as long as its deadline.

Left out: names that one program leaves to the next, messages of exceptions, what is written past ``sys.stdout``.
"""

from __future__ import annotations

import io
import random
from contextlib import redirect_stdout
from typing import Any

from cotrain.tasks.grade_worker import Judging, Verdict
from cotrain.tasks.program_worker import compiled, kind_of_failure

MAX_OUTPUT = 500  # characters; six bytes each, or twelve, they still fit one write to the pool's pipe
CUT = "\n(cut)"


def load_scripts() -> Judging:
    """The loader that ``GradingPool`` names."""
    return Judging(judge=run, alone=True)


def run(nothing: str, program: str) -> Verdict:
    """True and what was printed, or False and one of "syntax error", "NameError" or another built-in exception, "error" for one
    of the program's own, with what was printed before it. A program that ends itself with ``sys.exit`` has not failed."""
    code = compiled(program, "<program>")
    if code is None:
        return False, "syntax error\n"
    random.seed(0)
    page = Page()
    names: dict[str, Any] = {"__name__": "__main__"}
    reason = ""
    with redirect_stdout(page):
        try:
            exec(code, names)  # noqa: S102  this is what the module is for
        except SystemExit:
            pass
        except BaseException as error:  # noqa: BLE001  whatever the program does is its result
            reason = kind_of_failure(error)
    return not reason, f"{reason}\n{page.kept}{CUT if page.more else ''}"


class Page(io.TextIOBase):
    """Standard output that keeps its first ``MAX_OUTPUT`` characters."""

    def __init__(self) -> None:
        self.kept = ""
        self.more = False  # was there anything behind them

    def write(self, text: str) -> int:
        room = MAX_OUTPUT - len(self.kept)
        self.kept += text[:room]
        self.more = self.more or len(text) > room
        return len(text)
