"""The co-training loop: one step from schedule to saved state, the same for every method.

Read ``CoTrainer.step`` first; it is the picture of the architecture in code. Nothing changes before the update: a step
that is interrupted while it plays leaves the state of its beginning, and resuming plays it again, token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from cotrain.algorithms.contract import (
    Batch,
    ContextTokens,
    LossTerm,
    Sample,
    UpdateReport,
    split_context,
    with_context,
)
from cotrain.algorithms.policy_loss import with_ratio_bounds
from cotrain.algorithms.samples import TokenAdvantages, sample_of, token_advantages, token_limit
from cotrain.config.evaluation import held_out
from cotrain.config.policies import Learning
from cotrain.config.recipe import Recipe
from cotrain.config.schedule import Phase, train_task
from cotrain.core.notes import CORRECT, FINAL
from cotrain.core.seeding import rng_of, seed_of
from cotrain.core.statistics import Estimate
from cotrain.core.types import UNLABELLED, Episode, State, Store, Task, Trace, take_fields
from cotrain.distributed.contract import Backend
from cotrain.distributed.local import LocalBackend
from cotrain.inference.contract import Engine
from cotrain.metrics.starved import NON_FINITE_SUFFIX
from cotrain.metrics.steps import MetricsRow, credit_row, flops_of, learner_row, reward_gap, role_metrics
from cotrain.rollout.event_loop import EngineEventLoop
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner, grade_outside
from cotrain.trainer.async_rollouts import (
    RolloutBatch,
    RolloutCounter,
    RolloutPipeline,
    StoppableEngine,
    check_async_steps,
    updates_behind,
)
from cotrain.trainer.checks import check_group_sizes, check_rollouts, check_servers_answer
from cotrain.trainer.concurrent import run_beside
from cotrain.trainer.evaluation import evaluation_seed, greedy_names, measure_protocol
from cotrain.trainer.flops import FlopsMeter, Sequences, StageClock
from cotrain.trainer.policy_store import PolicyStore

Progress = Callable[[int], Callable[[], None]]  # called with the number of episodes of a batch; returns what is called
# as each of them ends
Wrap = Callable[[Engine], Engine]  # an engine around another one
STATE_FIELDS = ("finished", "tokens", "rollback_count", "policies", "algorithms")  # the keys of CoTrainer.state(),
# which a checkpoint holds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one training step."""

    row: MetricsRow  # deterministic metrics
    seconds: Mapping[str, float]  # wall time by stage: "play", "annotate", "credit", "reference", "update"
    engine_seconds_by_policy: Mapping[str, float]  # seconds of the stage "play" in each engine: "{policy}/seconds"
    rollout_seconds: float  # wall time of the rollouts, also when they ran during an update; 0 if it is not known
    processes: Mapping[str, float | str]  # per-process figures, only of backends with several processes:
    # "process/{process}/…"
    episodes: tuple[Episode, ...]
    skipped_updates: tuple[Mapping[str, Any], ...]  # updates skipped for a non-finite gradient: step, policy, samples
    # by objective
    advantages: TokenAdvantages  # advantages of the samples that were trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The result of updating all policies that are due once."""

    row: MetricsRow
    samples_by_objective: Mapping[str, Sequence[Sample]]  # objective → its samples with advantages
    changed_policies: tuple[str, ...]  # policies with new weights
    skipped_updates: tuple[Mapping[str, Any], ...]  # as in ``StepResult``


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPolicy:
    """The updates of one policy on one batch."""

    policy: str
    reports: tuple[UpdateReport, ...]  # one report for each update of this batch, at least one
    changed_policies: tuple[str, ...]  # policies with new weights: this one, and the copies that follow it


class CoTrainer:
    """The training loop of one run: its policies, held by a backend, and their update at each step."""

    def __init__(
        self, recipe: Recipe, *, backend: Backend | None = None, wrap_engine: Wrap | None = None, async_steps: int = 0
    ) -> None:
        """
        Args:
            backend: who runs the policies; None: this process, on its CPU.
            wrap_engine: puts something around the engine (a test's random latency, a recorder).
            async_steps: K plays step t + K beside the update of step t (``async_rollouts.py``).
        """
        check_async_steps(recipe, async_steps)
        self.recipe = recipe
        self.backend: Backend = backend or LocalBackend()
        self.policies = PolicyStore(self.backend.open(recipe.policies, seed=recipe.seed))
        self.engine = self.backend.engine
        self._engine = StoppableEngine(self.engine, lambda: 0)
        self._loop = EngineEventLoop()  # one event loop for all rollouts, as connections to remote policies belong to a
        # loop
        self._training_engine: Engine = wrap_engine(self._engine) if wrap_engine else self._engine
        self.rollback_count, self.finished_steps = 0, 0  # how often the run rolled back to a checkpoint and changed its
        # seed; finished steps
        self.runner = self.make_runner(self.seed, engine=self._training_engine)
        self.rollouts = RolloutPipeline(
            self._engine, async_steps, apart=bool(async_steps) and self.backend.enable_overlap()
        )
        self.eval_progress: Progress | None = None  # shows how far an evaluation is
        self.evaluator = self.make_runner(evaluation_seed(recipe.seed))
        self.tokens = 0  # tokens sampled in training so far, summed over roles
        self.flops, self.seconds = 0, 0.0  # FLOPs and seconds of training so far; a resumed run reads them back from
        # its files
        self.meter = FlopsMeter(self.policies)
        self.algorithm_states: dict[str, State] = {name: {} for name in recipe.objectives}  # objective → the state of
        # its algorithm
        self.stores: dict[str, Store] = dict(recipe.stores)
        for name, objective in recipe.objectives.items():
            needs = objective.algorithm.needs()
            read = {objective.policy, *needs.scores, *filter(None, (needs.reference, needs.values))}
            for speaker in {recipe.roles[role].policy for role in objective.roles}:
                self.policies.check_same_tokenizer(name, speaker, sorted(read - {speaker}))
        horizon = recipe.horizon or recipe.steps
        counts = self.policies.update_counts  # each policy decays its learning rate by its own number of updates
        self.planned_updates = {policy: recipe.planned_updates(policy, horizon) for policy in counts}

    def make_runner(
        self, seed: int, *, roles: Mapping[str, Role] | None = None, engine: Engine | None = None
    ) -> RolloutRunner:
        """A rollout runner over these policies, by default with the recipe's roles. All share one event loop."""
        return RolloutRunner(
            engine or self._engine,
            self.policies.renderers,
            self.recipe.roles if roles is None else roles,
            seed,
            grader=grade_outside,
            loop=self._loop,
        )

    def stop_on(self, stopping: Callable[[], int]) -> None:
        """``stopping``: from now on the number of the signal that asks the run to stop, 0 while none does."""
        self._engine.stopping = stopping

    def close(self) -> None:
        """Close the processes and connections that the backend and the options of protocols hold."""
        self.rollouts.close()
        for option in (one for phase in self.recipe.schedule.phases for one in phase.options.values()):
            if callable(close := getattr(option, "close", None)):
                close()
        self._loop.run_to_end(self.backend.close())
        self._loop.close()

    @property
    def seed(self) -> int:
        """The seed of all draws and samples in training; another one after each rollback."""
        return seed_of("retry", self.recipe.seed, self.rollback_count) if self.rollback_count else self.recipe.seed

    def reseed(self, rollback_count: int) -> None:
        """Set the seed of all later draws and samples to that of this rollback count."""
        self.rollback_count = rollback_count
        self.runner = self.make_runner(self.seed, engine=self._training_engine)
        self.rollouts.load(None)

    def reset_run(self) -> None:
        """Reset the run to its first step, once the backend has put the policies back to their initial weights."""
        self.algorithm_states = {name: {} for name in self.recipe.objectives}
        self.stores = dict(self.recipe.stores)
        self.finished_steps = self.tokens = 0
        self.meter = FlopsMeter(self.policies)
        self.reseed(0)
        self._publish_versions(self.policies.served_versions())

    @property
    def is_done(self) -> bool:
        """True when all steps are done or one of the budgets is spent."""
        made, spent = self.recipe, (self.tokens, self.flops, self.seconds, self.leading_steps)
        budgets = zip((made.tokens, made.flops, made.seconds, made.updates), spent, strict=True)
        return self.finished_steps >= made.steps or any(most is not None and now >= most for most, now in budgets)

    @property
    def leading_steps(self) -> int:
        """Steps so far at which the leading objective was due."""
        return self.recipe.schedule.planned_batches([self.recipe.leading_objective], self.finished_steps)

    def is_evaluation_due(self) -> bool:
        """True when validation problems are to be measured now."""
        every = self.recipe.evaluate_every
        if not every or not self.finished_steps or self.is_done:
            return bool(every)
        if self.recipe.updates is None:
            return self.finished_steps % every == 0
        before = self.recipe.schedule.planned_batches([self.recipe.leading_objective], self.finished_steps - 1)
        return self.leading_steps > before and self.leading_steps % every == 0

    def step(self) -> StepResult:
        """Collect a batch, compute advantages, update every policy that is due, publish the weights.

        Raises Interrupted before the update, never in it."""
        step, clock = self.finished_steps, StageClock(self.backend.process_stats)
        phase = self.recipe.schedule.phase_at(step)
        self._publish_versions(self.policies.reset_policies(self.recipe.policies_to_reset(step)))
        collected = self._played(step)
        oom_before = self.policies.scoring_oom_counts()
        clock.end_stage("play")
        episodes = collected.episodes
        check_rollouts(step, phase, self.recipe.objectives, episodes, self.runner)
        check_servers_answer(f"step {step + 1}", self.policies, collected.outside)
        self.meter.count_rollouts(episodes)
        row: MetricsRow = {"step": step, "phase": phase.name, **role_metrics(episodes, list(self.recipe.roles))}
        if (gap := reward_gap(episodes)) is not None:
            row["gap"] = gap
        n_problems = phase.tasks or self.recipe.tasks_per_step
        if self.recipe.refill:
            row["replacements"] = len({episode.task for episode in episodes}) - n_problems
        if self.recipe.audits is not None:
            unlabelled_places = range(n_problems - round(n_problems * phase.unlabelled), n_problems)
            answers = [t for e in episodes if e.task in unlabelled_places for t in e.traces if not FINAL.is_in(t)]
            row["audited"] = sum(CORRECT.of(answer) is not None for answer in answers)
        row |= collected.outside
        batches: list[tuple[str, ...]] = [(name,) for name in phase.in_turn] or [phase.objectives]
        with self.rollouts.collect_early(step + 1, self._collect_step, self._policies_to_hold(step)) as hand_over:
            with self.rollouts.collect_while_learning(step, self._collect_step, until=self.recipe.steps):
                clock.end_stage("play")
                updates = [self._update_policies(due, episodes, clock) for due in batches]
            clock.end_stage("play")
            changed = dict.fromkeys(policy for update in updates for policy in update.changed_policies)
            hand_over(partial(self._publish_versions, changed))
            clock.end_stage("update")
        clock.end_stage("play")
        credited: dict[str, Sequence[Sample]] = {}
        for update in updates:
            row |= update.row
            credited |= update.samples_by_objective
        row |= {key: 0.0 for policy in changed if (key := f"{policy}/skipped") in row}  # 0 for a policy of which one of
        # several updates had no samples
        for name, store in self.stores.items():
            self.stores[name] = store.with_episodes(episodes, step)
            row |= {f"{name}/{key}": value for key, value in self.stores[name].metrics().items()}
        speaking = {handle.name for handle in self.policies if handle.spec.speaks}
        self.tokens += sum(t.sampled_count for e in episodes for t in e.traces if t.policy in speaking)
        for key, count in self.policies.scoring_oom_counts().items():
            if ran_out := count - oom_before[key] + collected.oom_counts.get(key, 0.0):
                row[key] = float(row.get(key, 0.0)) + ran_out
        row |= {"tokens": self.tokens, **self.meter.take_row()}
        self.flops += flops_of(row)
        self.seconds += sum(clock.laps.values())
        self.finished_steps += 1
        return StepResult(
            row=row,
            seconds=clock.laps,
            engine_seconds_by_policy=collected.seconds,
            rollout_seconds=collected.wall,
            processes=clock.process_metrics(),
            episodes=episodes,
            skipped_updates=tuple(batch for update in updates for batch in update.skipped_updates),
            advantages=token_advantages(credited),
        )

    def _policies_to_hold(self, step: int) -> Collection[str] | None:
        """The policies that rollouts of the next step must wait for while this step learns; None: they cannot begin
        yet."""
        if self.rollouts.async_steps or step + 1 >= self.recipe.steps:
            return None
        if self.recipe.schedule.phase_at(step + 1).stores:
            return None  # its protocol reads what this step stores
        if any(isinstance(handle.spec, Learning) and handle.spec.reset_to_start for handle in self.policies):
            return None  # a policy may be reset to its initial weights between the two steps
        due = [self.recipe.objectives[name] for name in self.recipe.schedule.phase_at(step).objectives]
        changed = list(dict.fromkeys(objective.policy for objective in due))
        changed += [follower.name for policy in changed for follower in self.policies.followers_of(policy)]
        touched = set(changed)
        for objective in due:
            needs = objective.algorithm.needs()
            touched |= {*needs.scores, *filter(None, (needs.reference, needs.values))}
        return self.backend.held_while_learning(touched, changed)

    def _played(self, step: int) -> RolloutBatch:
        """The play of the step that is due: made before its time, or now; with a lag, those after it are made too."""
        if not self.rollouts.async_steps:
            return self.rollouts.take_early(step) or self._collect_step(step)
        for later in self.rollouts.missing_steps(step, until=self.recipe.steps):
            self.rollouts.add(self._collect_step(later))
        return self.rollouts.ready[0]

    def _collect_step(self, step: int) -> RolloutBatch:
        """Draw the problems of a step and collect its rollouts with the published weights."""
        self._engine.raise_if_stopped()  # rollouts of programs alone never advance the engine, which looks for a stop
        # signal
        phase = self.recipe.schedule.phase_at(step)
        work = RolloutCounter(self.engine, self.policies)
        group_size = phase.group_size or self.recipe.group_size
        stores = {name: self.stores[name] for name in phase.stores}
        tasks = self.draw_tasks(phase, step)
        if not self.recipe.refill or self.recipe.leading_objective not in phase.objectives:
            episodes = self.runner.collect(phase.protocol, tasks, step=step, group_size=group_size, stores=stores)
            return work.result_of(episodes)
        from cotrain.trainer.resample import with_replacements

        def play_tasks(tasks: Sequence[Task], first: int = 0) -> tuple[Episode, ...]:
            return self.runner.collect(
                phase.protocol, tasks, step=step, group_size=group_size, first=first, stores=stores
            )

        return work.result_of(with_replacements(self.recipe, step, self.seed, tasks, play_tasks))

    def _update_policies(self, due: Sequence[str], episodes: Sequence[Episode], clock: StageClock) -> UpdateResult:
        """Make samples, compute advantages and reference log-probabilities for these objectives, then update each
        policy."""
        row: MetricsRow = {}
        credited: dict[str, Sequence[Sample]] = {}
        terms: dict[str, list[LossTerm]] = {}
        changed: list[str] = []
        skipped: list[Mapping[str, Any]] = []
        for name in due:
            objective = self.recipe.objectives[name]
            traces = [t for e in episodes for t in e.traces if t.role in objective.roles and t.failure is None]
            check_group_sizes(name, objective, traces, len(episodes))
            policy = objective.policy
            if self.rollouts.async_steps:
                row |= updates_behind(traces, policy, self.policies[policy].version)
            before = self._make_samples(name, traces)
            clock.end_stage("annotate")
            planned = self.planned_updates[policy]
            batch = Batch(samples=before, updates=self.policies[policy].version, planned=planned)
            credit, self.algorithm_states[name] = objective.algorithm.credit(batch, self.algorithm_states[name])
            credited[name] = credit.samples
            row |= credit_row(name, credit.metrics, credit.dropped, len(credit.samples))
            clock.end_stage("credit")
            samples = with_ratio_bounds(self._with_reference(name, credit.samples), self.backend.bounds)
            row |= self._scoring_row(name, before, samples)
            terms.setdefault(policy, []).append(
                LossTerm(
                    name=name, algorithm=objective.algorithm, samples=samples, weight=objective.weight, planned=planned
                )
            )
            clock.end_stage("reference")
        for learned in self._learn_in_lanes(terms):
            policy, report = learned.policy, learned.reports[-1]
            for _ in learned.reports:
                for term in terms[policy]:
                    self.meter.count_learning(policy, term)
            changed += learned.changed_policies
            # the gap between sampler and learner is that of the first update, before the learner moves away from the
            # sampler
            first = {k: v for k, v in learned.reports[0].metrics.items() if "/sampler_trainer" in k}
            row |= learner_row(policy, {**report.metrics, **first})
            row |= {f"{policy}/updates": self.policies[policy].version, f"{policy}/skipped": float(not report.stepped)}
            if report.skipped:
                row[f"{policy}/skipped/{report.skipped}"] = 1
            if policy + NON_FINITE_SUFFIX in row:
                addresses = {term.name: [sample.key for sample in term.samples] for term in terms[policy]}
                skipped.append(
                    {"step": self.finished_steps, "policy": policy, "reason": report.skipped, "samples": addresses}
                )
        clock.end_stage("update")
        return UpdateResult(
            row=row, samples_by_objective=credited, changed_policies=tuple(changed), skipped_updates=tuple(skipped)
        )

    def _learn_in_lanes(self, terms: Mapping[str, Sequence[LossTerm]]) -> list[LearnedPolicy]:
        """Update each policy, in the order of ``terms``; policies in different lanes of the backend learn
        concurrently."""
        lanes: dict[str, list[str]] = {}
        for policy in terms:
            lanes.setdefault(self.backend.lane_of(policy), []).append(policy)

        def learn_lane(policies: Sequence[str]) -> list[LearnedPolicy]:
            return [self._learn_policy(policy, terms[policy]) for policy in policies]

        results = run_beside([partial(learn_lane, policies) for policies in lanes.values()])
        learned = {one.policy: one for lane in results for one in lane}
        return [learned[policy] for policy in terms]

    def _learn_policy(self, policy: str, terms: Sequence[LossTerm]) -> LearnedPolicy:
        """Update one policy on this batch, and after each update the copies that follow it."""
        learner, reports, changed = self.policies[policy], list[UpdateReport](), list[str]()
        for _ in range(self.recipe.updates_per_batch(policy)):
            report = learner.update(terms)
            reports.append(report)
            if not report.stepped:
                break
            followers = self.policies.followers_of(policy)
            changed += [policy, *(f.name for f in followers if f.follow(learner, self.planned_updates[policy]))]
        return LearnedPolicy(policy=policy, reports=tuple(reports), changed_policies=tuple(changed))

    def draw_tasks(self, phase: Phase, step: int) -> list[Task]:
        """The step's problems: the same for all recipes with one seed, see ``Schedule.task_stream``."""
        count = phase.tasks or self.recipe.tasks_per_step
        stream, earlier = self.recipe.schedule.task_stream(step, self.recipe.leading_objective)
        others, share = round(count * phase.unlabelled), self.recipe.share_at(step)
        labelled, unlabelled = (
            [train_task(self.recipe.tasks, self.seed, stream, earlier * n + i, split, share) for i in range(n)]
            for split, n in (("train", count - others), (UNLABELLED, others))
        )
        if self.recipe.audits is not None:
            chosen = rng_of("audits", self.seed, step).sample(range(others), min(self.recipe.audits, others))
            unlabelled = [replace(t, gradable=t.gradable and i in chosen) for i, t in enumerate(unlabelled)]
        return [*labelled, *unlabelled]

    def _make_samples(self, name: str, traces: Sequence[Trace]) -> tuple[Sample, ...]:
        """Make a training sample of each trace, with the values and scores that advantages need."""
        objective = self.recipe.objectives[name]
        needs, sampling = objective.algorithm.needs(), self.recipe.roles[objective.role].sampling
        temperature = needs.temperature or (1.0 if sampling.is_greedy else sampling.temperature)
        stops = {name: renderer.stop_ids for name, renderer in self.runner.renderers.items()}
        limits = [token_limit(t, self.recipe.roles[t.role].sampling.max_tokens, stops[t.policy]) for t in traces]
        sampled_traces = [split_context(trace) for trace in traces]
        pairs = [(t.prompt_ids, t.token_ids) for t, _ in sampled_traces]
        context_tokens = [context for _, context in sampled_traces]
        values = (
            self._score_tokens(needs.values, pairs, context_tokens) if needs.values and pairs else [None] * len(pairs)
        )
        scores = {p: self._score_tokens(p, pairs, context_tokens, temperature) for p in needs.scores if pairs}
        return tuple(
            sample_of(
                t,
                context_tokens=g,
                temperature=temperature,
                values=v,
                scores={p: of[i] for p, of in scores.items()},
                limit=limits[i],
            )
            for i, ((t, g), v) in enumerate(zip(sampled_traces, values, strict=True))
        )

    def _with_reference(self, name: str, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """Add the reference policy's log-probabilities to the samples if the loss needs them."""
        reference = self.recipe.objectives[name].algorithm.needs().reference
        if reference is None or not samples:
            return tuple(samples)
        scores: dict[str, torch.Tensor] = {}
        for temperature in sorted({s.temperature for s in samples}):
            selected = [s for s in samples if s.temperature == temperature]
            pairs, context_tokens = (
                [(s.prompt_ids, s.token_ids) for s in selected],
                [s.context_tokens for s in selected],
            )
            logprobs = self._score_tokens(reference, pairs, context_tokens, temperature)
            scores |= {s.key: score for s, score in zip(selected, logprobs, strict=True)}
        return tuple(replace(s, reference=scores[s.key]) for s in samples)

    def _score_tokens(
        self, policy: str, pairs: Sequences, context_tokens: Sequence[ContextTokens], temperature: float = 1.0
    ) -> list[torch.Tensor]:
        """Compute a policy's log-probabilities, or a critic's values, and count their FLOPs."""
        self.meter.count_scoring(
            policy,
            [
                (prompt, with_context(ids, context)[0])
                for (prompt, ids), context in zip(pairs, context_tokens, strict=True)
            ],
        )
        return self.policies[policy].logprobs(pairs, temperature=temperature, context_tokens=context_tokens)

    def _scoring_row(self, name: str, before: Sequence[Sample], samples: Sequence[Sample]) -> MetricsRow:
        """Count the tokens of forward passes that neither sample nor train."""
        values = sum(len(s.token_ids) for s in before if s.old_values is not None)
        scores = sum(len(of) for s in before for of in s.scores.values())
        reference = sum(len(s.token_ids) for s in samples if s.reference is not None)
        row: MetricsRow = {f"{name}/scored/values": values, f"{name}/scored/reference": reference}
        return row | ({f"{name}/scored/scores": scores} if scores else {})

    def evaluate(
        self, split: str, count: int, *, group_size: int | None = None
    ) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """Evaluate on ``count`` problems of a held-out split, the same ones for each seed."""
        evaluation = self.recipe.evaluation
        tasks = held_out(self.recipe.tasks, split, count, self.recipe.seed)
        self.evaluator.progress = self.eval_progress
        size = group_size or evaluation.group_size
        with self._checking_servers(f"held-out problems of {split}"):
            figures, played = measure_protocol(evaluation, self.evaluator, tasks, split=split, group_size=size)
        if evaluation.implied:
            from cotrain.trainer.implicit_reward_evaluation import implied_figures

            figures |= implied_figures(evaluation.implied, played, self.policies, self.recipe.roles)
        return figures, played

    def evaluate_frozen(
        self, split: str, count: int, *, greedy: bool = False
    ) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """Evaluate verifiers on the solutions of a frozen solver, which are the same before and after training.

        ``greedy``: also with verifiers at temperature 0, on the same solutions."""
        evaluation, swapped = self.recipe.evaluation, self.recipe.evaluation.frozen_roles
        tasks = held_out(self.recipe.tasks, split, count, self.recipe.seed)

        def evaluate_judges(cold: bool) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
            roles = {n: replace(role, policy=swapped.get(n, role.policy)) for n, role in self.recipe.roles.items()}
            if cold:
                judges = {n: role for n, role in roles.items() if n not in swapped}
                roles |= {n: replace(r, sampling=replace(r.sampling, temperature=0.0)) for n, r in judges.items()}
            executor = self.make_runner(evaluation_seed(self.recipe.seed), roles=roles)
            executor.progress = self.eval_progress
            group_size = max(1, evaluation.group_size // 4)
            results, played = measure_protocol(
                evaluation, executor, tasks, split=split, group_size=group_size, greedy=False
            )
            return {key: value for key, value in results.items() if key.split("/")[0] not in swapped}, played

        with self._checking_servers(f"fixed solutions of {split}"):
            figures, played = evaluate_judges(False)
            greedy_figures = greedy_names(evaluate_judges(True)[0]) if greedy else {}
        return figures | greedy_figures, played

    @contextmanager
    def _checking_servers(self, where: str) -> Iterator[None]:
        """Raise TooManyFailures where a server gave no answer to most of what was asked ``where``."""
        before = self.policies.outside_counts()
        yield
        counts = {key: value - before[key] for key, value in self.policies.outside_counts().items()}
        check_servers_answer(where, self.policies, counts)

    def set_aside(self) -> dict[str, str]:
        """Task id → why its prompt did not fit a context."""
        return self.runner.set_aside | self.evaluator.set_aside

    def state(self) -> State:
        return {
            "finished": self.finished_steps,
            "tokens": self.tokens,
            "rollback_count": self.rollback_count,
            "policies": self.policies.state(),
            "algorithms": dict(self.algorithm_states),
        } | ({"stores": {name: store.state() for name, store in self.stores.items()}} if self.stores else {})

    def load(
        self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]], ahead: Mapping[str, Any] | None = None
    ) -> None:
        """``ahead``: what ``plays.state`` gave."""
        fields = (*STATE_FIELDS, "stores") if self.stores else STATE_FIELDS
        finished, tokens, retries, policies, algorithms, *saved_stores = take_fields("run", state, *fields)
        memory = take_fields("run's algorithms", algorithms, *self.algorithm_states)
        self.policies.load(policies, tensors)
        self.algorithm_states = dict(zip(self.algorithm_states, memory, strict=True))
        store_states = take_fields("run's stores", saved_stores[0] if saved_stores else {}, *self.stores)
        self.stores = {
            n: self.recipe.stores[n].restore_state(was) for n, was in zip(self.stores, store_states, strict=True)
        }
        self.finished_steps, self.tokens = int(finished), int(tokens)
        self.meter = FlopsMeter(self.policies)  # a step that was given up may have counted
        self.reseed(int(retries))
        self.rollouts.load(ahead)
        self._publish_versions(self.policies.served_versions())

    def _publish_versions(self, policies: Iterable[str]) -> None:
        """Tell the backend the versions of these policies, if they are asked."""
        versions = self.policies.served_versions()
        for policy in policies:
            if policy in versions:
                self.backend.publish(policy, versions[policy])
