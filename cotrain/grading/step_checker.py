"""A program of the user's that checks the steps of solutions, in a process that answers lines with lines.

::

    {"id": 1, "problem": "…", "answer": null, "steps": ["12 * 3 = 36"]}      what it is asked
    {"id": 1, "ok": [true], "reasons": [""], "done": false}                  what it answers

``answer`` is what the solution ends on, null until it does. ``ok`` has a verdict for each step; ``reasons``, which may
be left out, why one is wrong. ``done`` says that the chain is complete and right. The process is started when first
needed and asked a question without steps (``id`` 0), for whose answer it has ``START_S``; that is the time to load.
Each further question has ``LIMIT_S`` by the clock, and the process with all that it has started ``MEMORY_BYTES`` and
``PROCESSES``. One that is too slow, too large, dead or not readable is ended, with its children; the next question
starts it anew.

This guards the run against the program's faults and is no sandbox: the program itself must see to it that steps, which
a model wrote, do no harm. Left out: several processes; children that drop their environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cotrain.core.user_code import command_words
from cotrain.grading.grade_process import LineProcess, end_group
from cotrain.grading.sandbox.watch import descendants_of, process_list

START_S = 120.0  # for the first answer of a process
LIMIT_S = 10.0  # for each further one
MEMORY_BYTES = 16 << 30  # that are present, of all its processes
PROCESSES = 64
MAX_QUESTION = 60_000  # characters: what a pipe holds though nobody reads it
LOOKING_S = 1.0  # between two looks at its size
MARK = "COTRAIN_CHECKER"  # a variable of its environment, by which its processes are found
PASSES = 20  # looks for processes with the mark


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSteps:
    """The program's verdicts on a chain of steps."""

    ok: tuple[bool, ...]  # [K] one per step
    reasons: tuple[str, ...]  # [K] "" where there is none
    done: bool  # is the chain complete and right


class StepChecker:
    """The program that ``command`` starts. Raises ConfigError for one that is not there, RunDirectoryError for one that
    a run directory names and nobody trusts."""

    def __init__(self, command: str) -> None:
        self._words = command_words(command, "checker")
        self._folder = os.getcwd()  # relative names in the command mean what they mean now
        self._command = command
        self._asked = 0
        self._process: LineProcess | None = None
        self._looked = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checker")  # one question at a time

    def describe(self) -> dict[str, Any]:
        """For recipe.json."""
        return {"command": self._command}

    async def check(self, problem: str, steps: tuple[str, ...], answer: str | None) -> CheckedSteps | str:
        """Return the program's verdicts; or the reason why there are none: "checker: " and "timeout", "died", "memory",
        "processes" or "unreadable line", or "question too long"."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, problem, steps, answer)

    def close(self) -> None:
        """End the process and its children; a further question starts it anew."""
        if self._process is not None:
            self._process.kill()  # whoever waits for its answer gets none
        self._thread.submit(self._end).result()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process = None

    def _ask(self, problem: str, steps: tuple[str, ...], answer: str | None) -> CheckedSteps | str:
        question = {"problem": problem, "answer": answer, "steps": list(steps)}
        if len(json.dumps(question)) > MAX_QUESTION:
            return "checker: question too long"
        try:
            if self._process is None:
                mark = f"{MARK}={uuid.uuid4().hex}"
                environment = os.environ | dict([mark.split("=")])
                self._process = LineProcess(
                    self._words, environment, end=partial(end_marked, mark), folder=self._folder
                )
                self._reply_to({"id": 0, "problem": "", "answer": None, "steps": []}, START_S)
            self._asked += 1
            return read_reply(self._reply_to({"id": self._asked, **question}, LIMIT_S), self._asked, len(steps))
        except (CheckerFailed, OSError) as error:
            self._end()
            return f"checker: {error if isinstance(error, CheckerFailed) else 'died'}"

    def _reply_to(self, question: Mapping[str, Any], limit_s: float) -> Any:
        assert self._process is not None
        self._process.send(question)
        until = time.monotonic() + limit_s
        while True:
            if time.monotonic() - self._looked > LOOKING_S:
                self._check_size(self._process.pid)
            try:
                line = self._process.replies.get(timeout=min(limit_s, LOOKING_S))
            except queue.Empty:
                if self._process.has_ended():
                    raise CheckerFailed("died") from None  # while its children keep its output open
                if time.monotonic() > until:
                    raise CheckerFailed("timeout") from None
                continue

            if line is None:
                raise CheckerFailed("died")
            try:
                return json.loads(line)
            except (ValueError, RecursionError):
                raise CheckerFailed("unreadable line") from None

    def _check_size(self, pid: int) -> None:
        self._looked = time.monotonic()
        family = [process for process in process_list() if process.pid == pid] + descendants_of(pid)
        if sum(process.memory_bytes for process in family) > MEMORY_BYTES:
            raise CheckerFailed("memory")
        if len(family) > PROCESSES:
            raise CheckerFailed("processes")


class CheckerFailed(Exception):
    """Why there is no answer: a short fixed phrase."""


def read_reply(reply: Any, number: int, count: int) -> CheckedSteps:
    """The answer to question ``number`` about ``count`` steps. Raises CheckerFailed."""
    if not isinstance(reply, dict) or reply.get("id") != number:
        raise CheckerFailed("unreadable line")
    ok: Any = reply.get("ok")
    reasons = reply.get("reasons", [""] * count)
    done = reply.get("done", False)
    is_readable = _is_list_of(bool, ok, count) and _is_list_of(str, reasons, count) and isinstance(done, bool)
    if not is_readable:
        raise CheckerFailed("unreadable line")
    return CheckedSteps(ok=tuple(ok or ()), reasons=tuple(reasons), done=done)


def _is_list_of(kind: type, value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(item, kind) for item in value)


def end_marked(mark: str, process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all others whose environment has its mark: what it has started, whether or not it is alive and
    wherever they went. A process that is just starting a program has no environment to read, so its descendants are
    killed by number first."""
    starting = [child.pid for child in descendants_of(process.pid)]
    for _ in range(PASSES):
        marked = [int(file.parent.name) for file in Path("/proc").glob("[0-9]*/environ") if _has_mark(file, mark)]
        processes = {*marked, *starting}
        starting = []
        for pid in processes:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not processes:
            break
    end_group(process)


def _has_mark(file: Path, mark: str) -> bool:
    try:
        return mark.encode() in file.read_bytes()
    except OSError:  # somebody else's, or gone
        return False
