"""Running a model's program for its output, without tests: the tool of ``rollout/python_tool.py``.

The verdict carries two things in its phrase: why the program failed, "" where it did not, on the first line, and below
it what it printed, cut at ``MAX_OUTPUT``. The same program prints the same: hashes and ``random`` are seeded. What
depends on the clock or on addresses in memory is not repeatable, and neither is a program that needs about as long as
its deadline.

Left out: names that one program leaves to the next, messages of exceptions, what is written past ``sys.stdout``.
"""

from __future__ import annotations

import io
import random
from contextlib import redirect_stdout
from typing import Any

from cotrain.grading.answer_worker import compile_program, receive_program
from cotrain.grading.channel import Channel, ChannelClosed, kind_of_failure
from cotrain.grading.exam import Exam, Verdict

MAX_OUTPUT = 500  # characters
CUT = "\n(cut)"


def load_scripts() -> Exam:
    """The loader that ``GradingPool`` names."""
    return Exam(inside=run_in_cell, outside=receive_result)


def run_in_cell(number: int) -> None:
    """Run a program and send what came of it."""
    channel, program = receive_program(number)
    reason, printed = run_script(program)
    channel.send({"gives": [reason, printed]})


def run_script(program: str) -> tuple[str, str]:
    """ "" or one of "syntax error", "NameError" or another built-in exception, "error" for one of the program's own;
    and what was printed, of a failed one before that. A program that ends itself with ``sys.exit`` has not failed."""
    code = compile_program(program, "<program>")
    if code is None:
        return "syntax error", ""
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
    return reason, f"{page.kept}{CUT if page.more else ''}"


def receive_result(channel: Channel, nothing: str, program: str, deadline_s: float) -> Verdict:
    """What the program's process says of it: True and what was printed, or False, the reason and what was printed."""
    try:
        channel.send({"program": program, "deadline_s": deadline_s})
        said = channel.receive().get("gives")
    except ChannelClosed:
        said = None
    if not (isinstance(said, list) and len(said) == 2 and all(isinstance(text, str) for text in said)):
        return False, "program died"
    reason, printed = said
    return not reason, f"{reason}\n{printed[: MAX_OUTPUT + len(CUT)]}"


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
