"""Running a model's program for its output, without tests: the tool of ``rollout/tools/python.py``.

The result is sent as a ``Verdict``, whose reason has two parts: its first line says why the program failed, and is
empty where it did not; the rest is what the program printed, cut at ``MAX_OUTPUT``.

The same program prints the same: hashes and ``random`` are seeded. What depends on the clock or on addresses in memory
is not repeatable, and neither is a program that needs about as long as its deadline.

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
# The output ends when all who can write to the pipe have closed it. A process that the program has left behind may
# never do that, so the wait for the end has an end.
OUTPUT_WAIT_S = 1.0


def load_scripts() -> Exam:
    """The loader that ``GradingPool`` names. ``run_in_cell`` runs in the sandboxed process, ``receive_result`` in the
    one that holds the other end of the channel."""
    return Exam(runner=run_in_cell, examiner=receive_result)


def run_in_cell(channel_fd: int) -> None:
    """Run a program and send what came of it."""
    channel, program = receive_program(channel_fd)
    output = CapturedOutput()
    output.take_descriptor(1)  # standard output: this process runs nothing but the program
    reason, printed = run_script(program, output)
    channel.send({"gives": [reason, printed]})


def run_script(program: str, output: CapturedOutput | None = None) -> tuple[str, str]:
    """Run a program; return why it failed, and what it printed until then.

    The reason is one of

    - "": it did not fail; to end with ``sys.exit`` is no failure either;
    - "syntax error";
    - "NameError" or another built-in exception;
    - "error": an exception of the program's own.
    """
    output = output or CapturedOutput()
    code = compile_program(program, "<program>")
    if code is None:
        output.close()
        return "syntax error", ""
    random.seed(0)
    our_main = sys.modules["__main__"]
    our_stdout = sys.stdout
    reason = ""
    sys.stdout = output.stream
    try:
        names = names_of_module("__main__")  # an empty module in the place of ours, which comes back below
        exec(code, names)  # noqa: S102  this is what the module is for
    except SystemExit:
        pass
    except BaseException as error:  # noqa: BLE001  whatever the program does is its result
        reason = kind_of_failure(error)
    finally:
        _flush(sys.stdout)  # which may be a stream of the program's own
        sys.modules["__main__"] = our_main
        sys.stdout = our_stdout
    return reason, output.close()


def _flush(stream: object) -> None:
    """Write what a stream has kept back. Does nothing for one that is closed, or is no stream: a program may have put
    anything in the place of ``sys.stdout``."""
    with contextlib.suppress(Exception):
        getattr(stream, "flush")()  # noqa: B009  no attribute of object


def receive_result(channel: Channel, _gold: str, program: str, deadline_s: float) -> Verdict:
    """Send a program to the process that runs it, and wait for the verdict: True where it did not fail, with the reason
    that the module describes; False and "program died" where its process ended. There is no gold answer to compare
    with."""
    try:
        channel.send({"program": program, "deadline_s": deadline_s})
        result = channel.receive().get("gives")
    except ChannelClosed:
        result = None
    if not (isinstance(result, list) and len(result) == 2 and all(isinstance(text, str) for text in result)):
        return False, "program died"
    reason, printed = result
    return not reason, f"{reason}\n{printed[: MAX_OUTPUT + len(CUT)]}"


class CapturedOutput:
    """Where a program's output goes: ``stream`` is its ``sys.stdout``, with ``buffer``, ``fileno`` and all else that
    belongs to a text file. A thread reads what is written, and keeps the first ``MAX_OUTPUT`` characters."""

    def __init__(self) -> None:
        self._reading_end, self._writing_end = os.pipe()
        # The program's stream has a copy of the writing end: it may close that, and we still have ours.
        self._binary = open(os.dup(self._writing_end), "wb")  # noqa: SIM115  closed by ``close``
        self.stream = io.TextIOWrapper(
            self._binary, encoding="utf-8", errors="surrogatepass", newline="\n", write_through=True
        )
        self._kept = b""
        self._was_cut = False
        self._reader = threading.Thread(target=self._read_all, daemon=True)
        self._reader.start()

    def take_descriptor(self, fd: int) -> None:
        """Let what is written to this file descriptor come here too."""
        os.dup2(self._writing_end, fd)

    def close(self) -> str:
        """End the capture and return the output: its first ``MAX_OUTPUT`` characters, and ``CUT`` where there were
        more."""
        for stream in (self.stream, self._binary, sys.__stdout__):
            _flush(stream)
        # The reader ends once all copies of the writing end are closed: that of descriptor 1, the stream's, and ours.
        with contextlib.suppress(OSError):
            if os.path.sameopenfile(1, self._writing_end):  # ``take_descriptor(1)``: open, it would keep the pipe open
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        with contextlib.suppress(Exception):
            self._binary.close()
        os.close(self._writing_end)
        self._reader.join(OUTPUT_WAIT_S)
        text = _decode_output(self._kept)
        was_cut = self._was_cut or len(text) > MAX_OUTPUT
        return text[:MAX_OUTPUT] + (CUT if was_cut else "")

    def _read_all(self) -> None:
        """Keep the beginning of the output, and read on to its end, so that the program never waits for a reader."""
        most_bytes = 4 * MAX_OUTPUT  # a character of UTF-8 has at most four
        while part := os.read(self._reading_end, 1 << 16):
            room = most_bytes - len(self._kept)
            self._kept += part[:room]
            self._was_cut = self._was_cut or len(part) > room
        os.close(self._reading_end)


def _decode_output(written: bytes) -> str:
    """Decode the output, with a mark in the place of bytes that are no text."""
    try:
        return written.decode("utf-8", "surrogatepass")  # half of a surrogate pair is escaped where it is shown
    except UnicodeDecodeError:
        return written.decode("utf-8", "replace")
