"""Collecting episodes: one coroutine for each task and member of its group, while the engine batches what they ask.

::

    collect ─▶ one coroutine per (task, member) ─▶ roles.solver(…) ─▶ Conversation ─▶ engine.sample ─▶ Turn ─▶ Episode

Each request has an address (step, task, member, role, call), and its seed is a hash of that address. So the episodes do
not depend on which coroutine was faster. The call's number is given when a role is called, in the order of the program,
not when the call is awaited.

What happens to errors:

- A protocol that raises ends its own episode only. The episode keeps the reason and its traces, marked as failed.
- A problem that is too long for its model's context ends its episode likewise, and is kept in
  ``RolloutRunner.set_aside``.
- A prompt that is too long because it shows what other roles said fails that turn alone (``Conversation.say``).
- Other errors of cotrain itself (a wrong template, an unknown policy) and of the engine end the whole batch, because
  every episode would meet them.

Nothing outlives a batch: what is still running when it ends is cancelled.

The engine advances only when the event loop has nothing else to do, so protocols run in a loop of our own. In a
notebook, where a loop already runs, ours runs in another thread.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from cotrain.core.arguments import bound_function
from cotrain.core.errors import ConfigError, CotrainError, EngineLost, TooLong, UnknownName
from cotrain.core.seeding import Address, global_draws, make_nonce
from cotrain.core.signals import DeclaredSignals, declared_by
from cotrain.core.types import (
    BROKEN_OFF,
    TOO_LONG,
    AsyncGrader,
    Episode,
    Grade,
    NoGrader,
    RolloutFn,
    Store,
    Task,
    check_grade,
)
from cotrain.core.verbosity import ProgressPrinter, print_note
from cotrain.inference.contract import ContextLimitedEngine, Engine
from cotrain.prompts.render import Rendering
from cotrain.prompts.templates import fields_of
from cotrain.rollout.context import PromptFields, RolloutContext
from cotrain.rollout.conversation import Conversation, finish_conversations
from cotrain.rollout.event_loop import EngineEventLoop, ProtocolStoppedLoop, engine_paused, gather, is_cancelled_by_loop
from cotrain.rollout.role import Role, Turn

TRIES = 3  # attempts of one batch if the engine's process is lost
_RESERVED = ("grade", "busy", "nonce")  # methods of ``Roles``, so no role can have these names


class FinishedEpisode(NamedTuple):
    """An episode, and why its problem did not fit the context; None where it did."""

    episode: Episode
    why_too_long: str | None


class BatchProgress:
    """Prints how many episodes of each batch have ended."""

    def __init__(self, text: str, say: Callable[[str], None]) -> None:
        """``text``: with "{}" in the place of the count."""
        self._text = text
        self._say = say
        self._printer: ProgressPrinter | None = None

    def begin(self, n_episodes: int) -> None:
        """A batch of so many episodes begins."""
        self._printer = ProgressPrinter(n_episodes, self._text, self._say, at_once=True)

    def episode_ended(self) -> None:
        if self._printer is not None:
            self._printer.add()


class JointProgress(BatchProgress):
    """Prints how many episodes of several batches together have ended."""

    def __init__(self, printer: ProgressPrinter) -> None:
        """``printer``: was made for the number of episodes of all batches."""
        self._printer = printer

    def begin(self, n_episodes: int) -> None:
        """Does nothing: the printer goes on from the batch before."""


class Roles:
    """The roles of one episode, as attributes: ``roles.solver`` is the ``RoleHandle`` of the role "solver", and
    ``roles.solver(...)`` calls it. Raises UnknownName for a role there is not."""

    def __init__(
        self,
        context: RolloutContext,
        position: int,  # position of the task in its step
        member: int,  # position of the episode among those of its task
        declared: DeclaredSignals,  # signals that the protocol may reward
        *,
        task_id: str,
        task_prompt: str,
    ) -> None:
        self._context = context
        self._position = position
        self._member = member
        self._declared = declared
        self._task_id = task_id
        self._task_prompt = task_prompt
        self._calls = dict.fromkeys(context.roles, 0)  # role → how often it was called
        self._conversations: list[Conversation] = []
        self._finished = False

    def __getattr__(self, name: str) -> RoleHandle:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._context.roles:
            raise UnknownName("role", name, self._context.roles)
        return RoleHandle(self, name)

    async def grade(self, task: Task, said: Turn | str, *, text: str | None = None) -> Grade:
        """``task.grade`` of what a turn says. A grader with processes of its own grades many answers at once in these,
        and the engine waits for it.

        Args:
            said: a text, or a turn. A turn without an answer that can be read is wrong; the reason is the parser's.
            text: the whole solution, where the turn is only a part of it.

        Raises ConfigError for a task that has no right or wrong answers, such as a game.
        """
        if isinstance(task.grader, NoGrader):
            raise ConfigError(
                f"problem {task.id} cannot be graded: {task.grader.reason}; the protocol asks whether an answer is "
                "right, so take other problems (--tasks), or a recipe that is made for these",
                code="E_TASK_NOT_GRADABLE",
            )
        if isinstance(said, Turn):
            # A grader of whole solutions, or one without a gold answer to compare with, gets all that was said, even if
            # the parser found no answer in it. Any other needs that answer.
            needs_whole_text = task.whole or task.gold is None
            to_grade = said.text_to_grade(text, whole=needs_whole_text)
            if to_grade is None:  # the parser found no answer
                return Grade(value=False, reason=said.parsed.reason)
        else:
            to_grade = said  # a string is graded as it stands
        if not isinstance(task.grader, AsyncGrader):
            return task.grade(to_grade)
        async with engine_paused():  # so that its batches do not depend on how long grading takes
            return check_grade(task.grader, await task.grader.agrade(task, to_grade))

    def nonce(self, about: Turn) -> str:
        """A random marker, to be put around a turn's text when other roles see it, so that the text cannot end its
        own quotation (``formats/nonce.py``). It follows from the turn's address, and is another one at every step."""
        return self._nonce(about.id)

    def _nonce(self, address: str) -> str:
        """The random marker of what has this address."""
        return make_nonce(self._context.seed, f"{self._context.split}:{address}")

    def busy(self) -> AbstractAsyncContextManager[None]:
        """``async with roles.busy():`` around awaiting anything but a role, such as a web request.

        The engine does not advance meanwhile, so that its batches do not depend on how long that takes.
        """
        return engine_paused()

    def _next_address(self, name: str) -> Address:
        if self._finished:
            raise RuntimeError(f"role {name!r} was called after its episode was over")
        call = self._calls[name]
        self._calls[name] += 1
        return Address(step=self._context.step, task=self._position, member=self._member, role=name, call=call)

    def _start_conversation(
        self, name: str, group: str | None, parent: Turn | None, fields: Mapping[str, Any], *, keep_cache: bool
    ) -> Conversation:
        """A conversation with the role's prompt. ``keep_cache``: it is likely to go on after its first turn."""
        address = self._next_address(name)
        role = self._context.roles[name]
        conversation = Conversation(
            role=role,
            address=address,
            group=default_group(address.task, name) if group is None else group,
            parent=parent,
            fields=fields,
            renderer=self._context.renderers[role.policy],
            nonce=self._nonce(str(address)),
            context=self._context,
            siblings=self._conversations,  # the list itself: a fork of this conversation adds itself to the episode
            keep_cache=keep_cache,
            declared=self._declared,
            task_prompt=self._task_prompt,
        )
        self._conversations.append(conversation)
        if group is None:
            # Recorded for ``trainer/checks.py``: all prompts of a default group must be equal. It checks that when the
            # batch is over, and names the field that differs.
            field_names = sorted(fields_of(role.prompt))
            self._context.fields_by_address[str(address)] = {field: str(fields[field]) for field in field_names}
        return conversation

    def _finish_episode(self, failure: str | None) -> Episode:
        """End the episode. Nothing can be asked after it."""
        self._finished = True
        for conversation in self._conversations:
            conversation.close()

        n_unawaited = sum(conversation.unawaited_turns for conversation in self._conversations)
        if failure is None and n_unawaited:
            calls = "call of a role was" if n_unawaited == 1 else "calls of roles were"
            failure = f"{n_unawaited} {calls} not awaited"
        if failure is not None:
            for conversation in self._conversations:
                for turn in conversation.turns:
                    turn.fail(BROKEN_OFF)  # "protocol failed"

        return Episode(
            step=self._context.step,
            task=self._position,
            member=self._member,
            task_id=self._task_id,
            traces=tuple(finish_conversations(self._conversations)),
            failure=failure,
        )


@dataclass(frozen=True, slots=True)
class RoleHandle:
    """One role of one episode. Of its keywords ``group`` and ``parent`` are reserved; all others are fields of the
    template.

    It is a view of one name in ``Roles``, and shares the private attributes of it.
    """

    _roles: Roles
    _name: str

    @property
    def _role(self) -> Role:
        return self._roles._context.roles[self._name]

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields that the role's template has."""
        return fields_of(self._role.prompt)

    @property
    def renderer(self) -> Rendering:
        """The renderer of its prompts."""
        return self._roles._context.renderers[self._role.policy]

    @property
    def context_length(self) -> int | None:
        """The most tokens that prompt and answer may have together, for its model. None where the engine does not
        say."""
        engine = self._roles._context.engine
        if isinstance(engine, ContextLimitedEngine):
            return engine.context(self._role.policy)
        return None

    def format_solution(self, solution: str) -> str:
        """``solution`` in the tags that this role's parser expects. Called by protocols that have a solution as a text
        and need it as this role would write it, such as the reference solution of a problem."""
        return self._role.format_solution(solution)

    @property
    def whole_group(self) -> str:
        """Pass it as ``group=roles.solver.whole_group`` to compare all traces of this role on this task although their
        prompts differ. It is the name of the default group; where a call gives it, equal prompts are not checked for.
        """
        return default_group(self._roles._position, self._name)

    def begin(self, *, group: str | None = None, parent: Turn | None = None, **fields: Any) -> Conversation:
        """A conversation that begins with the role's prompt. Arguments and errors: see ``__call__`` below."""
        return self._roles._start_conversation(self._name, group, parent, fields, keep_cache=True)

    def __call__(
        self, *, group: str | None = None, parent: Turn | None = None, **fields: Any
    ) -> Coroutine[Any, Any, Turn]:
        """Ask once: a conversation of one turn.

        Args:
            group: advantages are computed within a group. By default it has all traces of this role on this task, whose
                prompts must then be equal. For smaller groups give a name, as in ``group=proposal.id``.
            parent: the turn that this one judges or answers.
            fields: what to put into the template. The parser sees them all; the template takes those it has.

        Raises ConfigError for a field of the template that is not given; when awaited, for a prompt that is too long.
        """
        # Not ``async``: the conversation gets its address at the call, also where it is awaited later.
        return self._roles._start_conversation(self._name, group, parent, fields, keep_cache=False).say()

    def many(
        self, n: int, *, group: str | None = None, parent: Turn | None = None, **fields: Any
    ) -> Coroutine[Any, Any, list[Turn]]:
        """Ask ``n`` times at once; the turns come in the order of their calls."""
        conversations = [
            self._roles._start_conversation(self._name, group, parent, fields, keep_cache=False) for _ in range(n)
        ]
        return gather([conversation.say() for conversation in conversations])


def default_group(task: int, role: str) -> str:
    """The name of the group of all traces of a role on a task."""
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
        loop: EngineEventLoop | None = None,
        progress: BatchProgress | None = None,
    ) -> None:
        """
        Args:
            engine: answers requests.
            renderers: policy → how its prompts become tokens.
            roles: name → role.
            seed: seed of the run; every request's seed is a hash of it and of the request's address.
            loop: event loop in which protocols run, to share connections with other runners; None: a new one.
            progress: shows how far each batch is.

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
        self.engine = engine
        self.renderers = renderers
        self.roles = roles
        self.seed = seed
        self.loop = loop or EngineEventLoop()
        self.progress = progress
        self.set_aside: dict[str, str] = {}  # task id → why its prompt did not fit the context
        # Training step → what the prompts of its conversations showed (``RolloutContext.fields_by_address``). Kept
        # until ``trainer/checks.py`` takes it out, to check that traces that are compared had equal prompts.
        self.prompt_fields: dict[int, PromptFields] = {}

    def greedy_copy(self) -> RolloutRunner:
        """A copy with every role at temperature 0. What does not fit there is noted in this runner's ``set_aside``."""
        greedy_roles = {}
        for name, role in self.roles.items():
            greedy_roles[name] = role.with_temperature(0.0)
        greedy_runner = RolloutRunner(
            self.engine,
            self.renderers,
            greedy_roles,
            self.seed,
            loop=self.loop,
            progress=self.progress,
        )
        greedy_runner.set_aside = self.set_aside
        return greedy_runner

    def collect(
        self,
        protocol: RolloutFn,
        tasks: Sequence[Task],
        *,
        step: int,
        group_size: int,
        split: str = "train",
        first_position: int = 0,
        stores: Mapping[str, Store] | None = None,
    ) -> tuple[Episode, ...]:
        """Run the protocol ``group_size`` times on every task, all at once; the episodes sorted by (task, member).

        Args:
            step: part of every address and seed; a negative number outside of training.
            protocol: with its options bound, as in ``partial(solve, step_rewards="oracle")``.
            split: part of every seed.
            first_position: position of the first of these tasks among those of the step.
            stores: stores of the run, which the protocol is given by name.

        Raises Deadlock when protocols wait for something that cannot come, whatever CotrainError a protocol meets, and
        whatever the engine raises; then no coroutine is left over.
        """
        context = RolloutContext(
            engine=self.engine,
            renderers=self.renderers,
            roles=self.roles,
            seed=self.seed,
            split=split,
            step=step,
        )
        draws_before = global_draws()
        finished = self._run_episodes(
            context, protocol, tasks, group_size=group_size, first_position=first_position, stores=stores or {}
        )
        if global_draws() != draws_before:
            _note_global_draws(protocol_name(protocol))
        is_training = step >= 0
        if is_training:
            earlier = self.prompt_fields.get(step, {})  # a step may collect several batches
            self.prompt_fields[step] = earlier | context.fields_by_address
        for episode, why_too_long in finished:
            if why_too_long is not None:
                self.set_aside.setdefault(episode.task_id, why_too_long)
        return tuple(episode for episode, _ in finished)

    def _run_episodes(
        self,
        context: RolloutContext,
        protocol: RolloutFn,
        tasks: Sequence[Task],
        *,
        group_size: int,
        first_position: int,
        stores: Mapping[str, Store],
    ) -> list[FinishedEpisode]:
        """Run all episodes at once; in the order of their addresses. If the engine's process is lost, run all of them
        again: an engine keeps no state of its own, so a new one gives the same episodes."""
        # The signals that the protocol declares with ``@gives``, also through ``partial``: it may reward no others.
        # Without ``@gives`` there are none.
        declared = declared_by(protocol) or DeclaredSignals(protocol_name(protocol), ())
        last_loss: EngineLost | None = None
        for _ in range(TRIES):
            if self.progress is not None:
                self.progress.begin(len(tasks) * group_size)
            coroutines = []
            names = []
            for position, task in enumerate(tasks, start=first_position):
                for member in range(group_size):
                    roles = Roles(context, position, member, declared, task_id=task.id, task_prompt=task.prompt)
                    coroutines.append(_run_episode(protocol, task, roles, stores, self.progress))
                    names.append(f"task {position}, member {member}")
            try:
                # The loop runs all coroutines; whenever each of them waits, the engine advances by one batch.
                return self.loop.run_to_end(gather(coroutines, names), self.engine.advance)
            except EngineLost as lost:
                last_loss = lost
        assert last_loss is not None
        raise EngineLost(
            f"{last_loss}; the engine was lost {TRIES} times in one batch", code=last_loss.code
        ) from last_loss


class CollectHeldOut(Protocol):
    """Collects episodes of held-out problems. ``what``: what they are called, "sampled" or "greedy"."""

    def __call__(
        self,
        runner: RolloutRunner,
        protocol: RolloutFn,
        tasks: Sequence[Task],
        *,
        split: str,
        group_size: int,
        what: str,
    ) -> tuple[Episode, ...]: ...


_NOTED: list[str] = []  # protocols of which ``_note_global_draws`` has spoken, each once in a process


def _note_global_draws(protocol: str) -> None:
    """Say that a run cannot be repeated, as something in its episodes was drawn from a shared generator."""
    if protocol in _NOTED:
        return
    _NOTED.append(protocol)
    print_note(
        f"while {protocol!r} ran, numbers were drawn from the global generator of Python's random or of "
        "numpy. No checkpoint holds its state, so the same command and a resumed run draw others: take "
        "rng_of('any name', turn.id) of cotrain in its place"
    )


def protocol_name(protocol: RolloutFn) -> str:
    """The name of a protocol, whatever kind of callable it is."""
    function = bound_function(protocol)
    return str(getattr(function, "__name__", type(function).__name__))


async def _run_episode(
    protocol: RolloutFn, task: Task, roles: Roles, stores: Mapping[str, Store], progress: BatchProgress | None
) -> FinishedEpisode:
    """Run one episode. What an error ends:

    ::

        TooLong               this episode; its problem did not fit
        ProtocolStoppedLoop   this episode: the protocol stopped the loop, or cancelled tasks of others
        other CotrainError    the whole batch: every other episode would meet it too
        KeyboardInterrupt     the whole batch
        CancelledError        the whole batch if the loop cancels it; this episode if the protocol did
        any other             this episode, as the protocol raised it
    """
    why_too_long = None
    try:
        running = protocol(task, roles, **stores)
        if not inspect.isawaitable(running):
            raise ConfigError(
                f"protocol {protocol_name(protocol)!r} returned {running!r} instead of waiting for its roles; write "
                f"`async def {protocol_name(protocol)}(task, roles)`",
                code="E_PROTOCOL_NOT_ASYNC",
            )
        await running
        episode = roles._finish_episode(None)
    except TooLong as error:
        why_too_long = str(error)
        episode = roles._finish_episode(TOO_LONG)
    except ProtocolStoppedLoop as error:
        episode = roles._finish_episode(_failure_text(error))
    except (CotrainError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if is_cancelled_by_loop():  # such as after an error that ends the whole batch
            raise
        episode = roles._finish_episode(_failure_text(error))

    loop = asyncio.get_running_loop()
    assert isinstance(loop, EngineEventLoop)  # ``RolloutRunner`` runs episodes in no other one
    loop.stall_detector.note_progress()  # an episode is over, so the loop is not stuck
    if progress is not None:
        progress.episode_ended()
    return FinishedEpisode(episode, why_too_long)


def _failure_text(error: BaseException) -> str:
    from cotrain.core.user_code import failure_of

    return failure_of(error)
