"""Measuring one training step: ``CoTrainer.step`` says what happens, and a ``StepMeter`` is told of it.

It makes the step's row of metrics, in the order of what happened, and its seconds by stage. Nothing here changes what
is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from cotrain.algorithms.contract import Credit, LossTerm, Sample, UpdateReport
from cotrain.algorithms.samples import TokenAdvantages, token_advantages
from cotrain.config.recipe import Recipe
from cotrain.config.schedule import Phase
from cotrain.core.notes import CORRECT, FINAL
from cotrain.core.types import Episode, Store, Trace
from cotrain.distributed.contract import ProcessStats, process_metrics
from cotrain.metrics.starved import NON_FINITE_SUFFIX
from cotrain.metrics.steps import MetricsRow, credit_row, learner_row, reward_gap, role_metrics
from cotrain.trainer.async_rollouts import RolloutBatch, updates_behind
from cotrain.trainer.flops import FlopsMeter, StageClock
from cotrain.trainer.policy_store import PolicyStore


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one training step."""

    row: MetricsRow  # deterministic metrics
    seconds: Mapping[str, float]  # wall time by stage: "rollout", "annotate", "credit", "reference", "update"
    engine_seconds_by_policy: Mapping[str, float]  # seconds of the stage "rollout" in each engine: "{policy}/seconds"
    rollout_seconds: float  # wall time of the rollouts, also when they ran during an update; 0 if it is not known
    processes: Mapping[str, float | str]  # "process/{process}/…", where a backend has several processes
    episodes: tuple[Episode, ...]
    # Updates that were skipped for a gradient that is not finite: step, policy, reason, samples by objective.
    skipped_updates: tuple[Mapping[str, Any], ...]
    advantages: TokenAdvantages  # advantages of the samples that were trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPolicy:
    """The updates of one policy on one batch."""

    policy: str
    reports: tuple[UpdateReport, ...]  # one report for each update of this batch, at least one
    changed_policies: tuple[str, ...]  # policies with new weights: this one, and the copies that follow it


class StepMeter:
    """Listens to one training step: its metrics, FLOPs, seconds, shortages of memory, audits and stores."""

    def __init__(
        self,
        step: int,
        phase: Phase,
        *,
        recipe: Recipe,
        policies: PolicyStore,
        flops: FlopsMeter,
        process_stats: Callable[[], Mapping[str, ProcessStats]],
    ) -> None:
        """``process_stats``: what each process has done so far, of backends with several."""
        self._step = step
        self._phase = phase
        self._recipe = recipe
        self._policies = policies
        self._flops = flops
        self._clock = StageClock()
        self._process_stats = process_stats
        self._processes_before = process_stats()
        self._row: MetricsRow = {"step": step, "phase": phase.name}
        self._rollouts = RolloutBatch(episodes=(), outside={}, oom_counts={}, seconds={})
        self._scoring_oom_before: Mapping[str, float] = {}  # how often memory had run out when the rollouts were over
        self._credited: dict[str, Sequence[Sample]] = {}  # objective → its samples with advantages
        self._changed: list[str] = []  # policies with new weights
        self._skipped: list[Mapping[str, Any]] = []  # see ``StepResult.skipped_updates``

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Count the seconds of the block as this stage's (``StageClock``)."""
        return self._clock.stage(name)

    def add_rollouts(self, rollouts: RolloutBatch) -> None:
        """The rollouts of the step are over."""
        self._rollouts = rollouts
        self._scoring_oom_before = self._policies.scoring_oom_counts()
        self._flops.count_rollouts(rollouts.episodes)
        self._row |= role_metrics(rollouts.episodes, list(self._recipe.roles))
        self._row |= _gap_row(rollouts.episodes)
        self._row |= _problems_row(self._recipe, self._phase, rollouts.episodes)
        self._row |= rollouts.outside

    def add_lag(self, traces: Sequence[Trace], policy: str, version: int) -> None:
        """These traces, of which ``policy`` learns at this ``version``, were sampled ahead of its updates."""
        self._row |= updates_behind(traces, policy, version)

    def add_credit(
        self, objective: str, credit: Credit, *, annotated: Sequence[Sample], scored: Sequence[Sample]
    ) -> None:
        """An objective has its advantages. ``annotated``: its samples before; ``scored``: those that are learned from,
        with the reference's log-probabilities."""
        self._credited[objective] = credit.samples
        self._row |= credit_row(objective, credit.metrics, credit.dropped, len(credit.samples))
        self._row |= _scoring_row(objective, annotated, scored)

    def add_update(self, learner: LearnedPolicy, terms: Sequence[LossTerm]) -> None:
        """A policy was updated on these terms."""
        policy = learner.policy
        for _ in learner.reports:
            for term in terms:
                self._flops.count_learning(policy, term)
        self._changed += learner.changed_policies
        self._row |= _update_row(learner, self._policies[policy].version)
        reason = learner.reports[-1].skipped
        if reason is not None and policy + NON_FINITE_SUFFIX == _skipped_key(policy, reason):
            samples = {term.name: [sample.key for sample in term.samples] for term in terms}
            self._skipped.append({"step": self._step, "policy": policy, "reason": reason, "samples": samples})

    def add_stores(self, stores: Mapping[str, Store]) -> None:
        """The recipe's stores hold the episodes of this step."""
        for name, store in stores.items():
            self._row |= {f"{name}/{key}": value for key, value in store.metrics().items()}

    def add_share(self, share: float) -> None:
        """On a ramp, the next problems are drawn among this share of all."""
        self._row["ramp/share"] = share

    def finish(self, tokens: int) -> StepResult:
        """The result of the step, once it is over. ``tokens``: sampled in training so far."""
        # A policy that learned in several turns did not skip the step, though one of its turns may have had no samples.
        for policy in self._changed:
            if f"{policy}/skipped" in self._row:
                self._row[f"{policy}/skipped"] = 0.0
        self._count_out_of_memory()
        self._row["tokens"] = tokens
        self._row |= self._flops.take_row()
        return StepResult(
            row=self._row,
            seconds=self._clock.seconds,
            engine_seconds_by_policy=self._rollouts.seconds,
            rollout_seconds=self._rollouts.wall,
            processes=process_metrics(self._processes_before, self._process_stats(), self._clock.total),
            episodes=self._rollouts.episodes,
            skipped_updates=tuple(self._skipped),
            advantages=token_advantages(self._credited),
        )

    def _count_out_of_memory(self) -> None:
        """How often memory ran out for each policy: in its rollouts, its scoring, and as its learner has said."""
        for key, count in self._policies.scoring_oom_counts().items():
            scoring = count - self._scoring_oom_before[key]
            times = scoring + self._rollouts.oom_counts.get(key, 0.0)
            if times:
                self._row[key] = float(self._row.get(key, 0.0)) + times


def count_sampled_tokens(episodes: Iterable[Episode], policies: PolicyStore) -> int:
    """Tokens that policies sampled; a reward model that plays a role samples none."""
    speaking = {handle.name for handle in policies if handle.spec.generates}
    return sum(trace.sampled_count for episode in episodes for trace in episode.traces if trace.policy in speaking)


def _gap_row(episodes: Sequence[Episode]) -> MetricsRow:
    """``gap``: what was rewarded less what is true; nothing where that is not known."""
    gap = reward_gap(episodes)
    return {} if gap is None else {"gap": gap}


def _problems_row(recipe: Recipe, phase: Phase, episodes: Sequence[Episode]) -> MetricsRow:
    """How many problems replaced others (``resample.py``), and how many answers to unlabelled ones were audited."""
    row: MetricsRow = {}
    n_problems = phase.tasks or recipe.tasks_per_step
    if recipe.refill:
        row["replacements"] = len({episode.task for episode in episodes}) - n_problems
    if recipe.audits is not None:
        n_unlabelled = round(n_problems * phase.unlabelled)
        unlabelled = range(n_problems - n_unlabelled, n_problems)  # the last places of a step
        row["audited"] = sum(_count_graded(episode) for episode in episodes if episode.task in unlabelled)
    return row


def _count_graded(episode: Episode) -> int:
    """Answers of an episode of which it is known whether they are right."""
    answers = [trace for trace in episode.traces if not FINAL.is_in(trace)]
    return sum(CORRECT.of(answer) is not None for answer in answers)


def _scoring_row(objective: str, annotated: Sequence[Sample], scored: Sequence[Sample]) -> MetricsRow:
    """Tokens of forward passes that neither sample nor train."""
    values = sum(len(sample.token_ids) for sample in annotated if sample.old_values is not None)
    reference = sum(len(sample.token_ids) for sample in scored if sample.reference is not None)
    row: MetricsRow = {f"{objective}/scored/values": values, f"{objective}/scored/reference": reference}
    scores = sum(len(score) for sample in annotated for score in sample.scores.values())
    if scores:
        row[f"{objective}/scored/scores"] = scores
    return row


def _update_row(learner: LearnedPolicy, version: int) -> MetricsRow:
    """The metrics of a policy's last update on a batch. The gap between sampler and learner is that of the first one,
    before the learner moves away from the sampler."""
    policy = learner.policy
    last = learner.reports[-1]
    metrics = dict(last.metrics)
    metrics |= {key: value for key, value in learner.reports[0].metrics.items() if "/sampler_trainer" in key}
    row = learner_row(policy, metrics)
    row[f"{policy}/updates"] = version
    row[f"{policy}/skipped"] = float(not last.stepped)
    if last.skipped:
        row[_skipped_key(policy, last.skipped)] = 1
    return row


def _skipped_key(policy: str, reason: str) -> str:
    """The key of an update that was skipped for this reason."""
    return f"{policy}/skipped/{reason}"
