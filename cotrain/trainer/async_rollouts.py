"""Rollouts and updates: one after the other, or with ``--async-steps K`` the rollouts of step t + K beside update t.

::

    K=0    rollouts 0 │ update 0   │ rollouts 1 │ update 1   │ rollouts 2 …
    K=1    rollouts 0 │ rollouts 1 │ rollouts 2 │ …
                      │ update 0   │ update 1   │ …
    K=2    rollouts 0 │ rollouts 1 │ rollouts 2 │ rollouts 3 │ …
                                   │ update 0   │ update 1   │ …

K is the policy lag (staleness, off-policy steps): the updates by which the weights that sample are behind those that
learn. With K > 0 the new weights are published when both the rollouts and the update are over. So the rollouts of step
t + K have the weights of before update t from their first token to their last, whichever of the two ends first, and a
run is the same bits every time.

A policy that is updated at each step learns from what it sampled K updates ago; one that was not updated since is on
policy. The ratio of the loss is taken to the log-probabilities at sampling time; a loss without a ratio is refused.

A checkpoint holds the K batches that were not learned from yet. The first K batches, and those after a rollback, are
collected while nothing is updated. At most one batch is collected beside an update, so K > 1 makes no step faster.

A backend of one process has one set of weights: there the rollouts are collected first and the update follows, which
saves no time and has the same bits.

With K = 0 the rollouts of a step wait for the update before it, except for what needs none of the policies that it
changes. Where the others are on other devices or processes, rollouts begin beside the update
(``overlapped_rollout.py``), and the bits stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from cotrain.config.policies import Learning
from cotrain.config.recipe import Recipe, cap_path
from cotrain.core.errors import ConfigError
from cotrain.core.types import Completion, Episode, State, Trace, take_fields
from cotrain.distributed.policy_handles import RoutingEngine
from cotrain.inference.contract import ContextLimitedEngine, Engine, HoldingEngine, Request
from cotrain.storage.episode_json import episode_from_json, episode_to_json
from cotrain.trainer.failures import Interrupted, NotFinite
from cotrain.trainer.flops import StageClock
from cotrain.trainer.overlapped_rollout import HeldRollout
from cotrain.trainer.policy_store import MEMORY_SUFFIX, PolicyStore

ASYNC_STEPS = range(9)
AHEAD = "ahead"  # name of the checkpoint document that holds ``RolloutPipeline.state``
NOTE_ASYNC_SAVES_NO_TIME = (
    "note: one process samples and updates in turn, so that --async-steps saves no time here; --backend ray does both "
    "at once"
)

SECONDS_SUFFIX = "/seconds"  # suffix of the keys that are seconds of a policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The episodes of one step, and what was counted while they were collected."""

    episodes: tuple[Episode, ...]
    # Counts of policies that answer from other servers, see ``PolicyHandle.counts``, without seconds.
    outside: Mapping[str, float]
    oom_counts: Mapping[str, float]  # metric key → how often memory ran out
    seconds: Mapping[str, float]  # "{policy}/seconds" → seconds in which it computed or answered
    wall: float = 0.0  # wall time; 0 if it is not known, as for a batch that a checkpoint restored


Collect = Callable[[int], RolloutBatch]  # collects the rollouts of a step
Timer = Callable[[], AbstractContextManager[None]]  # counts the seconds of a block
Result = TypeVar("Result")  # the result of one work of ``run_beside``


class RolloutCounter:
    """Counts what happens while a batch is collected."""

    def __init__(self, engine: Engine, policies: PolicyStore) -> None:
        self._engine = engine
        self._policies = policies
        self._counts_before = engine.counts()
        self._outside_before = policies.outside_counts()
        self.clock = StageClock()  # to be run while the episodes are collected

    def result_of(self, episodes: tuple[Episode, ...]) -> RolloutBatch:
        """The batch, once its episodes are over."""
        # What was counted since this counter was made: by the engine, and by policies that answer from other servers.
        counts = {key: value - self._counts_before.get(key, 0.0) for key, value in self._engine.counts().items()}
        outside = {key: value - self._outside_before[key] for key, value in self._policies.outside_counts().items()}

        seconds = {key: value for key, value in (counts | outside).items() if key.endswith(SECONDS_SUFFIX)}
        oom_keys = [handle.name + MEMORY_SUFFIX for handle in self._policies]
        return RolloutBatch(
            episodes=episodes,
            outside={key: value for key, value in outside.items() if key not in seconds},
            oom_counts={key: counts[key] for key in oom_keys if counts.get(key)},
            seconds=seconds,
            wall=self.clock.total,
        )


def no_signal() -> int:
    """Nothing asks the run to stop."""
    return 0


class StoppableEngine(RoutingEngine):
    """A backend's engine, which looks for a stop signal before each advance."""

    beside_update = False  # True while rollouts run in a thread beside an update: a stop signal waits for both
    given_up = False  # True when that update failed, so that the rollouts end too
    held_rollout: HeldRollout[RolloutBatch] | None = None  # rollouts that run during an update and wait for its weights

    def __init__(self, engine: RoutingEngine, get_signal: Callable[[], int] = no_signal) -> None:
        """``get_signal``: gives the signal that asks the run to stop, 0 for none."""
        super().__init__(engine.handles, engine.engine)
        self.get_signal = get_signal
        if isinstance(engine, ContextLimitedEngine):
            self.context = engine.context

    async def sample(self, request: Request) -> Completion:
        """Raises NotFinite where a policy computes what is no number."""
        try:
            return await self.engine_of(request.policy).sample(request)
        except FloatingPointError as error:
            raise NotFinite(str(error)) from error

    def advance(self) -> bool:
        self.raise_if_stopped()
        if self.held_rollout is not None:
            return self.held_rollout.advance()
        return self.engine.advance()

    def raise_if_stopped(self) -> None:
        """Raises Interrupted where the run is asked to stop, or the update beside these rollouts has failed."""
        if self.beside_update:
            if self.given_up:
                raise Interrupted(1)  # ends the rollouts; the error of the update is the one that is reported
            return
        signal = self.get_signal()
        if signal:
            raise Interrupted(signal)


class Overlap:
    """What is collected while a step is updated: here, nothing. ``RolloutsAhead`` and ``EarlyRollouts`` collect the
    rollouts of a later step.

    ::

        with overlap:               # its rollouts begin
            …                       # the update
            overlap.end_update()    # waits for rollouts that have the old weights to their last token
            overlap.publish(…)      # publishes the new weights
                                    # at the end of the block: waits for rollouts that go on with the new weights

    Beginning the rollouts and waiting for them is timed by ``timer``, the update and its publishing are not.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def __enter__(self) -> Self:
        with self._timer():
            self._begin_rollouts()
        return self

    def end_update(self) -> None:
        """The update is over, and its weights are not published yet."""
        with self._timer():
            self._end_with_old_weights()

    def publish(self, publish: Callable[[], None]) -> None:
        """Publish the new weights by calling ``publish``."""
        publish()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._timer():
            self._end_rollouts(failed=error is not None)

    def _begin_rollouts(self) -> None:
        """Begin them, or collect them at once. Raises Interrupted before anything has begun."""

    def _end_with_old_weights(self) -> None:
        """Wait for rollouts that keep the old weights. Raises what collecting them raised."""

    def _end_rollouts(self, *, failed: bool) -> None:
        """Wait for all rollouts. ``failed``: the update raised an error, so that they are given up."""


class RolloutsAhead(Overlap):
    """Rollouts of step t + K during update t, with the weights of before the update (``async_steps`` = K)."""

    def __init__(
        self,
        engine: StoppableEngine,
        collect: Callable[[], RolloutBatch],
        keep: Callable[[RolloutBatch], None],
        thread: ThreadPoolExecutor | None,
        timer: Timer,
    ) -> None:
        """``keep``: takes the batch. ``thread``: None where one process has one set of weights; the rollouts are then
        collected before the update begins."""
        super().__init__(timer)
        self._engine = engine
        self._collect = collect
        self._keep = keep
        self._thread = thread
        self._rollouts: Future[RolloutBatch] = Future()

    def _begin_rollouts(self) -> None:
        self._engine.raise_if_stopped()
        if self._thread is None:
            self._rollouts.set_result(self._collect())
        else:
            self._engine.beside_update = True
            self._rollouts = self._thread.submit(self._collect)

    def _end_with_old_weights(self) -> None:
        self._wait()
        self._keep(self._rollouts.result())  # raises what collecting them raised

    def _end_rollouts(self, *, failed: bool) -> None:
        if failed:
            self._engine.given_up = True
        self._wait()

    def _wait(self) -> None:
        wait([self._rollouts])
        self._engine.beside_update = False
        self._engine.given_up = False


class EarlyRollouts(Overlap):
    """Rollouts of the next step during an update, by policies that are not ``held`` (``overlapped_rollout.py``). What
    needs a held policy waits until the new weights are published."""

    def __init__(
        self,
        engine: StoppableEngine,
        collect: Callable[[], RolloutBatch],
        keep: Callable[[RolloutBatch | None], None],
        thread: ThreadPoolExecutor,
        held: Collection[str],
        timer: Timer,
    ) -> None:
        """``keep``: takes the batch; None where collecting it failed, so that the step is collected when it is due."""
        assert isinstance(engine.engine, HoldingEngine)
        super().__init__(timer)
        self._engine = engine
        self._collect = collect
        self._keep = keep
        self._thread = thread
        self._rollout: HeldRollout[RolloutBatch] = HeldRollout(engine.engine, held)

    def _begin_rollouts(self) -> None:
        self._engine.raise_if_stopped()
        self._engine.held_rollout = self._rollout
        self._rollout.begin(self._thread, self._collect)

    def publish(self, publish: Callable[[], None]) -> None:
        self._rollout.publish(publish)

    def _end_rollouts(self, *, failed: bool) -> None:
        if failed:
            self._rollout.give_up()
        batch = self._rollout.end()
        self._engine.held_rollout = None
        self._keep(batch)


class RolloutPipeline:
    """Keeps the rollouts that are collected ahead of their step, and begins those that run during an update."""

    def __init__(self, engine: StoppableEngine, async_steps: int, *, overlaps_update: bool) -> None:
        """``engine``: through which steps are collected; ``overlaps_update``: they may be during an update."""
        self.async_steps = async_steps
        self._engine = engine

        # With async_steps > 0: the batches of the step that is due and of those after it, and the thread of rollouts
        # that run beside an update.
        self.ready: tuple[RolloutBatch, ...] = ()
        self._ahead_thread: ThreadPoolExecutor | None = None
        if async_steps and overlaps_update:
            self._ahead_thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts ahead")

        # With async_steps = 0: the step whose rollouts were collected during the update before it, with its batch; and
        # the thread of such rollouts.
        self._early: tuple[int, RolloutBatch] | None = None
        self._early_thread: ThreadPoolExecutor | None = None

    def take(self, step: int, collect: Collect, *, until: int) -> RolloutBatch:
        """The rollouts of the step that is due. Usually they are collected now, by ``collect``.

        - Rollouts that were collected during the update before are taken as they are.
        - With async_steps = K > 0 the batches of K steps are kept, from this one on and before ``until``. Those that
          are missing, as at the start of a run, are collected now. That of this step stays until ``drop_oldest``, as a
          step that is interrupted is done again by the resumed run.
        """
        if self.async_steps > 0:
            first_missing = step + len(self.ready)
            end = min(step + self.async_steps, until)
            for missing_step in range(first_missing, end):
                self._add_ahead(collect(missing_step))
            return self.ready[0]

        early = self._early
        self._early = None
        if early is not None:
            early_step, batch = early
            if early_step == step:
                return batch
        return collect(step)

    def _add_ahead(self, batch: RolloutBatch) -> None:
        """Keep the rollouts of the step after the last one that is kept. A checkpoint may be saved before they are
        learned from, so they are put into the form in which a resumed run would have them."""
        self.ready = (*self.ready, as_restored(batch))

    def collect_during_update(self, step: int, collect: Collect, *, until: int, timer: Timer = nullcontext) -> Overlap:
        """With async_steps = K > 0: during the update of ``step``, the rollouts of step + K, by all policies, with the
        weights of before the update; nothing from step ``until`` on. ``timer`` counts the seconds in which the run
        waits for them."""
        later_step = step + self.async_steps
        if later_step >= until:
            return Overlap(timer)
        return RolloutsAhead(self._engine, lambda: collect(later_step), self._add_ahead, self._ahead_thread, timer)

    def collect_early(
        self, step: int, collect: Collect, held_policies: Collection[str], *, timer: Timer = nullcontext
    ) -> Overlap:
        """With async_steps = 0: the rollouts of ``step`` during the update before it, as far as they need no policy of
        ``held_policies``; the rest once the new weights are published."""
        if self._early_thread is None:
            self._early_thread = ThreadPoolExecutor(1, thread_name_prefix="early rollouts")

        def keep(batch: RolloutBatch | None) -> None:
            self._early = None if batch is None else (step, batch)

        return EarlyRollouts(self._engine, lambda: collect(step), keep, self._early_thread, held_policies, timer)

    def drop_oldest(self) -> None:
        """The step that was due is over: drop its rollouts. With async_steps = 0 none are kept."""
        self.ready = self.ready[1:]

    def discard(self) -> None:
        """Drop all rollouts that were collected and not learned from: their steps will be collected again."""
        self._early = None
        self.ready = ()

    def state(self) -> State | None:
        """Batches that were collected and not learned from yet, for a checkpoint; None if there are none."""
        batches = [_batch_to_json(batch) for batch in self.ready]
        if not batches:
            return None
        if self.async_steps == 1:  # one batch at most, which is saved without a list around it
            return batches[0]
        return {"batches": batches}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore what ``state`` gave. Raises StateError."""
        self.discard()
        self.ready = tuple(_batch_from_json(batch) for batch in self._saved_batches(state))

    def _saved_batches(self, state: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
        """The batches in what ``state`` gave."""
        if state is None:
            return []
        if self.async_steps == 1:
            return [state]
        (batches,) = take_fields("rollouts ahead", state, "batches")
        return list(batches)

    def close(self) -> None:
        for thread in (self._ahead_thread, self._early_thread):
            if thread is not None:
                thread.shutdown()


def _batch_to_json(batch: RolloutBatch) -> State:
    return {
        "episodes": [episode_to_json(episode) for episode in batch.episodes],
        "outside": dict(batch.outside),
        "oom_counts": dict(batch.oom_counts),
    }


def _batch_from_json(batch: Mapping[str, Any]) -> RolloutBatch:
    episodes, outside, oom_counts = take_fields("rollouts ahead", batch, "episodes", "outside", "oom_counts")
    return RolloutBatch(
        episodes=tuple(map(episode_from_json, episodes)), outside=outside, oom_counts=oom_counts, seconds={}
    )


def as_restored(batch: RolloutBatch) -> RolloutBatch:
    """The batch as a checkpoint gives it back: findings and metadata are JSON, in which a tuple is a list."""
    return replace(batch, episodes=tuple(map(_episode_as_restored, batch.episodes)))


def _episode_as_restored(episode: Episode) -> Episode:
    return replace(episode, traces=tuple(map(_trace_as_restored, episode.traces)))


def _trace_as_restored(trace: Trace) -> Trace:
    findings = json.loads(json.dumps(trace.findings))
    metadata = json.loads(json.dumps(trace.metadata))
    return replace(trace, findings=findings, metadata=metadata)


def check_async_steps(recipe: Recipe, async_steps: int) -> None:
    """Raise ConfigError for a number of steps out of range, for a policy that is reset between steps, and for an
    objective whose loss does not correct for updates since its samples were drawn."""
    if async_steps not in ASYNC_STEPS:
        raise ConfigError(
            f"--async-steps {async_steps}: expected 0 to {ASYNC_STEPS[-1]} updates that sampling does not wait for",
            code="E_ASYNC_STEPS_RANGE",
        )
    if async_steps == 0:
        return
    for name, policy in recipe.policies.items():
        if isinstance(policy, Learning) and policy.reset_to_start:
            raise ConfigError(
                f"--async-steps {async_steps}: policy {name!r} is reset to its initial weights between two "
                "steps (reset_to_start), and the second would be sampled by the weights before; give --async-steps 0",
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
