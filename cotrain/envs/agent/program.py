"""The program of an agent: a function of the user's, or a command, run for one rollout in a thread of its own.

A command has the problem on its standard input and prints its answer; ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, which
clients of OpenAI's read by themselves, are in its environment. It ends with its rollout, and with it all that it has
started (``keeper.py``). It may print ``MOST_PRINTED`` bytes, and an answer has as many characters as a model's text.
What it writes to standard error is shown in the terminal line by line, without control characters: the first
``MOST_COMPLAINED`` bytes of a rollout, and ``MOST_SHOWN`` of all. Left out: ending a plain function, which nothing can
end, and what a function writes to standard error, which is the run's own.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cotrain.core.arguments import check_called_with
from cotrain.core.errors import ConfigError, install_extra
from cotrain.core.user_code import command_words, failure_reason
from cotrain.core.verbosity import print_notice
from cotrain.formats.solutions import MAX_CHARS
from cotrain.grading.step_checker import end_marked

MOST_PRINTED = 1 << 20  # bytes of a command; one that prints more is ended
MOST_COMPLAINED = 1 << 12  # bytes of a rollout's standard error that are shown
MOST_SHOWN = 1 << 20  # the same of all rollouts of this process
READING_S = 1.0  # that the rest of a standard error is waited for, once its program has ended
KEEPER = Path(__file__).with_name("keeper.py")
KEEPING_S = 3.0  # that the keeper has to end everything
Agent = Callable[[str, str, str], Any]  # (problem, base_url, api_key) → the answer, or a coroutine of it


class AgentFailed(Exception):
    """Why a rollout came to nothing: a short phrase that is the same for equal failures."""


def find_program(agent: Agent | None, command: str | None) -> Agent | Sequence[str]:
    """The function, or the words of the command. Raises ConfigError for neither, both, or one that cannot be run."""
    if (agent is None) == (command is None):
        raise ConfigError(
            "agent: expected --agent my_agent.py:function, or --command 'python my_agent.py'", code="E_AGENT_NOT_NAMED"
        )
    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise ConfigError(
            f"agent needs starlette and uvicorn; install them: {install_extra('serve')}", code="E_SERVE_NOT_INSTALLED"
        )
    if command is not None:
        return command_words(command, "agent")
    assert agent is not None
    check_called_with("agent", agent, "problem", "base_url", "api_key")
    return agent


class ProgramRun:
    """One run of a program, which begins at once."""

    def __init__(
        self,
        program: Agent | Sequence[str],
        problem: str,
        base_url: str,
        key: str,
        on_end: Callable[[], object],
        folder: str | None = None,
    ) -> None:
        """``on_end``: called in the program's thread; ``folder``: the working directory of a command."""
        self._key = key
        self._on_end = on_end
        self._stopped = False
        self._folder = folder
        self._result: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._cancel: Callable[[], object] | None = None
        run = partial(self._run_program, program, (problem, base_url, key))
        threading.Thread(target=run, name="cotrain-agent", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The process from which all processes of a command descend; None for a function."""
        return None if self._process is None else self._process.pid

    def answer(self) -> Any:
        """Its result. Raises AgentFailed."""
        if isinstance(self._result, AgentFailed):
            raise self._result
        if isinstance(self._result, BaseException):
            raise AgentFailed(failure_reason("agent", self._result)) from self._result
        if isinstance(self._result, str | bytes) and len(self._result) > MAX_CHARS:
            raise AgentFailed("agent: answer too long")
        return self._result

    def stop(self) -> None:
        """End it with all that it started."""
        self._stopped = True
        if self._process is not None:
            _end_process(self._process, f"OPENAI_API_KEY={self._key}")
        if self._cancel is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._cancel()

    def _run_program(self, program: Agent | Sequence[str], credentials: tuple[str, str, str]) -> None:
        try:
            if not callable(program):
                self._result = self._run_command(program, *credentials)
            elif inspect.iscoroutinefunction(program):
                self._result = asyncio.run(self._run_coroutine(program, credentials))
            else:
                self._result = program(*credentials)
        except BaseException as error:  # noqa: BLE001  a user's code, SystemExit too
            self._result = error
        with suppress(RuntimeError):  # the rollout is over, and its loop closed
            self._on_end()

    async def _run_coroutine(self, program: Agent, credentials: tuple[str, str, str]) -> Any:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
        return None if self._stopped else await program(*credentials)

    def _run_command(self, words: Sequence[str], problem: str, base_url: str, key: str) -> str:
        """Run the command. Returns the text that it prints."""
        environment = os.environ | {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
        with tempfile.TemporaryFile() as question:  # which an agent may read as slowly as it likes, or not at all
            question.write(problem.encode("utf-8", "replace"))
            question.seek(0)
            process = self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), *words],
                stdin=question,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=self._folder,
                start_new_session=True,
            )

        complaints = threading.Thread(
            target=_show_complaints, args=(process,), name="cotrain-agent-errors", daemon=True
        )
        complaints.start()
        if self._stopped:
            self.stop()
        printed = _read_at_most(process, MOST_PRINTED)
        if printed is None:
            self.stop()
            raise AgentFailed("agent: too much output")
        code = process.wait()
        complaints.join(READING_S)
        if code:
            raise AgentFailed(f"agent: exit code {code}")
        return printed.decode("utf-8", "replace").strip()


def _read_at_most(process: subprocess.Popen[bytes], most: int) -> bytes | None:
    """The output of a process until it ends; None where that is more than ``most`` bytes."""
    assert process.stdout is not None
    printed = bytearray()
    while part := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
        printed += part
        if len(printed) > most:
            return None
    return bytes(printed)


class _Shown:
    """The bytes of standard errors that were shown in this process."""

    def __init__(self) -> None:
        self._total = 0
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """The number, of so many bytes, that may still be shown; they count as shown."""
        with self._lock:
            granted = min(wanted, MOST_SHOWN - self._total)
            self._total += granted
        return granted


_SHOWN = _Shown()


def _show_complaints(process: subprocess.Popen[bytes]) -> None:
    """Show the beginning of what a process writes to its standard error, and read the rest, so that it never waits."""
    assert process.stderr is not None
    left = MOST_COMPLAINED
    begun = b""
    with suppress(OSError, ValueError):
        while part := process.stderr.read1(1 << 16):  # type: ignore[attr-defined]
            if not left:
                continue
            shown = part[: _SHOWN.take(min(left, len(part)))]
            *lines, begun = (begun + shown).split(b"\n")
            for line in lines:
                _show_line(line)
            left -= len(shown)
            if len(shown) < len(part):
                _show_line(begun)
                _show_line(b"the rest of its standard error is not shown")
                left = 0
                begun = b""

        if begun:
            _show_line(begun)


def _show_line(line: bytes) -> None:
    text = line.decode("utf-8", "replace").rstrip("\r")
    if text.strip():
        print_notice(f"agent: {text}")


def _end_process(keeper: subprocess.Popen[bytes], mark: str) -> None:
    """Ask the keeper to end all that it keeps. Where it was killed itself, or does not come to an end, whatever has the
    rollout's mark in its environment is killed."""
    if keeper.poll() is None:
        with suppress(ProcessLookupError):
            keeper.terminate()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(KEEPING_S)
    if keeper.poll() is None or keeper.returncode < 0:
        end_marked(mark, keeper)
