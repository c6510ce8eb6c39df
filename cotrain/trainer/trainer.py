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

from cotrain.algorithms.contract import Batch, Given, LossTerm, Sample, UpdateReport, sampled_only, with_context
from cotrain.algorithms.policy_loss import with_bounds
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
from cotrain.metrics.steps import MetricsRow, credit_keys, flops_of, learner_keys, reward_gap, role_metrics
from cotrain.rollout.event_loop import IdleLoop
from cotrain.rollout.role import Role
from cotrain.rollout.runner import Executor, grade_outside
from cotrain.trainer.async_rollouts import (
    PlayCounter,
    PlayPipeline,
    PlayResult,
    StoppableEngine,
    check_lag,
    updates_behind,
)
from cotrain.trainer.checks import refuse_lonely, refuse_play, refuse_silence
from cotrain.trainer.concurrent import run_beside
from cotrain.trainer.evaluation import evaluation_seed, greedy_names, measure_protocol
from cotrain.trainer.flops import FlopsMeter, Sequences, StageClock
from cotrain.trainer.policy_store import PolicyStore

Watch = Callable[[int], Callable[[], None]]  # (episodes of a play) → what is called when one of them is over
Wrap = Callable[[Engine], Engine]  # an engine around another one
STATE_FIELDS = ("finished", "tokens", "retries", "policies", "algorithms")  # what a checkpoint has of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did."""

    row: MetricsRow  # deterministic metrics
    seconds: Mapping[str, float]  # wall time by stage: "play", "annotate", "credit", "reference", "update"
    engine_seconds: Mapping[str, float]  # of "play", by who was computing: "{policy}/seconds"
    play_seconds: float  # that the play took, also where it was made beside an update; 0 where nobody knows
    processes: Mapping[str, float | str]  # what each did, where there are several: "process/{process}/…"
    episodes: tuple[Episode, ...]
    skipped: tuple[Mapping[str, Any], ...]  # updates that were not finite: step, policy, samples by objective
    advantages: TokenAdvantages  # of the samples that were learned from


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What objectives that learn at once came to."""

    row: MetricsRow
    credited: Mapping[str, Sequence[Sample]]  # what each objective learned from, after credit
    changed: tuple[str, ...]  # policies with new weights
    skipped: tuple[Mapping[str, Any], ...]  # as in ``StepResult``


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPolicy:
    """What one policy made of a batch."""

    policy: str
    reports: tuple[UpdateReport, ...]  # of each of its updates, at least one
    changed: tuple[str, ...]  # policies with new weights: itself, and those that follow it


class CoTrainer:
    """Holds the policies of one run through a backend, and carries them from step to step."""

    def __init__(
        self, recipe: Recipe, *, backend: Backend | None = None, wrap: Wrap | None = None, lag: int = 0
    ) -> None:
        """
        Args:
            backend: who runs the policies; None: this process, on its CPU.
            wrap: puts something around the engine (a test's random latency, a recorder).
            lag: K plays step t + K beside the update of step t (``async_rollouts.py``).
        """
        check_lag(recipe, lag)
        self.recipe = recipe
        self.backend: Backend = backend or LocalBackend()
        self.policies = PolicyStore(self.backend.open(recipe.policies, seed=recipe.seed))
        self.engine = self.backend.engine
        self._stoppable = StoppableEngine(self.engine, lambda: 0)
        self._loop = IdleLoop()  # of all plays: connections of remote policies live in it
        self._training: Engine = wrap(self._stoppable) if wrap else self._stoppable
        self.retries, self.finished = 0, 0  # returns to a checkpoint, to go on with other draws; steps done
        self.executor = self.make_executor(self.seed, engine=self._training)
        self.plays = PlayPipeline(self._stoppable, lag, apart=bool(lag) and self.backend.enable_overlap())
        self.watch: Watch | None = None  # of what is played on held-out problems
        self.judge = self.make_executor(evaluation_seed(recipe.seed))
        self.tokens = 0  # sampled in training so far, all roles
        self.flops, self.seconds = 0, 0.0  # of training so far; a run reads them back from its files
        self.meter = FlopsMeter(self.policies)
        self.memory: dict[str, State] = {name: {} for name in recipe.objectives}  # of the algorithms, by objective
        self.stores: dict[str, Store] = dict(recipe.stores)
        for name, objective in recipe.objectives.items():
            needs = objective.by.needs()
            read = {objective.policy, *needs.scores, *filter(None, (needs.reference, needs.values))}
            for speaker in {recipe.roles[role].policy for role in objective.roles}:
                self.policies.refuse_foreign(name, speaker, sorted(read - {speaker}))
        horizon = recipe.horizon or recipe.steps
        counts = self.policies.update_counts  # of each policy, whose decays run on its own updates
        self.planned = {policy: recipe.planned_updates(policy, horizon) for policy in counts}

    def make_executor(
        self, seed: int, *, roles: Mapping[str, Role] | None = None, engine: Engine | None = None
    ) -> Executor:
        """An executor over these policies, by default with the recipe's roles. All share one event loop."""
        return Executor(
            engine or self._stoppable,
            self.policies.renderers,
            self.recipe.roles if roles is None else roles,
            seed,
            grader=grade_outside,
            loop=self._loop,
        )

    def stop_on(self, stopping: Callable[[], int]) -> None:
        """``stopping``: from now on the number of the signal that asks the run to stop, 0 while none does."""
        self._stoppable.stopping = stopping

    def close(self) -> None:
        """Let go of what the backend and the options of protocols hold: processes, connections."""
        self.plays.close()
        for option in (one for phase in self.recipe.schedule.phases for one in phase.options.values()):
            if callable(close := getattr(option, "close", None)):
                close()
        self._loop.run_to_end(self.backend.close())
        self._loop.close()

    @property
    def seed(self) -> int:
        """Of what is drawn and sampled in training."""
        return seed_of("retry", self.recipe.seed, self.retries) if self.retries else self.recipe.seed

    def set_attempt(self, retries: int) -> None:
        """Draw and sample from now on as at this attempt."""
        self.retries = retries
        self.executor = self.make_executor(self.seed, engine=self._training)
        self.plays.load(None)

    def begin_again(self) -> None:
        """Go on from the start, where the backend has the policies again."""
        self.memory = {name: {} for name in self.recipe.objectives}
        self.stores = dict(self.recipe.stores)
        self.finished = self.tokens = 0
        self.meter = FlopsMeter(self.policies)
        self.set_attempt(0)
        self._publish_versions(self.policies.served_versions())

    @property
    def is_done(self) -> bool:
        """Are all steps done, or one of the budgets spent?"""
        made, spent = self.recipe, (self.tokens, self.flops, self.seconds, self.leading_steps)
        budgets = zip((made.tokens, made.flops, made.seconds, made.updates), spent, strict=True)
        return self.finished >= made.steps or any(most is not None and now >= most for most, now in budgets)

    @property
    def leading_steps(self) -> int:
        """Steps so far at which the leading objective was due."""
        return self.recipe.schedule.planned_batches([self.recipe.leading_objective], self.finished)

    def is_evaluation_due(self) -> bool:
        """Are validation problems to be measured now?"""
        every = self.recipe.evaluate_every
        if not every or not self.finished or self.is_done:
            return bool(every)
        if self.recipe.updates is None:
            return self.finished % every == 0
        before = self.recipe.schedule.planned_batches([self.recipe.leading_objective], self.finished - 1)
        return self.leading_steps > before and self.leading_steps % every == 0

    def step(self) -> StepResult:
        """Schedule, draw, play, annotate, credit, refer, update, publish. Raises Interrupted before the update."""
        step, clock = self.finished, StageClock(self.backend.process_stats)
        phase = self.recipe.schedule.phase_at(step)
        self._publish_versions(self.policies.restart_policies(self.recipe.policies_to_reset(step)))
        played = self._played(step)
        short = self.policies.scoring_short()
        clock.end_stage("play")
        episodes = played.episodes
        refuse_play(step, phase, self.recipe.objectives, episodes, self.executor)
        refuse_silence(f"step {step + 1}", self.policies, played.outside)
        self.meter.count_play(episodes)
        row: MetricsRow = {"step": step, "phase": phase.name, **role_metrics(episodes, list(self.recipe.roles))}
        if (gap := reward_gap(episodes)) is not None:
            row["gap"] = gap
        drawn = phase.tasks or self.recipe.tasks_per_step
        if self.recipe.refill:
            row["replacements"] = len({episode.task for episode in episodes}) - drawn
        if self.recipe.audits is not None:
            places = range(drawn - round(drawn * phase.unlabelled), drawn)
            answers = [t for e in episodes if e.task in places for t in e.traces if not FINAL.is_in(t)]
            row["audited"] = sum(CORRECT.of(answer) is not None for answer in answers)
        row |= played.outside
        batches: list[tuple[str, ...]] = [(name,) for name in phase.in_turn] or [phase.objectives]
        with self.plays.play_early(step + 1, self._play_step, self._held_while_learning(step)) as hand_over:
            with self.plays.play_while_learning(step, self._play_step, until=self.recipe.steps):
                clock.end_stage("play")
                updates = [self._update_policies(due, episodes, clock) for due in batches]
            clock.end_stage("play")
            changed = dict.fromkeys(policy for update in updates for policy in update.changed)
            hand_over(partial(self._publish_versions, changed))
            clock.end_stage("update")
        clock.end_stage("play")
        credited: dict[str, Sequence[Sample]] = {}
        for update in updates:
            row |= update.row
            credited |= update.credited
        row |= {key: 0.0 for policy in changed if (key := f"{policy}/skipped") in row}  # one in turn had nothing
        for name, store in self.stores.items():
            self.stores[name] = store.with_episodes(episodes, step)
            row |= {f"{name}/{key}": value for key, value in self.stores[name].metrics().items()}
        speaking = {handle.name for handle in self.policies if handle.spec.speaks}
        self.tokens += sum(t.sampled_count for e in episodes for t in e.traces if t.policy in speaking)
        for key, count in self.policies.scoring_short().items():
            if ran_out := count - short[key] + played.shortages.get(key, 0.0):
                row[key] = float(row.get(key, 0.0)) + ran_out
        row |= {"tokens": self.tokens, **self.meter.take_row()}
        self.flops += flops_of(row)
        self.seconds += sum(clock.laps.values())
        self.finished += 1
        return StepResult(
            row=row,
            seconds=clock.laps,
            engine_seconds=played.seconds,
            play_seconds=played.wall,
            processes=clock.process_metrics(),
            episodes=episodes,
            skipped=tuple(batch for update in updates for batch in update.skipped),
            advantages=token_advantages(credited),
        )

    def _held_while_learning(self, step: int) -> Collection[str] | None:
        """The policies that the next step's play has to wait for while this step learns; None where it waits for all of
        that."""
        if self.plays.lag or step + 1 >= self.recipe.steps:
            return None
        if self.recipe.schedule.phase_at(step + 1).stores:
            return None  # it reads what this step stores
        if any(isinstance(handle.spec, Learning) and handle.spec.restart_weights for handle in self.policies):
            return None  # policies may go back to their start between the two
        due = [self.recipe.objectives[name] for name in self.recipe.schedule.phase_at(step).objectives]
        changed = list(dict.fromkeys(objective.policy for objective in due))
        changed += [follower.name for policy in changed for follower in self.policies.followers_of(policy)]
        touched = set(changed)
        for objective in due:
            needs = objective.by.needs()
            touched |= {*needs.scores, *filter(None, (needs.reference, needs.values))}
        return self.backend.held_while_learning(touched, changed)

    def _played(self, step: int) -> PlayResult:
        """The play of the step that is due: made before its time, or now; with a lag, those after it are made too."""
        if not self.plays.lag:
            return self.plays.take_early(step) or self._play_step(step)
        for later in self.plays.missing_steps(step, until=self.recipe.steps):
            self.plays.add(self._play_step(later))
        return self.plays.ready[0]

    def _play_step(self, step: int) -> PlayResult:
        """Draw and play a step, by the policies that are published."""
        self._stoppable.raise_if_stopped()  # a play of programs alone never advances the engine
        phase = self.recipe.schedule.phase_at(step)
        work = PlayCounter(self.engine, self.policies)
        group_size = phase.group_size or self.recipe.group_size
        stores = {name: self.stores[name] for name in phase.stores}
        tasks = self.draw_tasks(phase, step)
        if not self.recipe.refill or self.recipe.leading_objective not in phase.objectives:
            episodes = self.executor.play(phase.protocol, tasks, step=step, group_size=group_size, stores=stores)
            return work.result_of(episodes)
        from cotrain.trainer.resample import with_replacements

        def play_tasks(tasks: Sequence[Task], first: int = 0) -> tuple[Episode, ...]:
            return self.executor.play(
                phase.protocol, tasks, step=step, group_size=group_size, first=first, stores=stores
            )

        return work.result_of(with_replacements(self.recipe, step, self.seed, tasks, play_tasks))

    def _update_policies(self, due: Sequence[str], episodes: Sequence[Episode], clock: StageClock) -> UpdateResult:
        """These objectives at once: annotate, credit and refer for all of them, then one update of each policy."""
        row: MetricsRow = {}
        credited: dict[str, Sequence[Sample]] = {}
        terms: dict[str, list[LossTerm]] = {}
        changed: list[str] = []
        skipped: list[Mapping[str, Any]] = []
        for name in due:
            objective = self.recipe.objectives[name]
            traces = [t for e in episodes for t in e.traces if t.role in objective.roles and t.failure is None]
            refuse_lonely(name, objective, traces, len(episodes))
            policy = objective.policy
            if self.plays.lag:
                row |= updates_behind(traces, policy, self.policies[policy].version)
            before = self._make_samples(name, traces)
            clock.end_stage("annotate")
            planned = self.planned[policy]
            batch = Batch(samples=before, updates=self.policies[policy].version, planned=planned)
            credit, self.memory[name] = objective.by.credit(batch, self.memory[name])
            credited[name] = credit.samples
            row |= credit_keys(name, credit.metrics, credit.dropped, len(credit.samples))
            clock.end_stage("credit")
            samples = with_bounds(self._with_reference(name, credit.samples), self.backend.bounds)
            row |= self._scoring_row(name, before, samples)
            terms.setdefault(policy, []).append(
                LossTerm(name=name, algorithm=objective.by, samples=samples, weight=objective.weight, planned=planned)
            )
            clock.end_stage("reference")
        for learned in self._learn_in_lanes(terms):
            policy, report = learned.policy, learned.reports[-1]
            for _ in learned.reports:
                for term in terms[policy]:
                    self.meter.count_learning(policy, term)
            changed += learned.changed
            # how far sampler and learner were apart is told before the policy leaves the one that sampled
            first = {k: v for k, v in learned.reports[0].metrics.items() if "/sampler_trainer" in k}
            row |= learner_keys(policy, {**report.metrics, **first})
            row |= {f"{policy}/updates": self.policies[policy].version, f"{policy}/skipped": float(not report.stepped)}
            if report.skipped:
                row[f"{policy}/skipped/{report.skipped}"] = 1
            if policy + NON_FINITE_SUFFIX in row:
                addresses = {term.name: [sample.key for sample in term.samples] for term in terms[policy]}
                skipped.append(
                    {"step": self.finished, "policy": policy, "reason": report.skipped, "samples": addresses}
                )
        clock.end_stage("update")
        return UpdateResult(row=row, credited=credited, changed=tuple(changed), skipped=tuple(skipped))

    def _learn_in_lanes(self, terms: Mapping[str, Sequence[LossTerm]]) -> list[LearnedPolicy]:
        """An update of each policy, in the order of ``terms``: those of two lanes of the backend beside each other."""
        lanes: dict[str, list[str]] = {}
        for policy in terms:
            lanes.setdefault(self.backend.lane_of(policy), []).append(policy)

        def learn_lane(policies: Sequence[str]) -> list[LearnedPolicy]:
            return [self._learn_policy(policy, terms[policy]) for policy in policies]

        results = run_beside([partial(learn_lane, policies) for policies in lanes.values()])
        learned = {one.policy: one for lane in results for one in lane}
        return [learned[policy] for policy in terms]

    def _learn_policy(self, policy: str, terms: Sequence[LossTerm]) -> LearnedPolicy:
        """The updates of one policy from this batch, each followed by those that take over its weights."""
        learner, reports, changed = self.policies[policy], list[UpdateReport](), list[str]()
        for _ in range(self.recipe.updates_per_batch(policy)):
            report = learner.update(terms)
            reports.append(report)
            if not report.stepped:
                break
            followers = self.policies.followers_of(policy)
            changed += [policy, *(f.name for f in followers if f.follow(learner, self.planned[policy]))]
        return LearnedPolicy(policy=policy, reports=tuple(reports), changed=tuple(changed))

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
        """A sample of each trace, with what credit has to know beforehand."""
        objective = self.recipe.objectives[name]
        needs, sampling = objective.by.needs(), self.recipe.roles[objective.on].sampling
        temperature = needs.temperature or (1.0 if sampling.is_greedy else sampling.temperature)
        stops = {name: renderer.stop_ids for name, renderer in self.executor.renderers.items()}
        limits = [token_limit(t, self.recipe.roles[t.role].sampling.max_tokens, stops[t.policy]) for t in traces]
        spoken_traces = [sampled_only(trace) for trace in traces]
        pairs = [(t.prompt_ids, t.token_ids) for t, _ in spoken_traces]
        given_tokens = [between for _, between in spoken_traces]
        values = (
            self._score_tokens(needs.values, pairs, given_tokens) if needs.values and pairs else [None] * len(pairs)
        )
        scores = {p: self._score_tokens(p, pairs, given_tokens, temperature) for p in needs.scores if pairs}
        return tuple(
            sample_of(
                t,
                given=g,
                temperature=temperature,
                values=v,
                scores={p: of[i] for p, of in scores.items()},
                limit=limits[i],
            )
            for i, ((t, g), v) in enumerate(zip(spoken_traces, values, strict=True))
        )

    def _with_reference(self, name: str, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """The samples with the reference's log-probabilities where the loss wants them: none is scored in vain."""
        reference = self.recipe.objectives[name].by.needs().reference
        if reference is None or not samples:
            return tuple(samples)
        scores: dict[str, torch.Tensor] = {}
        for temperature in sorted({s.temperature for s in samples}):
            selected = [s for s in samples if s.temperature == temperature]
            pairs, given_tokens = [(s.prompt_ids, s.token_ids) for s in selected], [s.given for s in selected]
            logprobs = self._score_tokens(reference, pairs, given_tokens, temperature)
            scores |= {s.key: score for s, score in zip(selected, logprobs, strict=True)}
        return tuple(replace(s, reference=scores[s.key]) for s in samples)

    def _score_tokens(
        self, policy: str, pairs: Sequences, given: Sequence[Given], temperature: float = 1.0
    ) -> list[torch.Tensor]:
        """A policy's log-probabilities, or a critic's values, and what they cost."""
        self.meter.count_scoring(
            policy,
            [(prompt, with_context(ids, between)[0]) for (prompt, ids), between in zip(pairs, given, strict=True)],
        )
        return self.policies[policy].logprobs(pairs, temperature=temperature, given=given)

    def _scoring_row(self, name: str, before: Sequence[Sample], samples: Sequence[Sample]) -> MetricsRow:
        """Tokens that passed through a model beside sampling and learning, so that a needless pass shows."""
        values = sum(len(s.token_ids) for s in before if s.old_values is not None)
        scores = sum(len(of) for s in before for of in s.scores.values())
        reference = sum(len(s.token_ids) for s in samples if s.reference is not None)
        row: MetricsRow = {f"{name}/scored/values": values, f"{name}/scored/reference": reference}
        return row | ({f"{name}/scored/scores": scores} if scores else {})

    def evaluate(
        self, split: str, count: int, *, group_size: int | None = None
    ) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """Figures on ``count`` problems of a held-out split, those of the recipe's seed."""
        evaluation = self.recipe.evaluation
        tasks = held_out(self.recipe.tasks, split, count, self.recipe.seed)
        self.judge.watch = self.watch
        size = group_size or evaluation.group_size
        with self._refused_silence(f"held-out problems of {split}"):
            figures, played = measure_protocol(evaluation, self.judge, tasks, split=split, group_size=size)
        if evaluation.implied:
            from cotrain.trainer.implicit_reward_evaluation import implied_figures

            figures |= implied_figures(evaluation.implied, played, self.policies, self.recipe.roles)
        return figures, played

    def evaluate_fixed(
        self, split: str, count: int, *, greedy: bool = False
    ) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """The judging roles' figures on what frozen policies say: the same solutions before and after. ``greedy``: also
        those of greedy judges, on the same solutions, so that the two differ by the judges' temperature alone."""
        evaluation, swapped = self.recipe.evaluation, self.recipe.evaluation.fixed
        tasks = held_out(self.recipe.tasks, split, count, self.recipe.seed)

        def evaluate_judges(cold: bool) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
            roles = {n: replace(role, policy=swapped.get(n, role.policy)) for n, role in self.recipe.roles.items()}
            if cold:
                judges = {n: role for n, role in roles.items() if n not in swapped}
                roles |= {n: replace(r, sampling=replace(r.sampling, temperature=0.0)) for n, r in judges.items()}
            executor = self.make_executor(evaluation_seed(self.recipe.seed), roles=roles)
            executor.watch = self.watch
            group_size = max(1, evaluation.group_size // 4)
            results, played = measure_protocol(
                evaluation, executor, tasks, split=split, group_size=group_size, greedy=False
            )
            return {key: value for key, value in results.items() if key.split("/")[0] not in swapped}, played

        with self._refused_silence(f"fixed solutions of {split}"):
            figures, played = evaluate_judges(False)
            greedy_figures = greedy_names(evaluate_judges(True)[0]) if greedy else {}
        return figures | greedy_figures, played

    @contextmanager
    def _refused_silence(self, where: str) -> Iterator[None]:
        """Raise TooManyFailures where a server gave no answer to most of what was asked ``where``."""
        before = self.policies.outside_counts()
        yield
        counts = {key: value - before[key] for key, value in self.policies.outside_counts().items()}
        refuse_silence(where, self.policies, counts)

    def set_aside(self) -> dict[str, str]:
        """Problems that did not fit a context so far, by id, and why."""
        return self.executor.set_aside | self.judge.set_aside

    def state(self) -> State:
        return {
            "finished": self.finished,
            "tokens": self.tokens,
            "retries": self.retries,
            "policies": self.policies.state(),
            "algorithms": dict(self.memory),
        } | ({"stores": {name: store.state() for name, store in self.stores.items()}} if self.stores else {})

    def load(
        self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]], ahead: Mapping[str, Any] | None = None
    ) -> None:
        """``ahead``: what ``plays.state`` gave."""
        fields = (*STATE_FIELDS, "stores") if self.stores else STATE_FIELDS
        finished, tokens, retries, policies, algorithms, *saved_stores = take_fields("run", state, *fields)
        memory = take_fields("run's algorithms", algorithms, *self.memory)
        self.policies.load(policies, tensors)
        self.memory = dict(zip(self.memory, memory, strict=True))
        store_states = take_fields("run's stores", saved_stores[0] if saved_stores else {}, *self.stores)
        self.stores = {
            n: self.recipe.stores[n].restore_state(was) for n, was in zip(self.stores, store_states, strict=True)
        }
        self.finished, self.tokens = int(finished), int(tokens)
        self.meter = FlopsMeter(self.policies)  # a step that was given up may have counted
        self.set_attempt(int(retries))
        self.plays.load(ahead)
        self._publish_versions(self.policies.served_versions())

    def _publish_versions(self, policies: Iterable[str]) -> None:
        """Tell the backend the versions of these policies, if they are asked."""
        versions = self.policies.served_versions()
        for policy in policies:
            if policy in versions:
                self.backend.publish(policy, versions[policy])
