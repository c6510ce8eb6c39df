"""One episode of an OpenEnv environment in this process: one conversation of the role ``agent``.

::

    reset       →  the prompt
    agent says  →  calls of tools: each is a step, and its output is shown as a tool's
                   else a text: one step with the text as the action, and what it observes is shown as the environment's
    …              until a step is done, the turns are used up, or nothing more fits the context

An environment that takes calls of tools alone ends where the agent calls none. The agent earns the sum of what the
steps pay. An episode that nobody paid earned 0 if it was left before its end, so that giving up is no better than
failing; if the environment ended it and paid nothing, the conversation fails, which is counted.

The policy sees the tools as its chat template describes them, and its calls are read as that template writes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cotrain.core.errors import ConfigError, ModelError, TooLong
from cotrain.core.notes import CALLS, PROBLEM
from cotrain.core.signals import gives
from cotrain.core.types import NoGrader, RolloutFn, Task
from cotrain.envs.openenv.instance import Instance, Observed
from cotrain.envs.played import MAX_MESSAGE, SEAT_REWARD, pay_conversation
from cotrain.formats.solutions import behind_thoughts
from cotrain.prompts.render import Renderer, Rendering
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles
from cotrain.rollout.tools.calls import Syntax, ToolCall, ToolRenderer, find_syntax, read_calls

SEAT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededEpisode(NoGrader):
    """Holds the seed of a task's episodes."""

    reason: str = "its environment grades, which the recipe `environment` runs"
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """How an environment class is talked to."""

    name: str  # name of the task source, for messages
    kind: type  # the environment class
    prompt: str  # field of the first observation that holds the prompt
    observation: str  # field that is shown after a step; "" where the observation is shown as ``Observed.shown`` says
    action_kind: Any  # class of an action that takes a text; None where calls of tools are the only actions
    action: str  # field of such an action that takes the text
    tools: Sequence[Any]  # tools, each with name, description and input_schema

    def prompt_in(self, first: Observed) -> str:
        """The prompt of an episode."""
        return str(first.fields[self.prompt])

    def functions(self) -> list[dict[str, Any]]:
        """The tools as OpenAI's protocol describes functions, which chat templates take."""
        described = []
        for tool in self.tools:
            function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
            described.append({"type": "function", "function": function})
        return described


class ToolTalk:
    """The tools of an environment, for one model: who renders its prompts, and how it writes calls."""

    def __init__(self, interface: Interface, renderer: Rendering) -> None:
        """Raises ConfigError for a model whose chat template does not describe tools."""
        self._names = {tool.name for tool in interface.tools}
        try:
            if not isinstance(renderer, Renderer):
                raise ModelError("it has no chat template", code="E_NO_CHAT_TEMPLATE")
            self.renderer = ToolRenderer(renderer, interface.functions())
            self._syntax: Syntax = find_syntax(ToolRenderer(renderer))
        except ModelError as error:
            raise ConfigError(
                f"{interface.name} has tools ({', '.join(sorted(self._names))}), and the model of role {SEAT!r} cannot "
                f"call them: {error}; take a model whose chat template has tools",
                code="E_MODEL_WITHOUT_TOOLS",
            ) from error

    def calls_in(self, turn: Turn) -> list[ToolCall | str]:
        """The calls in a turn, in order: each as it was read, or the reason why it could not be. A turn that was cut
        off has none."""
        if turn.finish != "stop":
            return []
        _, calls, outcomes = read_calls(turn.text, self._syntax, self._names)
        readable = iter(calls)
        return [next(readable) if outcome == "ok" else outcome for outcome in outcomes]


def make_openenv_protocol(interface: Interface, turns: int) -> RolloutFn:
    """The protocol that plays it, to learn from and to measure. ``turns``: the most that the agent has."""
    talks: dict[int, ToolTalk] = {}  # by the renderer that they extend, which lives as long as the run

    def talk_of(renderer: Rendering) -> ToolTalk | None:
        if not interface.tools:
            return None
        if id(renderer) not in talks:
            talks[id(renderer)] = ToolTalk(interface, renderer)
        return talks[id(renderer)]

    @gives(SEAT_REWARD.to(SEAT))
    async def play_openenv(task: Task, roles: Roles) -> None:
        assert isinstance(task.grader, SeededEpisode)
        role = getattr(roles, SEAT)
        talk = talk_of(role.renderer)

        async with roles.busy():
            instance = Instance(interface.kind)
            await instance.open()
        try:
            episode = OneEpisode(interface, instance, roles, talk)
            await episode.play(task, task.grader.seed, turns)
        finally:
            async with roles.busy():
                await instance.close()

    return play_openenv


class OneEpisode:
    """An instance of the environment, the agent's conversation, and what the steps have paid so far."""

    def __init__(self, interface: Interface, instance: Instance, roles: Roles, talk: ToolTalk | None) -> None:
        self._interface = interface
        self._instance = instance
        self._roles = roles
        self._talk = talk
        self._paid: list[float] = []
        self._done = False
        self._outcomes: dict[str, list[str]] = {}  # training sequence → what became of its calls

    async def play(self, task: Task, seed: int, turns: int) -> None:
        """From the reset to the reward."""
        async with self._roles.busy():
            first = await self._instance.reset(seed)
        if self._interface.prompt_in(first) != task.prompt:
            raise ValueError(f"{self._interface.name} does not repeat itself: {task.id} has another prompt than before")

        chat = getattr(self._roles, SEAT).begin(problem=task.prompt)
        if self._talk is not None:
            chat.set_messages(chat.messages, self._talk.renderer)
        for _ in range(turns):
            goes_on = await self._play_turn(chat)
            if not goes_on:
                break
        pay_conversation(chat, self._total_reward())

    async def _play_turn(self, chat: Conversation) -> bool:
        """One turn of the agent, and the environment's answer to it. Returns whether the agent is to speak again."""
        try:
            turn = await chat.say()
        except TooLong:
            if not chat.turns:
                raise
            return False  # the conversation has outgrown the context
        if turn.failed:
            return False
        turn.add_finding(PROBLEM, chat.messages[-2].content)

        calls = self._talk.calls_in(turn) if self._talk is not None else []
        if calls:
            await self._take_calls(chat, turn, calls)
        elif self._interface.action_kind is not None:
            await self._take_text(chat, turn)
        else:
            return False
        return not self._done

    async def _take_calls(self, chat: Conversation, turn: Turn, calls: Sequence[ToolCall | str]) -> None:
        """One step for each call, until one is done."""
        outcomes = self._outcomes.setdefault(turn.first.id, [])
        for call in calls:
            if isinstance(call, str):  # it could not be read
                outcomes.append(call)
                chat.tool(f"({call})")
                continue
            async with self._roles.busy():
                result = await self._instance.call_tool(call.tool, dict(call.named))
            outcomes.append(result.outcome)
            self._note(result.observed)
            if self._done:
                break
            chat.tool(checked_length(result.output))
        turn.add_finding(CALLS, list(outcomes))

    async def _take_text(self, chat: Conversation, turn: Turn) -> None:
        """One step with the agent's words, without its thoughts, as the action."""
        words = behind_thoughts(turn.text) or ""
        try:
            action = self._interface.action_kind(**{self._interface.action: words.strip()})
        except ValueError as error:  # pydantic's, for words that the action does not allow
            chat.environment(f"(not accepted: {first_line(error)})")
            return
        async with self._roles.busy():
            observed = await self._instance.step(action)
        self._note(observed)
        if not self._done:
            shown = observed.text_for_policy(self._interface.observation, beside=self._interface.prompt)
            chat.environment(checked_length(shown))

    def _note(self, observed: Observed) -> None:
        if observed.reward is not None:
            self._paid.append(observed.reward)
        self._done = observed.done

    def _total_reward(self) -> float:
        """The sum of what was paid; NaN, which is no reward, where the environment ended the episode without any."""
        if self._paid:
            return sum(self._paid)
        return math.nan if self._done else 0.0


def checked_length(text: str) -> str:
    """A text of the environment. Raises TooLong for more than is read."""
    if len(text) > MAX_MESSAGE:
        raise TooLong(
            f"the environment says {len(text)} characters at once; at most {MAX_MESSAGE} are read",
            code="E_ENVIRONMENT_SAYS_TOO_MUCH",
        )
    return text


def first_line(error: Exception) -> str:
    """The message of an error, in one line."""
    return " ".join(str(error).split())[:200]
