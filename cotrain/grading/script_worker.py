"""Running a model's program for its output, without tests: the tool of ``rollout/tools/python.py``.

The verdict carries two things in its phrase: why the program failed, "" where it did not, on the first line, and below
it what it printed, cut at ``MAX_OUTPUT``. The same program prints the same: hashes and ``random`` are seeded. What
depends on the clock or on addresses in memory is not repeatable, and neither is a program that needs about as long as
its deadline.

A program's output is all that it writes to file descriptor 1, be it by ``print``, ``sys.stdout.buffer`` or
``os.write``: a pipe that a thread reads. Left out: names that one program leaves to the next, messages of exceptions,
standard error.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import threading

from cotrain.grading.answer_worker import compile_program, names_of_module, receive_program
from cotrain.grading.channel import Channel, ChannelClosed, kind_of_failure
from cotrain.grading.exam import Exam, Verdict

MAX_OUTPUT = 500  # characters
CUT = "\n(cut)"
LAST_WORDS_S = 1.0  # to wait for the end of the output, where a process that the program has left behind may hold it


def load_scripts() -> Exam:
    """The loader that ``GradingPool`` names."""
    return Exam(runner=run_in_cell, examiner=receive_result)


def run_in_cell(number: int) -> None:
    """Run a program and send what came of it."""
    channel, program = receive_program(number)
    page = Page()
    page.take_descriptor(1)  # this process runs nothing else
    reason, printed = run_script(program, page)
    channel.send({"gives": [reason, printed]})


def run_script(program: str, page: Page | None = None) -> tuple[str, str]:
    """ "" or one of "syntax error", "NameError" or another built-in exception, "error" for one of the program's own;
    and what was printed, of a failed one before that. A program that ends itself with ``sys.exit`` has not failed.
    ``page``: what its ``sys.stdout`` writes on."""
    page = page or Page()
    code = compile_program(program, "<program>")
    if code is None:
        page.close()
        return "syntax error", ""
    random.seed(0)
    ours = sys.modules["__main__"]
    output = sys.stdout
    reason = ""
    sys.stdout = page.stream
    try:
        exec(code, names_of_module("__main__"))  # noqa: S102  this is what the module is for
    except SystemExit:
        pass
    except BaseException as error:  # noqa: BLE001  whatever the program does is its result
        reason = kind_of_failure(error)
    finally:
        _flush(sys.stdout)  # which may be one of the program's own
        sys.modules["__main__"] = ours
        sys.stdout = output
    return reason, page.close()


def _flush(stream: object) -> None:
    """Write what a stream has kept back, if it is one and is open."""
    with contextlib.suppress(Exception):
        getattr(stream, "flush")()  # noqa: B009  of whatever a program has put there


def receive_result(channel: Channel, nothing: str, program: str, deadline_s: float) -> Verdict:
    """Have a program run in its process and return the verdict: True and the output, or False and the reason, a line
    break and the output."""
    try:
        channel.send({"program": program, "deadline_s": deadline_s})
        said = channel.receive().get("gives")
    except ChannelClosed:
        said = None
    if not (isinstance(said, list) and len(said) == 2 and all(isinstance(text, str) for text in said)):
        return False, "program died"
    reason, printed = said
    return not reason, f"{reason}\n{printed[: MAX_OUTPUT + len(CUT)]}"


class Page:
    """Where a program's output goes: ``stream`` is its ``sys.stdout``, with ``buffer``, ``fileno`` and all else that
    belongs to a text file. The first ``MAX_OUTPUT`` characters are kept."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._binary = open(os.dup(self._writing), "wb")  # noqa: SIM115  a program may close it; else ``close`` does
        self.stream = io.TextIOWrapper(
            self._binary, encoding="utf-8", errors="surrogatepass", newline="\n", write_through=True
        )
        self._kept = b""
        self._more = False
        self._reader = threading.Thread(target=self._read_all, daemon=True)
        self._reader.start()

    def take_descriptor(self, number: int) -> None:
        """Let what is written to this file descriptor come here too."""
        os.dup2(self._writing, number)

    def close(self) -> str:
        """End the capture and return the output: its first ``MAX_OUTPUT`` characters, and ``CUT`` where there were
        more."""
        for stream in (self.stream, self._binary, sys.__stdout__):
            _flush(stream)
        with contextlib.suppress(OSError):
            if os.path.sameopenfile(1, self._writing):  # else the pipe would never end
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        with contextlib.suppress(Exception):
            self._binary.close()
        os.close(self._writing)
        self._reader.join(LAST_WORDS_S)
        text = _decode_output(self._kept)
        return f"{text[:MAX_OUTPUT]}{CUT if self._more or len(text) > MAX_OUTPUT else ''}"

    def _read_all(self) -> None:
        """Read to the end, so that whoever writes never waits, and keep the beginning."""
        most = 4 * MAX_OUTPUT  # bytes that a character of UTF-8 has at most
        while part := os.read(self._reading, 1 << 16):
            free = most - len(self._kept)
            self._kept += part[:free]
            self._more = self._more or len(part) > free
        os.close(self._reading)


def _decode_output(written: bytes) -> str:
    """Decode the output, with a mark in the place of bytes that are no text."""
    try:
        return written.decode("utf-8", "surrogatepass")  # half a pair is shown as one mark later on
    except UnicodeDecodeError:
        return written.decode("utf-8", "replace")
