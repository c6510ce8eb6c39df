"""A process that grades programs one after the other, each in a new sandbox. ``grade_process.py`` starts it.

::

    pool ──request──▶ examiner ──program, arguments──▶ answer, in its sandbox
      ▲                  │    ◀──values──────────────
      └──grade── server ◀┘ verdict

The server forks both before there is a request, and only the examiner reads it: a program finds no tests in what it has
inherited, neither its own nor those of the problem before. Nor does it inherit a descriptor other than its channel to
the examiner; the verdict takes another way. The server looks at the clock, at CPU time, memory and files from outside,
and ends the sandbox when the verdict is there or something is too much. Whatever ends an examiner's work early is the
program's doing, and wrong: "timeout", "MemoryError" and "OSError" where all its processes, or its folder, hold too
much, and else "program died".

Run as ``python -m cotrain.grading.program_server MEMORY_BYTES KIND MODULE:FUNCTION``. Speaks as ``grade_worker.py``
does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import sys
import time
from typing import Any

from cotrain.grading.channel import Channel, ChannelClosed
from cotrain.grading.exam import Exam
from cotrain.grading.grade_worker import PATIENCE
from cotrain.grading.sandbox import Sandbox, sandbox_of
from cotrain.grading.sandbox.watch import TICK_S, descendants_of, is_too_full

MOST_MEMORY = 1.25  # memory of all processes of a program, as a multiple of what one may address
LOOKING = 10.0  # looking takes at most a tenth of the time
SELDOM_S = 0.2  # most seconds between two looks
FAILURES = 10  # examiners in a row that end before they are asked anything
OPEN = {"open": True}  # an examiner's message when its sandbox has opened
OVER = {"over": True}  # its message after the last request
KNOWN = (  # loaded once, in the server
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools",
    "json",
    "math", "operator", "random", "re", "statistics", "string", "typing",
)  # fmt: skip


def main(memory: int, kind: str, loader: str) -> None:
    """Serve until standard input ends."""
    module, _, function = loader.partition(":")
    exam: Exam = getattr(importlib.import_module(module), function)()
    for name in KNOWN:
        importlib.import_module(name)
    replies = os.dup(1)
    try:
        sandbox = sandbox_of(kind, memory, f"{exam.inside.__module__}:{exam.inside.__name__}")
        sandbox.enter()
    except OSError as error:
        _send_message(replies, {"ready": False, "error": str(error.strerror or error)})
        return

    gc.freeze()  # a collection in a fork would copy every page that it looks at
    failures = 0
    greeted = False
    while failures < FAILURES:
        sitting = ExamRun(sandbox, exam, memory)
        try:
            opened = sitting.next_message()
            if not greeted:
                _send_message(replies, {"ready": True} if opened == OPEN else {"ready": False, **(opened or {})})
                greeted = True
            request = sitting.next_message()
            failures = 0
        except EOFError:
            request = None
            failures = failures + 1

        if request == OVER:
            sitting.end_exam()
            return
        if request is not None:
            _send_message(replies, {"id": request["id"], **sitting.await_verdict(request["deadline_s"])})
        sitting.end_exam()


def _send_message(to: int, message: dict[str, Any]) -> None:
    os.write(to, (json.dumps(message) + "\n").encode("ascii"))


class ExamRun:
    """One exam: two processes, forked before it is known what it will be about."""

    def __init__(self, sandbox: Sandbox, exam: Exam, memory: int) -> None:
        self._sandbox = sandbox
        self._memory = memory
        ours, theirs = socket.socketpair()
        self._from, to = os.pipe()
        sandbox.prepare_forks()
        self._examiner = os.fork()
        if not self._examiner:
            _run_examiner(sandbox, exam, ours.fileno(), to)
        self._answer = os.fork()
        if not self._answer:
            _run_answer(sandbox, exam, theirs.fileno())
        ours.close()
        theirs.close()
        os.close(to)
        self._text = b""

    def next_message(self, wait_s: float | None = None) -> dict[str, Any] | None:
        """Return the examiner's next message; None where none comes within ``wait_s`` seconds. Raises EOFError when the
        examiner has ended."""
        while b"\n" not in self._text:
            if not select.select([self._from], [], [], wait_s)[0]:
                return None
            part = os.read(self._from, 1 << 16)
            if not part:
                raise EOFError
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def await_verdict(self, deadline_s: float) -> dict[str, Any]:
        """Wait for the verdict of an exam that has begun."""
        began = time.monotonic()
        wait_s = TICK_S
        try:
            while (said := self.next_message(wait_s)) is None:
                looked = time.monotonic()
                if reason := self._too_much(looked - began, deadline_s):
                    return {"value": False, "reason": reason}
                wait_s = min(max(TICK_S, LOOKING * (time.monotonic() - looked)), SELDOM_S)
        except EOFError:
            return {"value": False, "reason": "program died"}
        return said

    def _too_much(self, taken_s: float, deadline_s: float) -> str | None:
        spent, memory = self._resource_use()
        if spent > deadline_s or taken_s > PATIENCE * deadline_s:
            return "timeout"
        if memory > MOST_MEMORY * self._memory:
            return "MemoryError"
        return "OSError" if self._sandbox.folder is not None and is_too_full(self._sandbox.folder) else None

    def _resource_use(self) -> tuple[float, int]:
        """CPU time and memory of all processes of this sitting."""
        table = self._sandbox.process_table
        own = int(os.readlink("self", dir_fd=table)) if isinstance(table, int) else os.getpid()
        processes = descendants_of(own, table)
        return sum(p.spent_s for p in processes), sum(p.memory for p in processes)

    def end_exam(self) -> None:
        """End both and all that the program started."""
        self._sandbox.kill_processes(self._examiner, self._answer)
        os.close(self._from)


def _run_answer(sandbox: Sandbox, exam: Exam, number: int) -> None:
    """The answer's process."""
    try:
        sandbox.shut_in(number)
    except OSError as error:
        Channel(number).send({"gives": str(error)})
        os._exit(1)
    try:
        exam.inside(number)
    finally:
        os._exit(0)


def _run_examiner(sandbox: Sandbox, exam: Exam, number: int, to: int) -> None:
    """The examiner's process: one request from standard input, one verdict."""
    try:
        sandbox.confine_examiner((0, number, to))
        channel = Channel(number)
        try:
            first = channel.receive().get("gives")
        except ChannelClosed:
            first = "its process ended"

        if first != "ready":
            _send_message(to, {"error": str(first)})
            return
        _send_message(to, OPEN)
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(0, 1 << 16)
            if not part:
                _send_message(to, OVER)
                return
            line += part

        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # tests that read find nothing
        request = json.loads(line)
        _send_message(to, {"id": request["id"], "deadline_s": request["deadline_s"]})
        value, reason = exam.outside(channel, request["gold"], request["answer"], request["deadline_s"])
        _send_message(to, {"value": value, "reason": reason})
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    os._exit(0)
