"""Environments of OpenEnv that a server plays, as a task source: ``--tasks openenv:http://HOST:PORT``; needs ``pip
install -e '.[openenv]'``.

A task is what the server observes after ``reset(seed=…)``: one text field of the observation is the prompt. An answer
is one ``step`` of a new session that was reset with the same seed: one text field of the action is the answer, and the
answer is right where the reward reaches ``right_at``. Which fields these are is found where there is one text field
only, else they are named in the address: ``openenv:http://HOST:PORT?prompt=question&action=answer``.

The seed of a task is a hash of (address, split, index, attempt); a prompt that a hash puts into another split is drawn
again, as in ``reasoning_gym.py``. The server must repeat itself for a seed, which is tried once when the source is
built. It runs wherever it was started; nothing of it runs here.

Left out: environments of several steps (those that are not done after one answer give no grade), tools, which would
run in the server and are refused by name, starting servers. ``tasks.py`` plays several steps, with tools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from cotrain.core.errors import ConfigError, DataError, UnknownName, UserError, install_extra
from cotrain.core.input_files import MOST_HANDWRITTEN, parse_json
from cotrain.core.seeding import seed_of
from cotrain.core.types import Grade, Task
from cotrain.data.files import SPLITS, split_of
from cotrain.envs.openenv.fields import answer_field, prompt_field, split_address
from cotrain.formats.answers import final_answer
from cotrain.grading.pool import AnswerGrader

ATTEMPTS = 200  # resets for one task


class OpenEnvGrader(AnswerGrader):
    """Asks the server. ``source`` opens sessions."""

    def __init__(self, source: OpenEnvTasks) -> None:
        self._source = source

    def grade(self, task: Task, text: str) -> Grade:
        """Play one step with the answer that a text ends on, or with the whole text where it names none."""
        return self._source.grade_answer(task, final_answer(text) or text)

    async def agrade(self, task: Task, text: str) -> Grade:
        """``grade``, while others go on."""
        return await self._in_thread(task, text)

    def close(self) -> None:
        """Nothing is held between grades."""


class OpenEnvTasks:
    """Tasks of the server at ``url``, ``size`` in each split.

    ``deadline_s``: by the clock, for each message to the server. Raises UserError when openenv is not installed,
    ConfigError for a server that cannot be reached, has not the fields or does not repeat itself.
    """

    def __init__(
        self,
        url: str,
        size: int = 1000,
        right_at: float = 1.0,
        deadline_s: float = 30.0,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        try:
            from openenv.core import GenericEnvClient
        except ImportError as error:
            raise UserError(
                f"openenv is not installed; run: {install_extra('openenv')}", code="E_OPENENV_NOT_INSTALLED"
            ) from error
        if size < 1:
            raise ConfigError(f"size must be at least 1, not {size}", code="E_TASKS_SIZE")
        self._client_class = GenericEnvClient
        address, named = split_address(url, ("prompt", "action"))
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.netloc:
            raise ConfigError(
                f"openenv: {url!r} is no address; expected http://HOST:PORT, then ?prompt=FIELD&action=FIELD, or "
                "FILE.py:CLASS",
                code="E_ENVIRONMENT_ADDRESS",
            )
        self._address = address.rstrip("/")
        self._size = size
        self._right_at = right_at
        self._deadline_s = deadline_s
        self.name = f"openenv:{self._address}"
        self._prompts: dict[tuple[str, int], tuple[int, str]] = {}  # seed and prompt of the tasks that were asked for
        named |= dict(fields or {})
        self._action = named.get("action") or self._find_action_field()
        self._prompt = named.get("prompt", "")  # found at the first reset where it is not named
        first = self._reset_prompt(0)
        second = self._reset_prompt(0)
        if first != second:
            raise ConfigError(
                f"{self.name}: two resets with seed 0 give two prompts; a task source must repeat itself",
                code="E_SOURCE_NOT_REPEATABLE",
            )
        self.grader = OpenEnvGrader(self)

    def get(self, split: str, index: int) -> Task:
        """The task at an index. Raises UnknownName, IndexError, DataError where prompts are too few for the split."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {self.size(split)}")
        task_id = f"{self.name}/{split}/{index}"
        _, prompt = self._seed_and_prompt(split, index)
        return Task(id=task_id, prompt=prompt, gold=None, solution=None, difficulty=0.0, grader=self.grader)

    def size(self, split: str) -> int:
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        return self._size

    def describe(self) -> dict[str, Any]:
        """``OpenEnvTasks(**source.describe()["settings"])`` is this source, as long as the server is the same."""
        settings = {
            "url": self._address,
            "size": self._size,
            "right_at": self._right_at,
            "deadline_s": self._deadline_s,
            "fields": {"prompt": self._prompt, "action": self._action},
        }
        return {"kind": "openenv", "settings": settings}

    def grade_answer(self, task: Task, answer: str) -> Grade:
        """The server's reward for an answer; None, with a reason, wherever it gives none."""
        _, split, index = task.id.rsplit("/", 2)
        seed, prompt = self._seed_and_prompt(split, int(index))
        try:
            with self._open_session() as session:
                if self._prompt_in(session.reset(seed=seed).observation) != prompt:
                    return Grade(value=None, reason="prompt changed")
                result = session.step({self._action: answer})
            if not result.done:
                return Grade(value=None, reason="not done after one answer")
            if result.reward is None:
                return Grade(value=None, reason="no reward")
            reward = float(result.reward)
        except TimeoutError:
            return Grade(value=None, reason="timeout")
        except Exception:  # noqa: BLE001  of the client, the network or the server: no verdict on the answer
            return Grade(value=None, reason="environment failed")

        if not math.isfinite(reward):
            return Grade(value=None, reason="reward not finite")
        return Grade(value=reward >= self._right_at)

    def close(self) -> None:
        """Nothing is held between grades."""

    def _open_session(self) -> Any:
        wait = self._deadline_s
        client = self._client_class(base_url=self._address, connect_timeout_s=wait, message_timeout_s=wait)
        return client.sync()

    def _seed_and_prompt(self, split: str, index: int) -> tuple[int, str]:
        """Those of a task, which are drawn once."""
        if (split, index) not in self._prompts:
            self._prompts[split, index] = self._draw_prompt(split, index)
        return self._prompts[split, index]

    def _draw_prompt(self, split: str, index: int) -> tuple[int, str]:
        for attempt in range(ATTEMPTS):
            seed = seed_of("openenv", self._address, split, index, attempt) % 2**31
            prompt = self._reset_prompt(seed)
            if split_of(prompt) == split:
                return seed, prompt
        raise DataError(
            f"{self.name}: too few different prompts for a {split!r} split; does it make use of its seed?",
            code="E_TOO_FEW_QUESTIONS",
        )

    def _reset_prompt(self, seed: int) -> str:
        try:
            with self._open_session() as session:
                return self._prompt_in(session.reset(seed=seed).observation)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.name} cannot be reset ({error}); is the server running?", code="E_ENVIRONMENT_SILENT"
            ) from error

    def _prompt_in(self, observation: Mapping[str, Any]) -> str:
        """The prompt in an observation; the first call finds its field."""
        self._prompt = prompt_field(self.name, observation, self._prompt)
        return str(observation[self._prompt])

    def _find_action_field(self) -> str:
        """The one text field that an action needs, by the server's description of itself."""
        address = self._address
        if address.startswith("ws"):
            address = "http" + address.removeprefix("ws")  # ws:// → http://, wss:// → https://
        try:
            with urlopen(f"{address}/schema", timeout=self._deadline_s) as reply:
                action = parse_json(reply.read(MOST_HANDWRITTEN))["action"]
            fields = dict(action.get("properties", {}))
            if not all(isinstance(schema, dict) for schema in fields.values()):
                raise ValueError("its fields are no objects")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # of JSON of another shape, too
            raise ConfigError(
                f"{self.name} does not describe itself ({error}); is the server running?", code="E_ENVIRONMENT_SILENT"
            ) from error
        calls_tools = {"tool_name", "arguments"} <= fields.keys()
        if calls_tools:
            raise ConfigError(
                f"{self.name} is answered by calls of tools, and its tools run in the server; tools are called where "
                "they run in this process: --tasks openenv:FILE.py:CLASS, with the recipe environment",
                code="E_ENVIRONMENT_TOOLS_ELSEWHERE",
            )
        return answer_field(self.name, action, "")
