"""The pipeline of plays and updates: one after the other, or with ``--lag K`` play t + K beside update t.

::

    lag 0    play 0 │ update 0 │ play 1 │ update 1 │ play 2 …
    lag 1    play 0 │ play 1   │ play 2   │ …
                    │ update 0 │ update 1 │ …
    lag 2    play 0 │ play 1   │ play 2   │ play 3   │ …
                               │ update 0 │ update 1 │ …

With a lag, the new weights are published when both are over: play t + K has the weights of before update t from its
first token to its last, whichever ends first. So a run is the same bits every time, and a policy that is updated at
each step learns from what it said K updates ago; one that was not updated since is on policy. Log-probabilities of that
time are in the ratio of its loss; a loss without one is refused.

A checkpoint holds the K plays that were not learned from yet. The first K plays, and those after going back with other
draws, have nothing beside them. One play at most is beside an update, so more than 1 makes no step faster.

A backend of one process has one set of weights: there the play is made first and the update after it, which saves no
time and has the same bits.

Without a lag a play waits for the update before it, but for what needs none of its policies: where they are on other
devices or processes than those that learn, it begins beside the update (``overlapped_rollout.py``), and the bits stay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cotrain.config.policies import Learning
from cotrain.config.recipe import Recipe, cap_path
from cotrain.core.errors import ConfigError
from cotrain.core.types import Completion, Episode, State, Trace, take_fields
from cotrain.inference.contract import ContextLimitedEngine, Engine, HoldingEngine, Request
from cotrain.storage.ledger import episode_from_json, episode_to_json
from cotrain.trainer.failures import Interrupted, NotFinite
from cotrain.trainer.overlapped_rollout import HeldPlay
from cotrain.trainer.policy_store import MEMORY_SUFFIX, PolicyStore

LAGS = range(9)
AHEAD = "ahead"  # a checkpoint's document of ``PlayPipeline.state``
IN_TURN = (
    "note: one process plays and updates in turn, so that --lag saves no time here; --backend ray does both at once"
)
SECONDS_SUFFIX = "/seconds"  # behind a policy's name


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayResult:
    """A play, and what was counted meanwhile."""

    episodes: tuple[Episode, ...]
    outside: Mapping[str, float]  # by policies that answer from outside, see ``PolicyHandle.counts``; but for seconds
    shortages: Mapping[str, float]  # how often memory ran out, by the key in the row
    seconds: Mapping[str, float]  # by who was computing or answering
    wall: float = 0.0  # seconds from its beginning to its end; 0 where nobody knows, as after a checkpoint


Play = Callable[[int], PlayResult]  # plays a step


class PlayCounter:
    """What is counted during a play."""

    def __init__(self, engine: Engine, policies: PolicyStore) -> None:
        self._engine, self._policies = engine, policies
        self._counts, self._outside = engine.counts(), policies.outside_counts()
        self._began = time.perf_counter()

    def result_of(self, episodes: tuple[Episode, ...]) -> PlayResult:
        """The play, which is over."""
        counts = {key: value - self._counts.get(key, 0.0) for key, value in self._engine.counts().items()}
        outside = {key: value - self._outside[key] for key, value in self._policies.outside_counts().items()}
        short = [handle.name + MEMORY_SUFFIX for handle in self._policies]
        return PlayResult(
            episodes=episodes,
            outside={key: value for key, value in outside.items() if not key.endswith(SECONDS_SUFFIX)},
            shortages={key: counts[key] for key in short if counts.get(key)},
            seconds={key: value for key, value in (counts | outside).items() if key.endswith(SECONDS_SUFFIX)},
            wall=time.perf_counter() - self._began,
        )


class StoppableEngine:
    """An engine with a question asked before each advance: which signal asks the run to stop, if any? Implements
    ``Engine``."""

    beside_update = False  # then a run that is asked to stop waits for the play and the update
    given_up = False  # the update beside it failed: the play ends too
    held_play: HeldPlay[PlayResult] | None = None  # that goes on beside an update and waits for its weights

    def __init__(self, engine: Engine, stopping: Callable[[], int]) -> None:
        self.engine, self.stopping = engine, stopping
        if isinstance(engine, ContextLimitedEngine):
            self.context = engine.context

    def publish(self, policy: str, version: int) -> None:
        self.engine.publish(policy, version)

    def counts(self) -> dict[str, float]:
        return self.engine.counts()

    async def sample(self, request: Request) -> Completion:
        """Raises NotFinite where a policy computes what is no number."""
        try:
            return await self.engine.sample(request)
        except FloatingPointError as error:
            raise NotFinite(str(error)) from error

    def advance(self) -> bool:
        self.raise_if_stopped()
        return self.engine.advance() if self.held_play is None else self.held_play.advance()

    def raise_if_stopped(self) -> None:
        """Raises Interrupted where the run is asked to stop."""
        if asked := int(self.given_up) if self.beside_update else self.stopping():
            raise Interrupted(asked)


class PlayPipeline:
    """Who plays the steps of one run, and when."""

    def __init__(self, engine: StoppableEngine, lag: int, *, apart: bool) -> None:
        """``engine``: through which steps are played; ``apart``: may that go on while policies are updated?"""
        self.lag, self._engine = lag, engine
        self._apart = ThreadPoolExecutor(1, thread_name_prefix="play") if lag and apart else None
        self._early_thread: ThreadPoolExecutor | None = None  # of plays that are begun beside the update before them
        self.ready: tuple[PlayResult, ...] = ()  # with a lag: of the step that is due and those after it
        self._early: tuple[int, PlayResult] | None = None  # without one: a step, and its play

    def take_early(self, step: int) -> PlayResult | None:
        """The play of ``step`` that was made beside the update before it, if it was."""
        early, self._early = self._early, None
        return early[1] if early is not None and early[0] == step else None

    def missing_steps(self, step: int, *, until: int) -> range:
        """With a lag: the steps, of the run's ``until``, that have to be played before ``step`` is learned from."""
        return range(step + len(self.ready), step + min(self.lag, until - step))

    def add(self, played: PlayResult) -> None:
        """The play of the first of ``missing_steps``."""
        self.ready = (*self.ready, as_restored(played))

    @contextmanager
    def play_while_learning(self, step: int, play: Play, *, until: int) -> Iterator[None]:
        """Around the update of ``step``: with a lag, ``play`` the step that is due so much later, of the run's
        ``until``, while the block runs; both are over when it ends. Raises what either raises, the block first;
        Interrupted before anything has begun."""
        later = step + self.lag
        if not self.lag or later >= until:
            yield
            self.ready = self.ready[1:]
            return
        if self._apart is None:
            result = play(later)
            yield
            self.ready = (*self.ready[1:], as_restored(result))
            return
        self._engine.raise_if_stopped()
        self._engine.beside_update = True
        playing = self._apart.submit(play, later)
        try:
            yield
        except BaseException:
            self._engine.given_up = True
            raise
        finally:
            wait([playing])
            self._engine.beside_update = self._engine.given_up = False
        self.ready = (*self.ready[1:], as_restored(playing.result()))

    @contextmanager
    def play_early(
        self, step: int, play: Play, held: Collection[str] | None
    ) -> Iterator[Callable[[Callable[[], None]], None]]:
        """Around an update and the publishing of its weights: ``play`` the next ``step`` beside it, without those
        policies that are ``held`` before the weights are published (``overlapped_rollout.py``); None: not before its
        time. Gives what publishing is handed to."""
        if held is None:
            yield lambda publish: publish()
            return
        engine = self._engine.engine
        assert isinstance(engine, HoldingEngine)
        if self._early_thread is None:
            self._early_thread = ThreadPoolExecutor(1, thread_name_prefix="early play")
        self._engine.raise_if_stopped()
        held_play: HeldPlay[PlayResult] = HeldPlay(engine, held)
        self._engine.held_play = held_play
        held_play.begin(self._early_thread, lambda: play(step))
        try:
            yield held_play.publish
        except BaseException:
            held_play.give_up()
            raise
        finally:
            played = held_play.end()
            self._engine.held_play = None
            self._early = None if played is None else (step, played)

    def state(self) -> State | None:
        """What a checkpoint must hold of them; None where nothing was played ahead. With a lag of 1 it is that play."""
        plays: list[State] = [
            {
                "episodes": [episode_to_json(episode) for episode in played.episodes],
                "outside": dict(played.outside),
                "shortages": dict(played.shortages),
            }
            for played in self.ready
        ]
        return None if not plays else plays[0] if self.lag == 1 else {"plays": plays}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """What ``state`` gave. Raises StateError."""
        self._early = None
        plays = [] if state is None else [state] if self.lag == 1 else take_fields("plays ahead", state, "plays")[0]
        self.ready = tuple(map(_play_from_json, plays))

    def close(self) -> None:
        for thread in (self._apart, self._early_thread):
            if thread is not None:
                thread.shutdown()


def _play_from_json(play: Mapping[str, Any]) -> PlayResult:
    episodes, outside, shortages = take_fields("play ahead", play, "episodes", "outside", "shortages")
    return PlayResult(
        episodes=tuple(map(episode_from_json, episodes)), outside=outside, shortages=shortages, seconds={}
    )


def as_restored(played: PlayResult) -> PlayResult:
    """The play as a checkpoint gives it back: what protocols noted is JSON."""
    return replace(
        played, episodes=tuple(replace(e, traces=tuple(map(_trace_as_restored, e.traces))) for e in played.episodes)
    )


def _trace_as_restored(trace: Trace) -> Trace:
    return replace(trace, parsed=json.loads(json.dumps(trace.parsed)), truth=json.loads(json.dumps(trace.truth)))


def check_lag(recipe: Recipe, lag: int) -> None:
    """Raise ConfigError for a lag that there is not, and for an objective whose loss takes samples for the present
    policy's own."""
    if lag not in LAGS:
        raise ConfigError(f"--lag {lag}: expected 0 to {LAGS[-1]}: how many updates a play does not wait for")
    for name, policy in recipe.policies.items() if lag else ():
        if isinstance(policy, Learning) and policy.restart_weights:
            raise ConfigError(
                f"--lag {lag}: policy {name!r} goes back to its start between two steps (restart_weights), and the "
                "second would be played by the weights before; give --lag 0"
            )
    for name, objective in recipe.objectives.items() if lag else ():
        needs = objective.by.needs()
        if needs.on_policy and not needs.ratio:
            raise ConfigError(
                f"--lag {lag}: objective {name!r} has a loss without a ratio, which takes what older weights said for "
                f"the present policy's; give --set {cap_path(name, objective)}=2, or --lag 0"
            )


def updates_behind(traces: Sequence[Trace], policy: str, version: int) -> dict[str, float]:
    """``{policy}/lag``: updates between what a policy said and its ``version``, on average; nothing where it said
    nothing."""
    behind = [version - trace.version for trace in traces if trace.policy == policy]
    return {f"{policy}/lag": sum(behind) / len(behind)} if behind else {}
