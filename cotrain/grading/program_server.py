"""A process that grades programs one after the other, each in a new sandbox. ``grade_process.py`` starts it.

::

    pool ──request──▶ examiner ──program, arguments──▶ answer, in its sandbox
      ▲                  │    ◀──values──────────────
      └──grade── server ◀┘ verdict

The server forks examiner and answer before there is a request, and only the examiner reads the request: a program finds
no tests in the memory that it has inherited, neither its own nor those of the problem before. Of open files it inherits
its channel to the examiner and no other; the verdict goes from the examiner to the server by a pipe of their own.

The server looks at the clock, at CPU time, memory and files from outside, and ends the sandbox when the verdict is
there or a limit is passed. Whatever ends the exam early is the program's doing, and a wrong answer:

- "timeout": it took too long, in CPU time or by the clock;
- "MemoryError": all its processes together hold too much memory;
- "OSError": its folder holds too much;
- "program died": anything else.

Run as ``python -m cotrain.grading.program_server MEMORY_BYTES KIND MODULE:FUNCTION``, where the function returns the
``Exam``. Requests and replies are those of ``grade_worker.py``.
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

MEMORY_FACTOR = 1.25  # memory of all processes of a program together, as a multiple of what one may address
WAIT_PER_LOOK = 10.0  # a wait lasts so many times as long as the look before it: looking takes a tenth of the time
LONGEST_WAIT_S = 0.2  # but a wait is never longer
MOST_FAILURES = 10  # examiners in a row that end before they have a request; then the server gives up
SANDBOX_OPEN = {"open": True}  # an examiner's message when its sandbox is ready
NO_MORE_REQUESTS = {"over": True}  # its message when standard input has ended
PRELOADED = (  # modules that programs often import: loaded once, in the server, and inherited by each fork
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools",
    "json",
    "math", "operator", "random", "re", "statistics", "string", "typing",
)  # fmt: skip


def main(memory_bytes: int, kind: str, loader: str) -> None:
    """Serve until standard input ends. ``loader``: MODULE:FUNCTION that returns the exam."""
    module, _, function = loader.partition(":")
    exam: Exam = getattr(importlib.import_module(module), function)()
    for name in PRELOADED:
        importlib.import_module(name)
    replies_fd = os.dup(1)
    try:
        sandbox = sandbox_of(kind, memory_bytes, f"{exam.runner.__module__}:{exam.runner.__name__}")
        sandbox.enter()
    except OSError as error:
        _send_message(replies_fd, {"ready": False, "error": str(error.strerror or error)})
        return

    gc.freeze()  # a collection in a fork would copy every page that it looks at
    failures_in_a_row = 0
    greeted = False  # the first line to the pool says whether programs can run here
    while failures_in_a_row < MOST_FAILURES:
        exam_run = ExamRun(sandbox, exam, memory_bytes)
        try:
            first = exam_run.next_message()
            if not greeted:
                _send_message(replies_fd, _greeting(first))
                greeted = True
            request = exam_run.next_message()
            failures_in_a_row = 0
        except EOFError:
            request = None
            failures_in_a_row += 1

        if request == NO_MORE_REQUESTS:
            exam_run.end_exam()
            return
        if request is not None:
            verdict = exam_run.await_verdict(request["deadline_s"])
            _send_message(replies_fd, {"id": request["id"], **verdict})
        exam_run.end_exam()


def _greeting(first: dict[str, Any] | None) -> dict[str, Any]:
    """What the pool is told after an examiner's first message: its sandbox is ready, or the "error" why not."""
    if first == SANDBOX_OPEN:
        return {"ready": True}
    return {"ready": False, **(first or {})}


def _send_message(fd: int, message: dict[str, Any]) -> None:
    os.write(fd, (json.dumps(message) + "\n").encode("ascii"))


class ExamRun:
    """One exam: two processes, forked before there is a request."""

    def __init__(self, sandbox: Sandbox, exam: Exam, memory_bytes: int) -> None:
        self._sandbox = sandbox
        self._memory_bytes = memory_bytes
        examiner_socket, answer_socket = socket.socketpair()
        self._messages_fd, examiner_fd = os.pipe()
        sandbox.prepare_forks()
        self._examiner_pid = os.fork()
        if not self._examiner_pid:
            _run_examiner(sandbox, exam, examiner_socket.fileno(), examiner_fd)
        self._answer_pid = os.fork()
        if not self._answer_pid:
            _run_answer(sandbox, exam, answer_socket.fileno())
        examiner_socket.close()
        answer_socket.close()
        os.close(examiner_fd)
        self._unread = b""  # bytes of the examiner's next messages

    def next_message(self, wait_s: float | None = None) -> dict[str, Any] | None:
        """Return the examiner's next message; None where none comes within ``wait_s`` seconds. Raises EOFError when the
        examiner has ended."""
        while b"\n" not in self._unread:
            if not select.select([self._messages_fd], [], [], wait_s)[0]:
                return None
            part = os.read(self._messages_fd, 1 << 16)
            if not part:
                raise EOFError
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def await_verdict(self, deadline_s: float) -> dict[str, Any]:
        """Wait for the verdict of an exam that has begun, and look at what its processes use meanwhile."""
        began = time.monotonic()
        wait_s = TICK_S
        try:
            while True:
                verdict = self.next_message(wait_s)
                if verdict is not None:
                    return verdict
                looked = time.monotonic()
                reason = self._limit_passed(looked - began, deadline_s)
                if reason is not None:
                    return {"value": False, "reason": reason}
                looking_s = time.monotonic() - looked
                wait_s = min(max(TICK_S, WAIT_PER_LOOK * looking_s), LONGEST_WAIT_S)
        except EOFError:
            return {"value": False, "reason": "program died"}

    def _limit_passed(self, elapsed_s: float, deadline_s: float) -> str | None:
        """The reason to end the exam now; None as long as there is none."""
        cpu_s, memory_bytes = self._resource_use()
        if cpu_s > deadline_s or elapsed_s > PATIENCE * deadline_s:
            return "timeout"
        if memory_bytes > MEMORY_FACTOR * self._memory_bytes:
            return "MemoryError"
        folder = self._sandbox.folder
        return "OSError" if folder is not None and is_too_full(folder) else None

    def _resource_use(self) -> tuple[float, int]:
        """CPU time and memory of all processes of this exam."""
        table = self._sandbox.process_table
        # The process table may be that of another namespace, where this process has another id.
        own_pid = int(os.readlink("self", dir_fd=table)) if isinstance(table, int) else os.getpid()
        processes = descendants_of(own_pid, table)
        return sum(process.cpu_s for process in processes), sum(process.memory_bytes for process in processes)

    def end_exam(self) -> None:
        """End examiner and answer, and all that the program started."""
        self._sandbox.kill_processes(self._examiner_pid, self._answer_pid)
        os.close(self._messages_fd)


def _run_answer(sandbox: Sandbox, exam: Exam, channel_fd: int) -> None:
    """The answer's process. Never returns."""
    try:
        sandbox.shut_in(channel_fd)
    except OSError as error:
        Channel(channel_fd).send({"gives": str(error)})  # in the place of "ready"
        os._exit(1)
    try:
        exam.runner(channel_fd)
    finally:
        os._exit(0)


def _run_examiner(sandbox: Sandbox, exam: Exam, channel_fd: int, server_fd: int) -> None:
    """The examiner's process: one request from standard input, one verdict to the server. Never returns."""
    try:
        sandbox.confine_examiner((0, channel_fd, server_fd))
        channel = Channel(channel_fd)
        try:
            first = channel.receive().get("gives")
        except ChannelClosed:
            first = "its process ended"

        if first != "ready":
            _send_message(server_fd, {"error": str(first)})
            return
        _send_message(server_fd, SANDBOX_OPEN)
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(0, 1 << 16)
            if not part:
                _send_message(server_fd, NO_MORE_REQUESTS)
                return
            line += part

        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # tests that read standard input find nothing
        request = json.loads(line)
        _send_message(server_fd, {"id": request["id"], "deadline_s": request["deadline_s"]})
        value, reason = exam.examiner(channel, request["gold"], request["answer"], request["deadline_s"])
        _send_message(server_fd, {"value": value, "reason": reason})
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    os._exit(0)
