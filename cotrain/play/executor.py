"""Playing episodes: P × G coroutines run a protocol to completion while the engine batches what they ask.

::

    play ─▶ one coroutine per (task, member) ─▶ roles.solver(…) ─▶ render ─▶ engine.sample ─▶ Turn ─▶ … ─▶ Episode

Everything has an address, and the seed of a request is a hash of it, so the episodes do not depend on which
coroutine was faster. Call indexes are handed out when a role is called, in program order, not when it is awaited.

A protocol that raises breaks off its own episode only: the episode keeps the reason and its traces, marked as failed. So does
a prompt that does not fit its model's context; ``Executor.set_aside`` has the problem's name. Other errors of cotrain itself
(a wrong template, an unknown policy) and of the engine end the play, as every episode would meet them. Nothing outlives a
play: what is still running when it ends is cancelled.

Left out: playing inside of a running event loop, since the engine's turn is defined by the loop being ours.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from cotrain.core.address import Address, rng_of, seed_of
from cotrain.core.errors import ConfigError, CotrainError, TooLong, UnknownName
from cotrain.core.types import Completion, Episode, Grade, Task
from cotrain.engine.contract import Engine, Request
from cotrain.play.idle_loop import IdleLoop, busy, together
from cotrain.play.role import Role, Turn
from cotrain.text.nonce import nonce
from cotrain.text.prompts import fields_of, fill
from cotrain.text.render import Message, Rendering

Protocol = Callable[..., Coroutine[Any, Any, Any]]  # async (task, roles, **options) → anything
Grader = Callable[[Task, str], Awaitable[Grade]]
Program = Callable[[Mapping[str, Any], random.Random], str]  # (the call's fields, addressed draws) → what it says

TOO_LONG = "prompt too long"  # failure of an episode whose problem does not fit a model's context
FAILED = "protocol failed"  # failure of the traces of an episode that broke off; the episode has the details
_RESERVED = ("grade", "busy", "nonce")


class EngineError(CotrainError, RuntimeError):
    """The engine raised while it answered a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all episodes of one play have in common."""

    engine: Engine
    renderers: Mapping[str, Rendering]  # by policy
    roles: Mapping[str, Role]
    grader: Grader | None
    programs: Mapping[str, Program]  # policies that are programs
    seed: int
    split: str
    step: int


class Roles:
    """The roles of one episode, as attributes: ``roles.solver(...)``. Raises UnknownName for a role there is not."""

    def __init__(self, stage: Stage, task: int, member: int) -> None:
        self._stage, self._task, self._member = stage, task, member
        self._calls = dict.fromkeys(stage.roles, 0)
        self._awaited = 0  # of the calls
        self._turns: list[Turn] = []
        self._over = False

    def __getattr__(self, name: str) -> RoleHandle:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._stage.roles:
            raise UnknownName("role", name, self._stage.roles)
        return RoleHandle(self, name)

    async def grade(self, task: Task, text: str) -> Grade:
        """``task.grade(text)``, by the executor's grader if it has one; the engine waits for it."""
        if self._stage.grader is None:
            return task.grade(text)
        async with busy():
            return await self._stage.grader(task, text)

    def nonce(self, about: Turn) -> str:
        """The mark between which a turn's text is shown to others (``text/nonce.py``): new at every step, addressed."""
        return nonce(self._stage.seed, f"{self._stage.split}:{about.id}")

    def busy(self) -> AbstractAsyncContextManager[None]:
        """``async with roles.busy():`` around any waiting that is not for a role."""
        return busy()

    def _next(self, name: str) -> Address:
        if self._over:
            raise RuntimeError(f"role {name!r} was called after its episode was over")
        call = self._calls[name]
        self._calls[name] += 1
        return Address(step=self._stage.step, task=self._task, member=self._member, role=name, call=call)

    async def _ask(
        self, address: Address, group: str | None, parent: Turn | None, begin: str, fields: Mapping[str, Any]
    ) -> Turn:
        self._awaited += 1
        stage, role = self._stage, self._stage.roles[address.role]
        renderer = stage.renderers[role.policy]
        system = [] if role.system is None else [Message("system", role.system)]
        asked = fields_of(role.prompt)  # what else the call gives is for the parser alone
        prompt = fill(role.prompt, **{name: value for name, value in fields.items() if name in asked})
        prompt_ids = (*renderer.render([*system, Message("user", prompt)]), *renderer.encode(begin))
        completion = await self._answer(address, role, prompt_ids, fields)
        turn = Turn(
            address=address,
            group=f"{address.task}:{address.role}" if group is None else group,
            parent=parent,
            prompt_ids=prompt_ids,
            completion=completion,
            renderer=renderer,
        )
        self._turns.append(turn)
        if role.parse is not None:
            turn.parsed = role.parse(turn.text, fields)
        return turn

    async def _answer(
        self, address: Address, role: Role, prompt_ids: tuple[int, ...], fields: Mapping[str, Any]
    ) -> Completion:
        """What the role's policy says: a program at once, anything else through the engine."""
        stage, renderer = self._stage, self._stage.renderers[role.policy]
        if role.policy in stage.programs:
            said = stage.programs[role.policy](fields, rng_of(stage.seed, stage.split, str(address)))
            token_ids = (*renderer.encode(said), renderer.stop_ids[0])
            zeros = (0.0,) * len(token_ids)
            return Completion(token_ids=token_ids, logprobs=zeros, finish="stop", policy=role.policy, version=0)
        request = Request(
            policy=role.policy,
            prompt_ids=prompt_ids,
            sampling=role.sampling,
            stop_ids=renderer.stop_ids,
            seed=seed_of(stage.seed, stage.split, str(address)),
            address=address,
        )
        try:
            return await stage.engine.sample(request)
        except CotrainError:
            raise
        except Exception as error:
            raise EngineError(f"{type(stage.engine).__name__} failed at {address}: {error}") from error

    def _seal(self, failure: str | None) -> Episode:
        """The episode's end; ``task_id`` is filled in by the executor."""
        self._over = True
        if failure is None and (lost := sum(self._calls.values()) - self._awaited):
            failure = f"{lost} {'call of a role was' if lost == 1 else 'calls of roles were'} not awaited"
        if failure is not None:
            for turn in self._turns:
                turn.fail(FAILED)
        traces = sorted((turn.trace() for turn in self._turns), key=lambda trace: trace.address)
        return Episode(
            step=self._stage.step,
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
        return fields_of(self._roles._stage.roles[self._name].prompt)

    def __call__(
        self, *, group: str | None = None, parent: Turn | None = None, begin: str = "", **fields: Any
    ) -> Awaitable[Turn]:
        """Ask once.

        Args:
            group: pool key of the trace; by default all members' traces of this role on this task are one pool.
            parent: the turn that this one judges or answers.
            begin: text that the answer begins with; the turn holds what follows it.
            fields: what to put into the template. The parser sees them all; the template takes those it has.

        Errors, when awaited: ConfigError for a field of the template that is not given, or a prompt that is too long.
        """
        return self._roles._ask(self._roles._next(self._name), group, parent, begin, fields)

    def many(
        self, n: int, *, group: str | None = None, parent: Turn | None = None, begin: str = "", **fields: Any
    ) -> Awaitable[list[Turn]]:
        """Ask ``n`` times at once; the turns come in the order of their calls."""
        calls = (self._roles._next(self._name) for _ in range(n))
        return together([self._roles._ask(address, group, parent, begin, fields) for address in calls])


class Executor:
    """Plays protocols with one engine and one set of roles."""

    def __init__(
        self,
        engine: Engine,
        renderers: Mapping[str, Rendering],
        roles: Mapping[str, Role],
        seed: int,
        *,
        grader: Grader | None = None,
        programs: Mapping[str, Program] | None = None,
    ) -> None:
        """
        Args:
            engine: answers requests.
            renderers: by policy.
            roles: by name.
            seed: of the run; every request's seed is a hash of it and of the request's address.
            grader: grades answers outside of this process; None calls ``task.grade`` in it.
            programs: policies that are programs, by name; their renderer is a ``ByteRenderer``.

        Raises UnknownName for a role whose policy has no renderer, ConfigError for a name that cannot be an attribute.
        """
        for name, role in roles.items():
            if not name.isidentifier() or name.startswith("_") or name in _RESERVED:
                raise ConfigError(f"role {name!r}: choose an identifier without leading _, not {', '.join(_RESERVED)}")
            if role.policy not in renderers:
                raise UnknownName(f"policy (of role {name!r})", role.policy, renderers)
        self.engine, self.renderers, self.roles, self.seed, self.grader = engine, renderers, roles, seed, grader
        self.programs: Mapping[str, Program] = programs or {}
        self.set_aside: dict[str, str] = {}  # problems that did not fit so far, by id, and why

    def greedy(self) -> Executor:
        """The same with every role at temperature 0."""
        roles = {n: replace(r, sampling=replace(r.sampling, temperature=0.0)) for n, r in self.roles.items()}
        return Executor(self.engine, self.renderers, roles, self.seed, grader=self.grader, programs=self.programs)

    def busy(self) -> AbstractAsyncContextManager[None]:
        """See ``idle_loop.busy``."""
        return busy()

    def play(
        self,
        protocol: Protocol,
        tasks: Sequence[Task],
        *,
        step: int,
        members: int,
        split: str = "train",
        **options: Any,
    ) -> tuple[Episode, ...]:
        """Play every task ``members`` times at once and return the episodes sorted by (task, member).

        Args:
            step: part of every address and seed; -1 outside of training.
            split: part of every seed.
            options: keyword arguments of the protocol.

        Raises Deadlock when protocols wait for something that cannot come, whatever CotrainError a protocol meets, and
        whatever the engine raises; then no coroutine is left over.
        """
        stage = Stage(
            engine=self.engine,
            renderers=self.renderers,
            roles=self.roles,
            grader=self.grader,
            programs=self.programs,
            seed=self.seed,
            split=split,
            step=step,
        )
        places = [(position, member) for position in range(len(tasks)) for member in range(members)]
        loop = IdleLoop(self.engine.advance)
        try:
            episodes = loop.run_until_complete(
                together(
                    [_episode(protocol, tasks[p], Roles(stage, p, m), options) for p, m in places],
                    [f"task {p}, member {m}" for p, m in places],
                )
            )
        finally:
            loop.finish()
        for episode, why in episodes:
            if why is not None:
                self.set_aside.setdefault(episode.task_id, why)
        return tuple(episode for episode, _ in episodes)


async def _episode(
    protocol: Protocol, task: Task, roles: Roles, options: Mapping[str, Any]
) -> tuple[Episode, str | None]:
    """The episode, and why its problem did not fit, where it did not."""
    why = None
    try:
        await protocol(task, roles, **options)
        episode = roles._seal(None)
    except TooLong as error:
        why, episode = str(error), roles._seal(TOO_LONG)
    except CotrainError:
        raise
    except Exception as error:  # noqa: BLE001  a protocol may raise anything; the episode says what
        episode = roles._seal(f"{type(error).__name__}: {error}")
    return replace(episode, task_id=task.id), why
