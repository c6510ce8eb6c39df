"""One episode of somebody else's environment (``verifiers`` 0.4), in which each agent is a role.

The environment calls its agents as it does everywhere, ``await agents.solver.run(task)``, or turn by turn in
``async with agents.solver.interaction(task)``. Here an agent is a seat: its conversation is one of the role of that
name, and its trace is what the environment's own rewards read. A seat has no tools, as in verifiers' harness ``null``.

Hooks and rewards are the package's own code and run in this process: install what you trust. What they raise breaks off
the episode, with the reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from cotrain.core.errors import ConfigError, TooLong
from cotrain.core.notes import PROBLEM
from cotrain.core.signals import gives
from cotrain.core.types import NoGrader, RolloutFn, Task
from cotrain.envs.played import MAX_MESSAGE, SEAT_REWARD, Compare, pay_conversation, pay_seat
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.runner import Roles


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTask(NoGrader):
    """Holds the environment's own task."""

    reason: str = "its environment grades, which the recipe `environment` runs"
    task: Any


class Seat:
    """An agent of the environment, as its ``run`` sees it."""

    def __init__(self, name: str, spec: Any, roles: Roles | None, traces: list[Any], turns: int, compare: str) -> None:
        """``traces``: those of the episode, to which the seat adds its own. ``turns``: most turns of a conversation.
        ``roles``: None for a seat that is not played, only looked at."""
        self.name = name
        self.spec = spec
        self.roles = roles
        self.traces = traces
        self.turns = min(turns, spec.max_turns or turns)
        self.compare = compare
        self.trainable = True  # the environment's ``setup`` may set it to False
        self.conversations: list[tuple[Conversation, Any]] = []  # each with its trace

    async def run(self, task: Any, **unused: Any) -> Any:
        """Let the seat answer the task's prompt. Returns the trace."""
        async with self.interaction(task) as talk:
            await talk.turn()
        return talk.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **unused: Any) -> AsyncIterator[Interaction]:
        """A conversation, scored by the task's own rewards when it is left."""
        check_task(self.name, task)
        talk = Interaction(self, task)
        yield talk
        trace = talk.trace
        trace.stop("user_closed")
        assert self.roles is not None
        async with self.roles.busy():
            await task.score(trace)
        trace.ok = True
        self.traces.append(trace)


class Interaction:
    """A conversation of one seat, and its trace. The environment, which holds it, speaks as the user."""

    def __init__(self, seat: Seat, task: Any) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.state import state_cls

        self._seat = seat
        self._task = task
        self._is_over = False
        self._chat: Conversation | None = None
        self.trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=vf.AgentConfig(), name=seat.name, trainable=seat.trainable),
        )

    async def turn(self, message: Any = None) -> Any:
        """Return the seat's reply to ``message``; None: to the task's own prompt.

        The segment is ``terminated`` where the seat has no turn left, and where its conversation no longer fits the
        context.
        """
        import verifiers.v1 as vf
        from verifiers.v1.agent import Segment

        prompt = self._task.data.prompt_text if message is None else message_text(message)
        if len(prompt) > MAX_MESSAGE:
            raise TooLong(
                f"the environment says {len(prompt)} characters at once; at most {MAX_MESSAGE} are read",
                code="E_ENVIRONMENT_SAYS_TOO_MUCH",
            )
        if self._is_over or self.trace.num_turns >= self._seat.turns:
            self._is_over = True
            self.trace.stop("max_turns")
            return Segment(messages=[], terminated=True)
        if self._chat is None:
            self._chat = self._begin("\n\n".join(part for part in (self._task.data.system_prompt, prompt) if part))
        else:
            self._chat.user(prompt)
        try:
            turn = await self._chat.say()
        except TooLong:
            if not self._chat.turns:
                raise
            self._is_over = True
            self.trace.stop("context_length")
            return Segment(messages=[], terminated=True)

        # The trace is a list of messages, each of which names the place of the one before it.
        reply = vf.AssistantMessage(content=turn.text)
        nodes = self.trace.nodes
        before_prompt = len(nodes) - 1 if nodes else None
        nodes.append(vf.MessageNode(parent=before_prompt, message=vf.UserMessage(content=prompt)))
        nodes.append(vf.MessageNode(parent=len(nodes) - 1, message=reply, sampled=True))
        turn.add_finding(PROBLEM, prompt)
        self._is_over = await self._is_stopped()
        return Segment(messages=[reply])

    def _begin(self, prompt: str) -> Conversation:
        role = getattr(self._seat.roles, self._seat.name)
        group = role.whole_group
        if self._seat.compare == "prompt":
            group += f":{blake2b(prompt.encode(), digest_size=8).hexdigest()}"
        chat: Conversation = role.begin(problem=prompt, group=group)
        self._seat.conversations.append((chat, self.trace))
        return chat

    async def _is_stopped(self) -> bool:
        """Whether one of the task's ``@stop`` conditions holds."""
        from verifiers.v1.utils.decorators import invoke_all

        conditions = self._task.hooks("stop")
        if not conditions:
            return False
        return any(await invoke_all(conditions, {"task": self._task.data, "trace": self.trace}))


def message_text(message: Any) -> str:
    """The words of a message, or of several."""
    if isinstance(message, str):
        return message
    contents = []
    for part in message:
        contents.append(part["content"] if isinstance(part, dict) else part.content)
    if not all(isinstance(content, str) for content in contents):
        raise ConfigError(
            "the environment says something that is no text; only text can be shown to a model",
            code="E_ENVIRONMENT_NOT_TEXT",
        )
    return "\n\n".join(contents)


def check_task(seat: str, task: Any) -> None:
    """Raise ConfigError for a task that a seat without tools cannot play."""
    import verifiers.v1 as vf

    unfit = {
        "needs a container": task.NEEDS_CONTAINER,
        "has tools": bool(type(task).toolsets(task.config)),
        "is graded by judge models": bool(task.plugged_judges()),
        "sets up a runtime": type(task).setup is not vf.Task.setup or type(task).finalize is not vf.Task.finalize,
    }
    for reason, applies in unfit.items():
        if applies:
            raise ConfigError(
                f"seat {seat!r}: its task {reason}; only seats that write and read text can be run",
                code="E_SEAT_NOT_TEXT",
            )


def make_seats(environment: Any, roles: Roles | None, traces: list[Any], turns: int, compare: str) -> Any:
    """The agents of one episode; see ``Seat``."""
    import verifiers.v1 as vf

    return vf.Agents(environment.config, lambda name, spec: Seat(name, spec, roles, traces, turns, compare))


def trainable_seats(environment: Any) -> dict[str, bool]:
    """Name → may it learn, as the environment's ``setup`` says; in its order."""
    from verifiers.v1.configs.agent import agent_config_fields

    agents = make_seats(environment, None, [], 1, "seat")
    names = agent_config_fields(environment.config)
    # ``setup`` is a coroutine that only sets flags. So the first ``send`` runs it to its end, without an event loop.
    setup = environment.setup(agents)
    try:
        setup.send(None)
    except StopIteration:
        return {name: bool(getattr(agents, name).trainable) for name in names}
    finally:
        setup.close()
    raise ConfigError(
        f"environment {environment.config.env_id!r}: its setup waits for something; expected flags alone",
        code="E_ENVIRONMENT_WAITS",
    )


def make_environment_protocol(environment: Any, seats: tuple[str, ...], turns: int, compare: Compare) -> RolloutFn:
    """The protocol that plays it, to learn from and to measure."""
    import verifiers.v1 as vf
    from verifiers.v1.episode import EnvInfo

    @gives(*(SEAT_REWARD.to(seat) for seat in seats))
    async def play_environment(task: Task, roles: Roles) -> None:
        assert isinstance(task.grader, EnvironmentTask)
        row = task.grader.task
        episode = vf.Episode(
            env=EnvInfo(id=environment.config.env_id),
            task=vf.TraceTask(type=type(row).__name__, data=row.data, key=row.key, hash=row.hash),
        )
        agents = make_seats(environment, roles, episode.traces, turns, compare)
        await environment.setup(agents)
        await environment.run(row, agents)
        async with roles.busy():
            await environment.finalize(row, episode)
        for seat in seats:
            conversations = getattr(agents, seat).conversations
            rewards = [(chat, trace.reward) for chat, trace in conversations if chat.turns]
            if compare == "seat":
                pay_seat(rewards)
            else:
                for chat, reward in rewards:
                    pay_conversation(chat, reward)

    return play_environment
