"""Playing episodes: P × G coroutines run a protocol to completion while the engine batches what they ask.

::

    play ─▶ one coroutine per (task, member) ─▶ roles.solver(…) ─▶ Conversation ─▶ engine.sample ─▶ Turn ─▶ … ─▶ Episode

Everything has an address, and the seed of a request is a hash of it, so the episodes do not depend on which
coroutine was faster. Call indexes are handed out when a role is called, in program order, not when it is awaited.

A protocol that raises breaks off its own episode only: the episode keeps the reason and its traces, marked as failed.
So does a problem that does not fit its model's context; ``RolloutRunner.set_aside`` has its name. A prompt that does
not fit since it shows what others said fails that turn alone (``Conversation.say``). Other errors of cotrain itself (a
wrong template, an unknown policy) and of the engine end the play, as every episode would meet them. Nothing outlives a
play: what is still running when it ends is cancelled.

Inside of a running event loop, as a notebook's, protocols are played in a thread: the engine's turn is defined by the
loop being ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from cotrain.core.arguments import bound_function
from cotrain.core.errors import ConfigError, CotrainError, EngineLost, TooLong, UnknownName
from cotrain.core.seeding import Address, make_nonce
from cotrain.core.signals import DeclaredSignals, declared_by
from cotrain.core.types import BROKEN_OFF, TOO_LONG, AsyncGrader, Episode, Grade, NoGrader, Store, Task
from cotrain.inference.contract import ContextLimitedEngine, Engine
from cotrain.prompts.render import Rendering
from cotrain.prompts.templates import fields_of
from cotrain.rollout.conversation import Conversation, finish_conversations
from cotrain.rollout.event_loop import EngineEventLoop, Stopped, engine_paused, gather, is_cancelled_by_loop
from cotrain.rollout.play_context import Grader, RolloutContext
from cotrain.rollout.role import Role, Turn

RolloutFn = Callable[..., Coroutine[Any, Any, Any]]  # async (task, roles) → ignored
TRIES = 3  # attempts of one batch if the engine's process is lost
_RESERVED = ("grade", "busy", "nonce")


async def grade_outside(task: Task, text: str) -> Grade:
    """The ``grader`` of an executor: many answers at once where the task's grader has processes for it, else
    ``task.grade``.

    The executor keeps its engine waiting meanwhile, so that how long a grade takes decides no batch.
    """
    return await task.grader.agrade(task, text) if isinstance(task.grader, AsyncGrader) else task.grade(text)


class Roles:
    """The roles of one episode, as attributes: ``roles.solver(...)``. Raises UnknownName for a role there is not."""

    def __init__(
        self, stage: RolloutContext, task: int, member: int, declared: DeclaredSignals, task_prompt: str
    ) -> None:
        self._context, self._task, self._member, self._declared = stage, task, member, declared
        self._task_prompt = task_prompt
        self._calls = dict.fromkeys(stage.roles, 0)
        self._chats: list[Conversation] = []
        self._finished = False

    def __getattr__(self, name: str) -> RoleHandle:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._context.roles:
            raise UnknownName("role", name, self._context.roles)
        return RoleHandle(self, name)

    async def grade(self, task: Task, said: Turn | str, *, text: str | None = None) -> Grade:
        """``task.grade`` of what a turn says, by the executor's grader if it has one; the engine waits for it.

        A turn is graded as its role's reader reads it: by the answer that was read. Where none was, it is wrong, for
        the reader's reason. ``text``: the whole, of which the turn is the end or a part. A text alone is graded as it
        stands. Raises ConfigError for a task of which no answer is right or wrong, such as a game.
        """
        if isinstance(task.grader, NoGrader):
            raise ConfigError(
                f"problem {task.id} cannot be graded: {task.grader.reason}; the protocol asks whether an answer is "
                "right, so take other problems (--tasks), or a recipe that is made for these",
                code="E_TASK_NOT_GRADABLE",
            )
        if isinstance(said, Turn):
            answer_text = said.text_to_grade(text, whole=task.whole or task.gold is None)
            if answer_text is None:
                return Grade(value=False, reason=said.parsed.reason)
            text = answer_text
        else:
            text = said
        if self._context.grader is None:
            return task.grade(text)
        async with engine_paused():
            return await self._context.grader(task, text)

    def nonce(self, about: Turn) -> str:
        """The mark between which a turn's text is shown to others (``formats/nonce.py``): new at every step,
        addressed."""
        return make_nonce(self._context.seed, f"{self._context.split}:{about.id}")

    def busy(self) -> AbstractAsyncContextManager[None]:
        """``async with roles.busy():`` around any waiting that is not for a role."""
        return engine_paused()

    def _next_address(self, name: str) -> Address:
        if self._finished:
            raise RuntimeError(f"role {name!r} was called after its episode was over")
        call = self._calls[name]
        self._calls[name] += 1
        return Address(step=self._context.step, task=self._task, member=self._member, role=name, call=call)

    def _start_conversation(
        self, name: str, group: str | None, parent: Turn | None, fields: Mapping[str, Any], *, keep: bool
    ) -> Conversation:
        address, role = self._next_address(name), self._context.roles[name]
        chat = Conversation(
            role=role,
            address=address,
            group=whole_group(address.task, name) if group is None else group,
            parent=parent,
            fields=fields,
            renderer=self._context.renderers[role.policy],
            mark=make_nonce(self._context.seed, f"{self._context.split}:{address}"),
            context=self._context,
            opened=self._chats,
            keep=keep,
            declared=self._declared,
            task_prompt=self._task_prompt,
        )
        if group is None:
            self._context.fields_by_group[str(address)] = {
                key: str(fields[key]) for key in sorted(fields_of(role.prompt))
            }
        return chat

    def _finish_episode(self, failure: str | None) -> Episode:
        """End the episode; the runner fills in ``task_id``."""
        self._finished = True
        for chat in self._chats:
            chat.close()
        if failure is None and (lost := sum(chat.unawaited_turns for chat in self._chats)):
            failure = f"{lost} {'call of a role was' if lost == 1 else 'calls of roles were'} not awaited"
        if failure is not None:
            for turn in (turn for chat in self._chats for turn in chat.turns):
                turn.fail(BROKEN_OFF)
        traces = finish_conversations(self._chats)
        return Episode(
            step=self._context.step,
            task=self._task,
            member=self._member,
            task_id="",
            traces=tuple(traces),
            failure=failure,
        )


@dataclass(frozen=True, slots=True)
class RoleHandle:
    """One role of one episode. ``group`` and ``parent`` are taken; every other keyword is a field of the template."""

    _roles: Roles
    _name: str

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields that the role's template has."""
        return fields_of(self._roles._context.roles[self._name].prompt)

    @property
    def renderer(self) -> Rendering:
        """The renderer of its prompts."""
        return self._roles._context.renderers[self._roles._context.roles[self._name].policy]

    @property
    def context(self) -> int | None:
        """Tokens that its model takes, prompt and answer together; None where the engine does not say."""
        stage = self._roles._context
        engine = stage.engine
        return engine.context(stage.roles[self._name].policy) if isinstance(engine, ContextLimitedEngine) else None

    def format_solution(self, solution: str) -> str:
        """A solution in tags as this role is read: for programs that speak in its place."""
        return self._roles._context.roles[self._name].format_solution(solution)

    @property
    def whole_group(self) -> str:
        """The group of all traces of this role on this task, as ``group=roles.solver.whole_group``: for a protocol that
        means to compare answers to different prompts."""
        return whole_group(self._roles._task, self._name)

    def begin(self, *, group: str | None = None, parent: Turn | None = None, **fields: Any) -> Conversation:
        """A conversation that begins with the role's prompt. Arguments as of a call; ConfigError likewise."""
        return self._roles._start_conversation(self._name, group, parent, fields, keep=True)

    def __call__(
        self, *, group: str | None = None, parent: Turn | None = None, **fields: Any
    ) -> Coroutine[Any, Any, Turn]:
        """Ask once: a conversation of one turn.

        Args:
            group: which traces are compared with each other: those of one group. By default all of this role on this
                task, which must then be asked the same; else name one, as in ``group=proposal.id``.
            parent: the turn that this one judges or answers.
            fields: what to put into the template. The parser sees them all; the template takes those it has.

        Raises ConfigError for a field of the template that is not given; when awaited, for a prompt that is too long.
        """
        return self._roles._start_conversation(self._name, group, parent, fields, keep=False).say()

    def many(
        self, n: int, *, group: str | None = None, parent: Turn | None = None, **fields: Any
    ) -> Coroutine[Any, Any, list[Turn]]:
        """Ask ``n`` times at once; the turns come in the order of their calls."""
        chats = [self._roles._start_conversation(self._name, group, parent, fields, keep=False) for _ in range(n)]
        return gather([chat.say() for chat in chats])


def whole_group(task: int, role: str) -> str:
    return f"{task}:{role}"


class RolloutRunner:
    """Runs protocols with one engine and one set of roles, many episodes at once."""

    def __init__(
        self,
        engine: Engine,
        renderers: Mapping[str, Rendering],
        roles: Mapping[str, Role],
        seed: int,
        *,
        grader: Grader | None = None,
        loop: EngineEventLoop | None = None,
        progress: Callable[[int], Callable[[], None]] | None = None,
    ) -> None:
        """
        Args:
            engine: answers requests.
            renderers: by policy.
            roles: by name.
            seed: of the run; every request's seed is a hash of it and of the request's address.
            grader: grades answers outside of this process; None calls ``task.grade`` in it.
            loop: where protocols are played, for executors that share connections; None: one of its own, as long as it
                lives.
            watch: is told at each play how many episodes there are, and gives what is called when one of them is over.

        Raises UnknownName for a role whose policy has no renderer, ConfigError for a name that cannot be an attribute.
        """
        for name, role in roles.items():
            if not name.isidentifier() or name.startswith("_") or name in _RESERVED:
                raise ConfigError(
                    f"role {name!r}: choose an identifier without leading _, not {', '.join(_RESERVED)}",
                    code="E_ROLE_NAME",
                )
            if role.policy not in renderers:
                raise UnknownName(f"policy (of role {name!r})", role.policy, renderers)
        self.engine, self.renderers, self.roles, self.seed, self.grader = engine, renderers, roles, seed, grader
        self.loop, self.progress = loop or EngineEventLoop(), progress
        self.set_aside: dict[str, str] = {}  # task id → why its prompt did not fit the context
        self.fields_by_group: dict[int, dict[str, dict[str, str]]] = {}  # training step →
        # ``RolloutContext.fields_by_group`` of its rollouts

    def greedy_copy(self) -> RolloutRunner:
        """A copy with every role at temperature 0."""
        roles = {n: replace(r, sampling=replace(r.sampling, temperature=0.0)) for n, r in self.roles.items()}
        return RolloutRunner(
            self.engine, self.renderers, roles, self.seed, grader=self.grader, loop=self.loop, progress=self.progress
        )

    def collect(
        self,
        protocol: RolloutFn,
        tasks: Sequence[Task],
        *,
        step: int,
        group_size: int,
        split: str = "train",
        first: int = 0,
        stores: Mapping[str, Store] | None = None,
    ) -> tuple[Episode, ...]:
        """Play every task ``group_size`` times at once and return the episodes sorted by (task, member).

        Args:
            step: part of every address and seed; -1 outside of training.
            protocol: with its options bound, as in ``partial(solve, step_rewards="oracle")``.
            split: part of every seed.
            first: position of the first task among those of the step.
            stores: of the run, that the protocol is given by name.

        Raises Deadlock when protocols wait for something that cannot come, whatever CotrainError a protocol meets, and
        whatever the engine raises; then no coroutine is left over.
        """
        stage = RolloutContext(
            engine=self.engine,
            renderers=self.renderers,
            roles=self.roles,
            grader=self.grader,
            seed=self.seed,
            split=split,
            step=step,
        )
        declared = declared_by(protocol) or DeclaredSignals(protocol_name(protocol), ())
        task_members = [(position, member) for position in range(len(tasks)) for member in range(group_size)]
        for tried in range(1, TRIES + 1):
            over = self.progress(len(task_members)) if self.progress else None
            seats = ((tasks[p], Roles(stage, first + p, m, declared, tasks[p].prompt)) for p, m in task_members)
            work = gather(
                [_run_episode(protocol, task, roles, stores or {}, over) for task, roles in seats],
                [f"task {first + p}, member {m}" for p, m in task_members],
            )
            try:
                # The loop runs all coroutines; whenever each of them waits, the engine advances by one batch.
                episodes = self.loop.run_to_end(work, self.engine.advance)
                break
            except EngineLost as lost:  # the engine keeps no state of its own, so the same batch is collected again by
                # a new one
                if tried == TRIES:
                    raise EngineLost(f"{lost}; so it was {TRIES} times in one play", code=lost.code) from lost
        if step >= 0:
            self.fields_by_group[step] = self.fields_by_group.get(step, {}) | stage.fields_by_group
        for episode, why in episodes:
            if why is not None:
                self.set_aside.setdefault(episode.task_id, why)
        return tuple(episode for episode, _ in episodes)


def protocol_name(protocol: RolloutFn) -> str:
    """The name of a protocol, whatever kind of callable it is."""
    function = bound_function(protocol)
    return str(getattr(function, "__name__", type(function).__name__))


async def _run_episode(
    protocol: RolloutFn, task: Task, roles: Roles, stores: Mapping[str, Store], over: Callable[[], None] | None
) -> tuple[Episode, str | None]:
    """Run one episode. Returns it, and why its problem did not fit the context, else None."""
    why = None
    try:
        await protocol(task, roles, **stores)
        episode = roles._finish_episode(None)
    except TooLong as error:
        why, episode = str(error), roles._finish_episode(TOO_LONG)
    except Stopped as error:
        episode = roles._finish_episode(_failure_text(error))
    except (CotrainError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if is_cancelled_by_loop():
            raise
        episode = roles._finish_episode(_failure_text(error))
    if isinstance(loop := asyncio.get_running_loop(), EngineEventLoop):
        loop.stall_detector.note_progress()
    if over is not None:
        over()
    return replace(episode, task_id=task.id), why


def _failure_text(error: BaseException) -> str:
    from cotrain.core.user_code import failure_of

    return failure_of(error)
