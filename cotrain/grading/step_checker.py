"""A program of the user's that checks the steps of solutions, in a process that answers lines with lines.

::

    {"id": 1, "problem": "…", "answer": null, "steps": ["12 * 3 = 36"]}      a question
    {"id": 1, "ok": [true], "reasons": [""], "done": false}                  its reply

In a question:

- ``answer``: what the solution ends on, null until it does.

In a reply:

- ``ok``: a verdict for each step;
- ``reasons``, which may be left out: why a step is wrong, "" for a right one;
- ``done``: whether the chain is complete and right.

The process is started when first needed, and asked a question without steps (``id`` 0). For its reply it has
``START_S``, the time to load; for each further one ``LIMIT_S`` by the clock. With all that it has started it may have
``MEMORY_BYTES`` and ``PROCESSES``. A process that is too slow or too large, has died, or writes what is not readable is
ended with its children, and the next question starts a new one.

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

START_S = 120.0  # for the first reply of a process
LIMIT_S = 10.0  # for each further one
MEMORY_BYTES = 16 << 30  # resident, of all its processes together
PROCESSES = 64
MAX_QUESTION = 60_000  # characters: a pipe holds as many though the process does not read, so that sending never waits
LOOK_S = 1.0  # between two looks at its size
MARK = "COTRAIN_CHECKER"  # a variable of its environment, which its children inherit, and by which they are found
MOST_ROUNDS = 20  # of looking for processes with the mark, as they may start new ones meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSteps:
    """The program's verdicts on a chain of steps."""

    ok: tuple[bool, ...]  # [K] one per step
    reasons: tuple[str, ...]  # [K] "" where there is none
    done: bool  # is the chain complete and right


class StepChecker:
    """The program that a command starts."""

    def __init__(self, command: str) -> None:
        """Raises ConfigError for a program that is not there, RunDirectoryError for a command that a run directory
        names and nobody trusts."""
        self._words = command_words(command, "checker")
        self._folder = os.getcwd()  # relative names in the command mean what they mean now
        self._command = command
        self._n_questions = 0
        self._process: LineProcess | None = None
        self._last_look = 0.0  # at its size, in seconds of time.monotonic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checker")  # one question at a time

    def describe(self) -> dict[str, Any]:
        """For recipe.json."""
        return {"command": self._command}

    async def check(self, problem: str, steps: tuple[str, ...], answer: str | None) -> CheckedSteps | str:
        """The program's verdicts; a text where there are none, "checker: " and the reason: "timeout", "died", "memory",
        "processes", "unreadable line" or "question too long"."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, problem, steps, answer)

    def close(self) -> None:
        """End the process and its children; a further question starts a new one."""
        if self._process is not None:
            self._process.kill()  # so that the thread, if it waits for a reply, goes on
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
                self._start()
            self._n_questions += 1
            reply = self._reply_to({"id": self._n_questions, **question}, LIMIT_S)
            return read_reply(reply, self._n_questions, len(steps))
        except CheckerFailed as error:
            self._end()
            return f"checker: {error}"
        except OSError:
            self._end()
            return "checker: died"

    def _start(self) -> None:
        value = uuid.uuid4().hex
        self._process = LineProcess(
            self._words,
            {**os.environ, MARK: value},
            end=partial(end_marked, f"{MARK}={value}"),
            folder=self._folder,
        )
        self._reply_to({"id": 0, "problem": "", "answer": None, "steps": []}, START_S)

    def _reply_to(self, question: Mapping[str, Any], limit_s: float) -> Any:
        assert self._process is not None
        self._process.send(question)
        until = time.monotonic() + limit_s
        while True:
            if time.monotonic() - self._last_look > LOOK_S:
                self._check_size(self._process.pid)
            try:
                line = self._process.replies.get(timeout=min(limit_s, LOOK_S))
            except queue.Empty:
                if self._process.has_ended():
                    raise CheckerFailed("died") from None  # no end of its output is seen while its children hold it
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
        self._last_look = time.monotonic()
        own = [process for process in process_list() if process.pid == pid]
        processes = own + descendants_of(pid)
        if sum(process.memory_bytes for process in processes) > MEMORY_BYTES:
            raise CheckerFailed("memory")
        if len(processes) > PROCESSES:
            raise CheckerFailed("processes")


class CheckerFailed(Exception):
    """Why there is no reply: a short fixed phrase."""


def read_reply(reply: Any, number: int, n_steps: int) -> CheckedSteps:
    """The verdicts in the reply to question ``number``. Raises CheckerFailed."""
    if not isinstance(reply, dict) or reply.get("id") != number:
        raise CheckerFailed("unreadable line")
    ok: Any = reply.get("ok")
    reasons = reply.get("reasons", [""] * n_steps)
    done = reply.get("done", False)
    is_readable = _is_list_of(bool, ok, n_steps) and _is_list_of(str, reasons, n_steps) and isinstance(done, bool)
    if not is_readable:
        raise CheckerFailed("unreadable line")
    return CheckedSteps(ok=tuple(ok), reasons=tuple(reasons), done=done)


def _is_list_of(kind: type, value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(item, kind) for item in value)


def end_marked(mark: str, process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started, whether or not it is alive, and whatever session they are in: all
    processes whose environment has its mark, and, in the first round, its descendants, as a process that is just
    starting a program has no environment to read."""
    descendants = {child.pid for child in descendants_of(process.pid)}
    for _ in range(MOST_ROUNDS):
        environments = Path("/proc").glob("[0-9]*/environ")
        to_kill = descendants | {int(file.parent.name) for file in environments if _has_mark(file, mark)}
        if not to_kill:
            break
        for pid in to_kill:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        descendants = set()
    end_group(process)


def _has_mark(file: Path, mark: str) -> bool:
    try:
        return mark.encode() in file.read_bytes()
    except OSError:  # somebody else's, or gone
        return False
