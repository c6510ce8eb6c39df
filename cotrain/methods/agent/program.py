"""The program of an agent: a function of the user's, or a command, run for one rollout in a thread of its own.

A command has the problem on its standard input and prints its answer; ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, which
clients of OpenAI's read by themselves, are in its environment. It ends with its rollout, and with it all processes that
have the key of the rollout in theirs, wherever they went. Left out: ending a plain function, which nothing can end.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.core.user_code import command_words, failure_reason
from cotrain.grading.step_checker import end_marked

Agent = Callable[[str, str, str], Any]  # (problem, base_url, api_key) → the answer, or a coroutine of it


class AgentFailed(Exception):
    """Why a rollout came to nothing: a short phrase that is the same for equal failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program that is started once a rollout."""

    words: tuple[str, ...]
    folder: str  # its working directory: relative names among the words mean what they meant when it was given


def find_program(agent: Agent | None, command: str | None) -> Agent | Command:
    """The function, or the command. Raises ConfigError for neither, both, or one that cannot be run."""
    if (agent is None) == (command is None):
        raise ConfigError("agent: expected --agent my_agent.py:function, or --command 'python my_agent.py'")
    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise ConfigError("agent needs starlette and uvicorn; install them: pip install 'cotrain[serve]'")
    if command is not None:
        return Command(words=tuple(command_words(command, "agent")), folder=os.getcwd())
    assert agent is not None
    try:
        inspect.signature(agent).bind("", "", "")
    except TypeError as error:
        raise ConfigError(
            f"agent: {agent.__name__}: {error}; expected def {agent.__name__}(problem, base_url, api_key)"
        ) from None
    return agent


class ProgramRun:
    """One run of a program, which begins at once."""

    def __init__(
        self, program: Agent | Command, problem: str, base_url: str, key: str, on_end: Callable[[], object]
    ) -> None:
        """``on_end``: called in the program's thread."""
        self._key, self._on_end, self._stopped = key, on_end, False
        self._result: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._cancel: Callable[[], object] | None = None
        run = partial(self._run_program, program, (problem, base_url, key))
        threading.Thread(target=run, name="cotrain-agent", daemon=True).start()

    def answer(self) -> Any:
        """What it ended with. Raises AgentFailed."""
        if isinstance(self._result, AgentFailed):
            raise self._result
        if isinstance(self._result, BaseException):
            raise AgentFailed(failure_reason("agent", self._result)) from self._result
        return self._result

    def stop(self) -> None:
        """End it with all that it started."""
        self._stopped = True
        if self._process is not None:
            end_marked(f"OPENAI_API_KEY={self._key}", self._process)
        if self._cancel is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._cancel()

    def _run_program(self, program: Agent | Command, given: tuple[str, str, str]) -> None:
        try:
            if isinstance(program, Command):
                self._result = self._run_command(program, *given)
            elif inspect.iscoroutinefunction(program):
                self._result = asyncio.run(self._run_coroutine(program, given))
            else:
                self._result = program(*given)
        except BaseException as error:  # noqa: BLE001  a user's code, SystemExit too
            self._result = error
        with suppress(RuntimeError):  # the play is over, and its loop closed
            self._on_end()

    async def _run_coroutine(self, program: Agent, given: tuple[str, str, str]) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
        return None if self._stopped else await program(*given)

    def _run_command(self, command: Command, problem: str, base_url: str, key: str) -> str:
        """What it prints."""
        environment = os.environ | {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
        process = self._process = subprocess.Popen(
            command.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=command.folder,
            start_new_session=True,
        )
        if self._stopped:
            self.stop()
        printed, _ = process.communicate(problem.encode())
        if process.returncode:
            raise AgentFailed(f"agent: exit code {process.returncode}")
        return printed.decode("utf-8", "replace").strip()
