"""The pipeline of plays and updates: one after the other, or with ``--async-steps K`` play t + K beside update t.

::

    K=0    play 0 │ update 0 │ play 1 │ update 1 │ play 2 …
    K=1    play 0 │ play 1   │ play 2   │ …
                    │ update 0 │ update 1 │ …
    K=2    play 0 │ play 1   │ play 2   │ play 3   │ …
                               │ update 0 │ update 1 │ …

K is the policy lag (staleness, off-policy steps): the updates by which the weights that sample are behind those that
learn. With K > 0 the new weights are published when both are over: play t + K has the weights of before update t from
its first token to its last, whichever ends first. So a run is the same bits every time, and a policy that is updated at
each step learns from what it said K updates ago; one that was not updated since is on policy. Log-probabilities of that
time are in the ratio of its loss; a loss without one is refused.

A checkpoint holds the K plays that were not learned from yet. The first K plays, and those after going back with other
draws, have nothing beside them. One play at most is beside an update, so more than 1 makes no step faster.

A backend of one process has one set of weights: there the play is made first and the update after it, which saves no
time and has the same bits.

With K = 0 a play waits for the update before it, but for what needs none of its policies: where they are on other
devices or processes than those that learn, it begins beside the update (``overlapped_rollout.py``), and the bits stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cotrain.config.policies import Learning
from cotrain.config.recipe import Recipe, cap_path
from cotrain.core.errors import ConfigError
from cotrain.core.types import Completion, Episode, State, Trace, take_fields
from cotrain.inference.contract import ContextLimitedEngine, Engine, HoldingEngine, Request
from cotrain.storage.ledger import episode_from_json, episode_to_json
from cotrain.trainer.failures import Interrupted, NotFinite
from cotrain.trainer.flops import StageClock
from cotrain.trainer.overlapped_rollout import HeldRollout
from cotrain.trainer.policy_store import MEMORY_SUFFIX, PolicyStore

ASYNC_STEPS = range(9)
AHEAD = "ahead"  # name of the checkpoint document that holds ``RolloutPipeline.state``
IN_TURN = (
    "note: one process plays and updates in turn, so that --async-steps saves no time here; --backend ray does both "
    "at once"
)

SECONDS_SUFFIX = "/seconds"  # suffix of the keys that are seconds of a policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The episodes of one step, and what was counted while they were collected."""

    episodes: tuple[Episode, ...]
    outside: Mapping[str, float]  # counts of policies on other servers, see ``PolicyHandle.counts``, without seconds
    oom_counts: Mapping[str, float]  # metric key → how often memory ran out
    seconds: Mapping[str, float]  # "{policy}/seconds" → seconds in which it computed or answered
    wall: float = 0.0  # wall time; 0 if it is not known, as for a batch that a checkpoint restored


Play = Callable[[int], RolloutBatch]  # plays a step
Result = TypeVar("Result")  # what a work returns


class RolloutCounter:
    """Counts what happens while a batch is collected."""

    def __init__(self, engine: Engine, policies: PolicyStore) -> None:
        self._engine = engine
        self._policies = policies
        self._counts_before = engine.counts()
        self._outside_before = policies.outside_counts()
        self.clock = StageClock()  # who collects the episodes does it within a stage of this clock

    def result_of(self, episodes: tuple[Episode, ...]) -> RolloutBatch:
        """The batch, once its episodes are over."""
        counts = {key: value - self._counts_before.get(key, 0.0) for key, value in self._engine.counts().items()}
        outside = {key: value - self._outside_before[key] for key, value in self._policies.outside_counts().items()}
        oom_keys = [handle.name + MEMORY_SUFFIX for handle in self._policies]
        return RolloutBatch(
            episodes=episodes,
            outside={key: value for key, value in outside.items() if not key.endswith(SECONDS_SUFFIX)},
            oom_counts={key: counts[key] for key in oom_keys if counts.get(key)},
            seconds={key: value for key, value in (counts | outside).items() if key.endswith(SECONDS_SUFFIX)},
            wall=self.clock.total,
        )


class StoppableEngine:
    """An engine with a question asked before each advance: which signal asks the run to stop, if any? Implements
    ``Engine``."""

    beside_update = False  # True while rollouts run during an update: a stop signal then waits for both
    given_up = False  # True when the update that runs at the same time failed, so that the rollouts end too
    held_rollout: HeldRollout[RolloutBatch] | None = None  # rollouts that run during an update and wait for its weights

    def __init__(self, engine: Engine, stopping: Callable[[], int]) -> None:
        self.engine = engine
        self.stopping = stopping
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
        return self.engine.advance() if self.held_rollout is None else self.held_rollout.advance()

    def raise_if_stopped(self) -> None:
        """Raises Interrupted where the run is asked to stop."""
        signal = int(self.given_up) if self.beside_update else self.stopping()
        if signal:
            raise Interrupted(signal)


class RolloutPipeline:
    """Collects the rollouts of each step: before its update, or some steps ahead of it."""

    def __init__(self, engine: StoppableEngine, async_steps: int, *, overlaps_update: bool) -> None:
        """``engine``: through which steps are played; ``overlaps_update``: they may be while policies are updated."""
        self.async_steps = async_steps
        self._engine = engine

        # With async_steps > 0: the batches of the step that is due and of those after it, and the thread of rollouts
        # that run beside an update.
        self.ready: tuple[RolloutBatch, ...] = ()
        self._apart = ThreadPoolExecutor(1, thread_name_prefix="play") if async_steps and overlaps_update else None

        # With async_steps = 0: a step whose rollouts began during the update before them, with its batch, and the
        # thread of such rollouts.
        self._early: tuple[int, RolloutBatch] | None = None
        self._early_thread: ThreadPoolExecutor | None = None

    def take_early(self, step: int) -> RolloutBatch | None:
        """The play of ``step`` that was made beside the update before it, if it was."""
        early = self._early
        self._early = None
        if early is None or early[0] != step:
            return None
        return early[1]

    def missing_steps(self, step: int, *, until: int) -> range:
        """With ``async_steps`` > 0: the steps, of the run's ``until``, that have to be played before ``step`` is
        learned from."""
        return range(step + len(self.ready), step + min(self.async_steps, until - step))

    def add(self, played: RolloutBatch) -> None:
        """The play of the first of ``missing_steps``."""
        self.ready = (*self.ready, as_restored(played))

    @contextmanager
    def collect_while_learning(self, step: int, play: Play, *, until: int) -> Iterator[None]:
        """Around the update of ``step``: with ``async_steps`` > 0, ``play`` the step that is due so much later, of the
        run's ``until``, while the block runs; both are over when it ends. Raises what either raises, the block first;
        Interrupted before anything has begun."""
        later = step + self.async_steps
        if not self.async_steps or later >= until:
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
    def collect_early(
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
        held_play: HeldRollout[RolloutBatch] = HeldRollout(engine, held)
        self._engine.held_rollout = held_play
        held_play.begin(self._early_thread, lambda: play(step))
        try:
            yield held_play.publish
        except BaseException:
            held_play.give_up()
            raise
        finally:
            played = held_play.end()
            self._engine.held_rollout = None
            self._early = None if played is None else (step, played)

    def state(self) -> State | None:
        """Batches that were collected and not learned from yet, for a checkpoint; None if there are none."""
        batches = [_batch_to_json(batch) for batch in self.ready]
        if not batches:
            return None
        if self.async_steps == 1:
            return batches[0]
        return {"plays": batches}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore what ``state`` gave. Raises StateError."""
        self._early = None
        self.ready = tuple(_batch_from_json(batch) for batch in self._saved_batches(state))

    def _saved_batches(self, state: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
        """The batches in what ``state`` gave."""
        if state is None:
            return []
        if self.async_steps == 1:
            return [state]
        (batches,) = take_fields("plays ahead", state, "plays")
        return list(batches)

    def close(self) -> None:
        for thread in (self._apart, self._early_thread):
            if thread is not None:
                thread.shutdown()


def _batch_to_json(batch: RolloutBatch) -> State:
    return {
        "episodes": [episode_to_json(episode) for episode in batch.episodes],
        "outside": dict(batch.outside),
        "oom_counts": dict(batch.oom_counts),
    }


def _batch_from_json(batch: Mapping[str, Any]) -> RolloutBatch:
    episodes, outside, oom_counts = take_fields("play ahead", batch, "episodes", "outside", "oom_counts")
    return RolloutBatch(
        episodes=tuple(map(episode_from_json, episodes)), outside=outside, oom_counts=oom_counts, seconds={}
    )


def as_restored(batch: RolloutBatch) -> RolloutBatch:
    """The batch as a checkpoint gives it back: what protocols noted is JSON."""
    return replace(batch, episodes=tuple(map(_episode_as_restored, batch.episodes)))


def _episode_as_restored(episode: Episode) -> Episode:
    return replace(episode, traces=tuple(map(_trace_as_restored, episode.traces)))


def _trace_as_restored(trace: Trace) -> Trace:
    findings = json.loads(json.dumps(trace.findings))
    metadata = json.loads(json.dumps(trace.metadata))
    return replace(trace, findings=findings, metadata=metadata)


def check_async_steps(recipe: Recipe, async_steps: int) -> None:
    """Raise ConfigError for a number of steps that is not supported, and for an objective whose loss takes samples for
    the present policy's own."""
    if async_steps not in ASYNC_STEPS:
        raise ConfigError(
            f"--async-steps {async_steps}: expected 0 to {ASYNC_STEPS[-1]}: how many updates a play does not wait for",
            code="E_ASYNC_STEPS_RANGE",
        )
    if async_steps == 0:
        return
    for name, policy in recipe.policies.items():
        if isinstance(policy, Learning) and policy.reset_to_start:
            raise ConfigError(
                f"--async-steps {async_steps}: policy {name!r} is reset to its initial weights between two "
                "steps (reset_to_start), and the second would be played by the weights before; give --async-steps 0",
                code="E_ASYNC_STEPS_WITH_RESET",
            )
    for name, objective in recipe.objectives.items():
        needs = objective.algorithm.needs()
        if needs.on_policy and not needs.off_policy_corrected:
            raise ConfigError(
                f"--async-steps {async_steps}: objective {name!r} has a loss without a ratio, which takes "
                f"what older weights sampled for the present policy's; give --set {cap_path(name, objective)}=2, or "
                "--async-steps 0",
                code="E_ASYNC_STEPS_WITHOUT_RATIO",
            )


def updates_behind(traces: Sequence[Trace], policy: str, version: int) -> dict[str, float]:
    """``{policy}/updates_behind``: updates between what a policy said and its ``version``, on average; nothing where it
    said nothing."""
    behind = [version - trace.version for trace in traces if trace.policy == policy]
    if not behind:
        return {}
    return {f"{policy}/updates_behind": sum(behind) / len(behind)}


def run_beside(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Do works that wait for other processes or devices beside each other, in threads; their results in order. One
    alone runs here. All are over when it returns; raises the first error in the order of ``works``, not of time."""
    if len(works) < 2:
        return [work() for work in works]
    with ThreadPoolExecutor(len(works), thread_name_prefix="beside") as threads:
        futures = [threads.submit(work) for work in works]
        wait(futures)
    return [future.result() for future in futures]
