"""The program of an agent: a function of the user's, or a command, run for one rollout in a thread of its own.

A command has the problem on its standard input and prints its answer; ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, which
clients of OpenAI's read by themselves, are in its environment. When its rollout ends, it is ended with all processes
that it has started (``keeper.py``). It may print ``MAX_PRINTED`` bytes, and an answer may have ``MAX_CHARS``
characters. Its standard error is shown in the terminal line by line, without control characters: the first
``MAX_ERROR_BYTES`` of a rollout, and ``MAX_ERROR_BYTES_OF_ALL`` of all rollouts. Left out: ending a plain function,
which nothing can end, and the standard error of a function, which is the run's own.
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
from cotrain.rollout.event_loop import closes_behind_its_loop

MAX_PRINTED = 1 << 20  # bytes of a command; one that prints more is ended
MAX_ERROR_BYTES = 1 << 12  # bytes of one rollout's standard error that are shown
MAX_ERROR_BYTES_OF_ALL = 1 << 20  # bytes that are shown of all rollouts of this process
ERROR_PATIENCE_S = 1.0  # for the rest of a standard error, once its program has ended
KEEPER = Path(__file__).with_name("keeper.py")
KEEPER_PATIENCE_S = 3.0  # for the keeper to end all processes
Agent = Callable[[str, str, str], Any]  # (problem, base_url, api_key) → the answer, or a coroutine of it


class AgentFailed(Exception):
    """A rollout without a reward. The message is a short phrase, the same for equal failures, which are counted by
    it."""


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
    """One run of a program, in a thread that the constructor starts."""

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
        self._is_stopped = False
        self._folder = folder
        self._result: Any = None  # the value or the exception of the program
        self._process: subprocess.Popen[bytes] | None = None  # the process of a command
        self._cancel: Callable[[], object] | None = None  # ends a coroutine
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
        """End the program with all processes that it has started."""
        self._is_stopped = True
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
        loop.set_exception_handler(_report_error)
        task = asyncio.current_task()
        assert task is not None
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
        if self._is_stopped:  # ``stop`` was called before there was anything to cancel
            return None
        return await program(*credentials)

    def _run_command(self, words: Sequence[str], problem: str, base_url: str, key: str) -> str:
        """Run the command. Returns the text that it prints."""
        environment = os.environ | {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
        # A file as standard input, and no pipe: nobody has to wait for an agent that reads slowly, or not at all.
        with tempfile.TemporaryFile() as input_file:
            input_file.write(problem.encode("utf-8", "replace"))
            input_file.seek(0)
            process = self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), *words],
                stdin=input_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=self._folder,
                start_new_session=True,
            )

        error_reader = threading.Thread(target=_show_errors, args=(process,), name="cotrain-agent-errors", daemon=True)
        error_reader.start()
        if self._is_stopped:  # ``stop`` was called before there was a process to end
            self.stop()
        output = _read_output(process, MAX_PRINTED)
        if output is None:
            self.stop()
            raise AgentFailed("agent: too much output")
        code = process.wait()
        error_reader.join(ERROR_PATIENCE_S)
        if code:
            raise AgentFailed(f"agent: exit code {code}")
        return output.decode("utf-8", "replace").strip()


def _report_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own report, except of clients that the agent of another rollout has left open."""
    if not closes_behind_its_loop(context):
        loop.default_exception_handler(context)


def _read_output(process: subprocess.Popen[bytes], max_bytes: int) -> bytes | None:
    """The output of a process until it ends; None where it has more than ``max_bytes``."""
    assert process.stdout is not None
    output = bytearray()
    while chunk := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
        output += chunk
        if len(output) > max_bytes:
            return None
    return bytes(output)


class _ErrorBudget:
    """Counts the bytes of standard errors that were shown in this process."""

    def __init__(self) -> None:
        self._total = 0
        self._lock = threading.Lock()

    def take(self, n_bytes: int) -> int:
        """How many of these bytes may still be shown; they count as shown."""
        with self._lock:
            n_granted = min(n_bytes, MAX_ERROR_BYTES_OF_ALL - self._total)
            self._total += n_granted
        return n_granted


_ERROR_BUDGET = _ErrorBudget()


def _show_errors(process: subprocess.Popen[bytes]) -> None:
    """Show the beginning of a process's standard error. The rest is read, too, so that the process never waits for a
    reader."""
    assert process.stderr is not None
    budget = MAX_ERROR_BYTES
    line_start = b""  # the beginning of a line whose end has not been read yet
    with suppress(OSError, ValueError):
        while chunk := process.stderr.read1(1 << 16):  # type: ignore[attr-defined]
            if not budget:
                continue
            n_shown = _ERROR_BUDGET.take(min(budget, len(chunk)))
            *lines, line_start = (line_start + chunk[:n_shown]).split(b"\n")
            for line in lines:
                _show_line(line)
            budget -= n_shown
            if n_shown < len(chunk):
                _show_line(line_start)
                _show_line(b"the rest of its standard error is not shown")
                budget = 0
                line_start = b""

        if line_start:
            _show_line(line_start)


def _show_line(line: bytes) -> None:
    text = line.decode("utf-8", "replace").rstrip("\r")
    if text.strip():
        print_notice(f"agent: {text}")


def _end_process(keeper: subprocess.Popen[bytes], mark: str) -> None:
    """Ask the keeper to end all processes of the command.

    Where the keeper was killed itself, or takes too long, each process is killed that has the ``mark`` in its
    environment, VARIABLE=VALUE: the key of the rollout.
    """
    if keeper.poll() is None:
        with suppress(ProcessLookupError):
            keeper.terminate()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(KEEPER_PATIENCE_S)
    if keeper.poll() is None or keeper.returncode < 0:
        end_marked(mark, keeper)
