"""The co-training loop: one step from schedule to saved state, the same for every method.

Read ``CoTrainer.step`` first; it is the picture of the architecture in code. Nothing is trained before the
update: a step that is interrupted during its rollouts is repeated from its beginning by the resumed run, token for
token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from cotrain.algorithms.contract import (
    Batch,
    ContextTokens,
    LossTerm,
    Sample,
    UpdateReport,
    check_credit,
    check_unchanged,
    fields_of_object,
    split_context,
)
from cotrain.algorithms.policy_loss import LOOSE, with_ratio_bounds
from cotrain.algorithms.samples import sample_of, token_limit
from cotrain.config.evaluation import held_out
from cotrain.config.policies import samples_in_int8
from cotrain.config.recipe import RAMP, Objective, Recipe
from cotrain.config.schedule import Phase, stream_of, train_task
from cotrain.config.tokenizers import check_same_tokenizers, policies_read
from cotrain.core.seeding import rng_of, seed_of
from cotrain.core.statistics import Estimate
from cotrain.core.types import UNLABELLED, Episode, State, Store, Task, Trace, take_fields
from cotrain.distributed.contract import Backend
from cotrain.distributed.local import LocalBackend
from cotrain.inference.contract import Engine
from cotrain.metrics.steps import flops_of
from cotrain.rollout.event_loop import EngineEventLoop
from cotrain.rollout.role import Role
from cotrain.rollout.runner import BatchProgress, CollectHeldOut, RolloutRunner
from cotrain.trainer.async_rollouts import (
    Overlap,
    RolloutBatch,
    RolloutCounter,
    RolloutPipeline,
    StoppableEngine,
    Timer,
    check_async_steps,
    run_beside,
)
from cotrain.trainer.checks import check_comparable, check_group_sizes, check_rollouts, check_servers_answer
from cotrain.trainer.evaluation import (
    collect_at_once,
    evaluation_seed,
    fixed_solutions_group_size,
    measure_protocol,
    renamed_as_greedy,
)
from cotrain.trainer.flops import FlopsMeter, Sequences
from cotrain.trainer.policy_store import PolicyStore
from cotrain.trainer.step_meter import LearnedPolicy, StepMeter, StepResult, count_sampled_tokens

WrapEngine = Callable[[Engine], Engine]  # an engine around another one
# The keys of CoTrainer.state() on disk, which are never renamed. "finished" is ``finished_steps``.
STATE_FIELDS = ("finished", "tokens", "rollback_count", "policies", "algorithms")


class CoTrainer:
    """The training loop of one run: its policies, held by a backend, and their update at each step."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        backend: Backend | None = None,
        wrap_engine: WrapEngine | None = None,
        async_steps: int = 0,
    ) -> None:
        """
        Args:
            backend: who runs the policies; None: this process, on its CPU.
            wrap_engine: puts something around the engine (a test's random latency, a recorder).
            async_steps: K > 0: the rollouts of step t + K are collected while step t is updated
                (``async_rollouts.py``); 0: each step is collected with the weights of the update before.
        """
        check_async_steps(recipe, async_steps)
        self.recipe = recipe
        self.backend: Backend = backend or LocalBackend()
        # The backend loads each policy, or connects to its server, and gives a handle by which it is used.
        self.policies = PolicyStore(self.backend.open(recipe.policies, seed=recipe.seed))
        check_same_tokenizers(recipe, self.policies.renderers)
        self.flops_meter = FlopsMeter(self.policies)
        # For each policy that is trained: the number of updates over which its learning rate decays. These are its
        # updates in the whole run, or in the first ``horizon`` steps: a run that was made longer keeps its decay.
        horizon = recipe.horizon or recipe.steps
        self.planned_updates = {
            policy: recipe.planned_updates(policy, steps=horizon) for policy in self.policies.trained_names
        }

        # What training has come to so far. A resumed run reads FLOPs and seconds back from its files.
        self.finished_steps = 0
        self.rollback_count = 0  # how often the run rolled back to a checkpoint and changed its seed
        self.tokens = 0  # sampled in training, summed over roles
        self.flops = 0
        self.seconds = 0.0
        self.algorithm_states: dict[str, State] = {name: {} for name in recipe.objectives}  # by objective
        self._has_begun_update = False  # True from the first update of a step until the step is finished
        # Name → data that grow over the run and that protocols read, such as past problems (``rollout/stores.py``).
        self.stores: dict[str, Store] = dict(recipe.stores)

        # Three engines, one around the other:
        #
        #     engine              the backend's
        #     _stoppable_engine   looks for a stop signal before each advance of ``engine``; evaluations sample from it
        #     _training_engine    what ``wrap_engine`` puts around ``_stoppable_engine``; training samples from it
        self.engine = self.backend.engine
        self._stoppable_engine = StoppableEngine(self.engine)
        self._training_engine: Engine = wrap_engine(self._stoppable_engine) if wrap_engine else self._stoppable_engine
        # One event loop for all rollouts, as connections to remote policies belong to a loop.
        self._loop = EngineEventLoop()
        self.runner = self.make_runner(self.seed, engine=self._training_engine)
        # True: the backend answers requests during an update, with the weights of before it. With ``async_steps`` it is
        # asked to do so; some cannot.
        overlaps_update = async_steps > 0 and self.backend.try_to_overlap()
        self.rollouts = RolloutPipeline(self._stoppable_engine, async_steps, overlaps_update=overlaps_update)
        self.evaluation_runner = self.make_runner(evaluation_seed(recipe.seed))
        self.eval_progress: BatchProgress | None = None  # shows how far an evaluation is

    def make_runner(
        self, seed: int, *, roles: Mapping[str, Role] | None = None, engine: Engine | None = None
    ) -> RolloutRunner:
        """A rollout runner over these policies, by default with the recipe's roles. All share one event loop."""
        return RolloutRunner(
            engine or self._stoppable_engine,
            self.policies.renderers,
            self.recipe.roles if roles is None else roles,
            seed,
            loop=self._loop,
        )

    def stop_on(self, get_signal: Callable[[], int]) -> None:
        """Before each advance of the engine, ask ``get_signal`` for the signal that asks the run to stop; 0: none."""
        self._stoppable_engine.get_signal = get_signal

    def close(self) -> None:
        """Close the backend, and what protocols hold open, such as a server of tools."""
        self.rollouts.close()
        for phase in self.recipe.schedule.phases:
            _close_protocol_resources(phase)
        self._loop.run_to_end(self.backend.close())  # in this loop, to which connections to servers belong
        self._loop.close()

    @property
    def seed(self) -> int:
        """The seed of all draws and samples in training; another one after each rollback."""
        if self.rollback_count == 0:
            return self.recipe.seed
        return seed_of("retry", self.recipe.seed, self.rollback_count)

    def reseed(self, rollback_count: int) -> None:
        """Set the seed of all later draws and samples to that of this rollback count."""
        self.rollback_count = rollback_count
        self.runner = self.make_runner(self.seed, engine=self._training_engine)
        self.rollouts.discard()

    def reset_run(self) -> None:
        """Reset counters and states to those of the first step. To be called after
        ``backend.restart_lost_processes``, which gives the policies their initial weights.

        ``flops`` and ``seconds`` are not reset here: the caller sums them up again over its files (``runs/run.py``)."""
        self.algorithm_states = {name: {} for name in self.recipe.objectives}
        self._has_begun_update = False
        self.stores = dict(self.recipe.stores)
        self.finished_steps = 0
        self.tokens = 0
        self.flops_meter = FlopsMeter(self.policies)
        self.reseed(0)
        self._publish_all_versions()

    @property
    def is_done(self) -> bool:
        """True when all steps are done or one of the recipe's budgets is spent."""
        recipe = self.recipe  # its ``tokens``, ``flops``, ``seconds`` and ``updates`` are budgets; None: there is none
        if self.finished_steps >= recipe.steps:
            return True
        return (
            is_spent(self.tokens, recipe.tokens)
            or is_spent(self.flops, recipe.flops)
            or is_spent(self.seconds, recipe.seconds)
            or is_spent(self.leading_steps, recipe.updates)  # ``updates`` counts steps of the leading objective
        )

    @property
    def can_redo_step(self) -> bool:
        """Whether a run that failed in a step can be saved as it was before that step, and do the step again.

        False once an update of the step has begun. False also with ``async_steps``: the step's rollouts were collected
        ahead and would be saved, so the step would fail again in the same way."""
        return not self._has_begun_update and self.rollouts.async_steps == 0

    @property
    def leading_steps(self) -> int:
        """Finished steps that train the leading objective, the recipe's first one."""
        schedule = self.recipe.schedule
        steps = schedule.steps_by_phase(self.finished_steps)
        return sum(steps[phase.name] for phase in schedule.phases if self.recipe.leading_objective in phase.objectives)

    def is_evaluation_due(self) -> bool:
        """True when validation problems are to be measured now: at the start, at the end, and every so many steps."""
        if not self.recipe.evaluate_every:
            return False
        return self.finished_steps == 0 or self.is_done or self._is_evaluation_step()

    def _is_evaluation_step(self) -> bool:
        """True every ``evaluate_every`` steps. In a run with a budget of leading steps only those are counted."""
        every = self.recipe.evaluate_every
        if self.recipe.updates is None:
            return self.finished_steps % every == 0
        last_phase = self.recipe.schedule.phase_at(self.finished_steps - 1)
        last_was_leading = self.recipe.leading_objective in last_phase.objectives
        return last_was_leading and self.leading_steps % every == 0

    def step(self) -> StepResult:
        """Collect a batch, compute advantages, update every policy that is due, publish the weights.

        Raises Interrupted before the update, never in it."""
        step = self.finished_steps
        phase = self.recipe.schedule.phase_at(step)
        meter = self._begin_measuring(step, phase)
        with meter.stage("rollout"):
            self.policies.reset_optimizers(self.recipe.due_for_new_optimizer(step))
            # A policy with ``reset_to_start`` goes back to its initial weights after every ``reset_every`` updates.
            restarted = self.policies.restart_weights_if_iteration_over()
            self._publish_versions(restarted)
            # Collects them now, unless that was done during an earlier update (``async_rollouts.py``).
            rollouts = self.rollouts.take(step, self._collect_step, until=self.recipe.steps)
        check_rollouts(step, phase, rollouts.episodes, self.runner.set_aside)
        # ``outside``: counts of requests to policies that answer from other servers.
        check_servers_answer(f"step {step + 1}", self.policies, rollouts.outside)
        meter.add_rollouts(rollouts)
        self._learn(phase, rollouts.episodes, meter)
        self.rollouts.drop_oldest()  # those of this step, which until here were kept for a checkpoint
        self.stores = self._stores_after(rollouts.episodes, step)
        meter.add_stores(self.stores)
        if self.recipe.has_ramp:  # a curriculum: the next step draws from this share of the problems
            meter.add_share(self.recipe.share_at(step + 1, self.stores))
        self.tokens += count_sampled_tokens(rollouts.episodes, self.policies)
        result = meter.finish(self.tokens)
        self.flops += flops_of(result.row)  # from the row, so that a resumed run adds up the same numbers
        self.seconds += sum(result.seconds.values())
        self.finished_steps += 1
        self._has_begun_update = False
        return result

    def _stores_after(self, episodes: Sequence[Episode], step: int) -> dict[str, Store]:
        """The stores as they are after a step with these episodes."""
        if not self.stores:
            return {}
        from cotrain.rollout.stores import store_after  # most runs have no store

        return {name: store_after(name, store, episodes, step) for name, store in self.stores.items()}

    def _begin_measuring(self, step: int, phase: Phase) -> StepMeter:
        """The meter of a step that begins."""
        return StepMeter(
            step,
            phase,
            recipe=self.recipe,
            policies=self.policies,
            flops=self.flops_meter,
            process_stats=self.backend.process_stats,
        )

    def _learn(self, phase: Phase, episodes: Sequence[Episode], meter: StepMeter) -> None:
        """Update the policies that are due and publish their weights."""
        changed: list[str] = []
        # ``overlap``: rollouts of a later step that are collected meanwhile, usually none. Waiting for them counts as
        # "rollout", not as "update".
        overlap = self._overlap_with(self.finished_steps, timer=partial(meter.stage, "rollout"))
        with self._states_restored_on_error(), overlap:
            for names in update_groups(phase):
                changed += self._update_policies(names, episodes, meter)
            overlap.end_update()
            with meter.stage("update"):
                unique = list(dict.fromkeys(changed))
                # A function, since rollouts that run now call it themselves, between two advances of the engine.
                overlap.publish(lambda: self._publish_versions(unique))

    @contextmanager
    def _states_restored_on_error(self) -> Iterator[None]:
        """After an error before the first update, restore the states that algorithms had when the block began."""
        states_before = dict(self.algorithm_states)
        try:
            yield
        except Exception:
            if not self._has_begun_update:
                self.algorithm_states = states_before
            raise

    def _overlap_with(self, step: int, timer: Timer) -> Overlap:
        """What is collected during the update of this step: usually nothing (``async_rollouts.py``). ``timer`` counts
        the seconds in which the run waits for it."""
        # With ``async_steps``: the rollouts of a later step, by all policies, with the weights of before the update.
        if self.rollouts.async_steps > 0:
            return self.rollouts.collect_during_update(step, self._collect_step, until=self.recipe.steps, timer=timer)

        # Else the next step's rollouts, as far as they need none of the policies that this update holds.
        if not self._may_begin_early(step + 1):
            return Overlap(timer)  # nothing is collected
        held_policies = self._held_policies(step)
        if held_policies is None:
            return Overlap(timer)
        return self.rollouts.collect_early(step + 1, self._collect_step, held_policies, timer=timer)

    def _may_begin_early(self, step: int) -> bool:
        """True if nothing but weights can change the rollouts of this step while the step before it is updated."""
        if step >= self.recipe.steps:
            return False
        # Stores grow when the step before is over: those of a protocol, and the share of an adaptive ramp.
        reads_stores = bool(self.recipe.schedule.phase_at(step).stores) or RAMP in self.stores
        return not reads_stores and not self.policies.any_may_restart

    def _held_policies(self, step: int) -> Collection[str] | None:
        """The policies that cannot be sampled from while this step is updated. None: that holds for all of them, and no
        rollout can begin meanwhile."""
        due = [self.recipe.objectives[name] for name in self.recipe.schedule.phase_at(step).objectives]

        # Policies that get new weights: those that are trained, each once, and the copies that follow them.
        learners = list(dict.fromkeys(objective.policy for objective in due))
        changed = list(learners)
        for policy in learners:
            changed += [follower.name for follower in self.policies.followers_of(policy)]

        # Policies that compute something in the update: also those that are asked for log-probabilities or values.
        computing = set(changed)
        for objective in due:
            computing |= policies_read(objective.algorithm.needs())

        # The backend decides: where it keeps a copy for sampling, a policy that only computes can be sampled from.
        return self.backend.held_while_learning(computing, changed)

    def _collect_step(self, step: int) -> RolloutBatch:
        """Draw the problems of a step and collect its rollouts with the published weights."""
        # The engine looks for a stop signal at each advance. A run whose roles are all Python programs never advances
        # it, so the signal is looked for here, too.
        self._stoppable_engine.raise_if_stopped()
        phase = self.recipe.schedule.phase_at(step)
        counter = RolloutCounter(self.engine, self.policies)  # counts what happens from here to ``result_of`` below
        tasks = self.draw_tasks(phase, step)

        def collect(batch: Sequence[Task], first_position: int = 0) -> tuple[Episode, ...]:
            return self.runner.collect(
                phase.protocol,
                batch,
                step=step,
                group_size=phase.group_size or self.recipe.group_size,
                first_position=first_position,
                stores={name: self.stores[name] for name in phase.stores},
            )

        with counter.clock.stage("rollout"):
            # ``refill``: rounds in which problems whose answers all earn the same are replaced.
            if self.recipe.refill and self.recipe.leading_objective in phase.objectives:
                from cotrain.trainer.resample import with_replacements

                share = self.recipe.share_at(step, self.stores)
                episodes = with_replacements(self.recipe, step, self.seed, tasks, collect, share=share)
            else:
                episodes = collect(tasks)
        check_comparable(step, phase, self.recipe.objectives, episodes, self.runner)
        return counter.result_of(episodes)

    def _update_policies(self, due: Sequence[str], episodes: Sequence[Episode], meter: StepMeter) -> list[str]:
        """Update the policies of these objectives on the step's episodes; returns those that have new weights."""
        changed: list[str] = []
        with meter.stage("update"):
            terms: dict[str, list[LossTerm]] = {}  # policy → the objectives that it is updated on, with their samples
            for name in due:
                policy = self.recipe.objectives[name].policy
                terms.setdefault(policy, []).append(self._loss_term(name, episodes, meter))
            for updated in self._update_concurrently(terms):
                meter.add_update(updated, terms[updated.policy])
                changed += updated.changed_policies
        return changed

    def _loss_term(self, name: str, episodes: Sequence[Episode], meter: StepMeter) -> LossTerm:
        """Make an objective's samples: annotated with values and scores, then with advantages, at last with the
        reference's log-probabilities."""
        objective = self.recipe.objectives[name]
        algorithm = objective.algorithm
        version = self.policies[objective.policy].version  # the number of its updates so far
        planned = self.planned_updates[objective.policy]  # updates that the recipe will make; decays run on these two
        traces = traces_of(objective, episodes)
        check_group_sizes(name, objective, traces, len(episodes))
        if self.rollouts.async_steps:
            meter.add_lag(traces, objective.policy, version)
        with meter.stage("annotate"):
            annotated = self._make_samples(name, traces)
        with meter.stage("credit"):  # gives the samples their advantages
            batch = Batch(samples=annotated, updates=version, planned=planned)
            fields_before = fields_of_object(algorithm)
            state_before = self.algorithm_states[name]
            returned = algorithm.credit(batch, state_before)
            credit, self.algorithm_states[name] = check_credit(algorithm, returned)
            check_unchanged(algorithm, fields_before, state_before)  # raises if it kept something in a field
        with meter.stage("reference"):
            samples = self._with_reference(name, credit.samples)
            # An engine with weights of its own may give other log-probabilities than the learner. A sample whose
            # π_learner/π_engine, averaged over its tokens, is out of the bounds gets no policy gradient. Weights in
            # int8 differ from the learner's on every backend, so such a policy always has bounds: the loose ones.
            in_int8 = samples_in_int8(self.recipe.policies[objective.policy])
            samples = with_ratio_bounds(samples, LOOSE if in_int8 else self.backend.bounds)
        meter.add_credit(name, credit, annotated=annotated, scored=samples)
        return LossTerm(name=name, algorithm=algorithm, samples=samples, weight=objective.weight, planned=planned)

    def _update_concurrently(self, terms: Mapping[str, Sequence[LossTerm]]) -> list[LearnedPolicy]:
        """Update each policy; the results in the order of ``terms``. A lane is a device or a process of the backend:
        policies of one lane are updated one after the other, those of different lanes at once, in threads."""
        lanes: dict[str, list[str]] = {}  # lane → its policies
        for policy in terms:
            lanes.setdefault(self.backend.lane_of(policy), []).append(policy)
        updates: dict[str, LearnedPolicy] = {}

        def update_lane(policies: Sequence[str]) -> None:
            for policy in policies:
                updates[policy] = self._update_policy(policy, terms[policy])

        run_beside([partial(update_lane, policies) for policies in lanes.values()])
        return [updates[policy] for policy in terms]

    def _update_policy(self, policy: str, terms: Sequence[LossTerm]) -> LearnedPolicy:
        """Update one policy on this batch, and after each update the copies that follow it."""
        learner = self.policies[policy]
        followers = self.policies.followers_of(policy)
        reports: list[UpdateReport] = []
        changed: list[str] = []
        self._has_begun_update = True
        for _ in range(self.recipe.updates_per_batch(policy)):
            report = learner.update(terms)
            reports.append(report)
            if not report.stepped:  # there were no samples, or the gradient was not finite
                break
            changed.append(policy)
            for follower in followers:
                # ``planned``: updates that ``policy`` will make. A follower's rate of averaging may change over them.
                has_new_weights = follower.follow(learner, planned=self.planned_updates[policy])
                if has_new_weights:
                    changed.append(follower.name)
        return LearnedPolicy(policy=policy, reports=tuple(reports), changed_policies=tuple(changed))

    def draw_tasks(self, phase: Phase, step: int) -> list[Task]:
        """The step's problems: the same for all recipes with one seed, so that comparisons of methods are paired."""
        labelled = self._draw_from("train", phase, step)
        unlabelled = self._draw_from(UNLABELLED, phase, step)
        if self.recipe.audits is not None:
            # Unlabelled problems do have gold answers, which are read for metrics only. They are kept for ``audits``
            # problems a step and hidden in the rest.
            rng = rng_of("audits", self.seed, step)
            audited = rng.sample(range(len(unlabelled)), min(self.recipe.audits, len(unlabelled)))
            unlabelled = hide_truth(unlabelled, except_at=audited)
        return [*labelled, *unlabelled]

    def _draw_from(self, split: str, phase: Phase, step: int) -> list[Task]:
        """The next problems of a split, after those that earlier steps of the same stream drew."""
        # A stream is an endless sequence of problems. Phases that train the leading objective share one, so that two
        # recipes with one seed train it on the same problems, whatever other phases they have.
        schedule = self.recipe.schedule
        leading = self.recipe.leading_objective
        stream = stream_of(phase, leading)
        counts = {other.name: self._count_tasks(split, other) for other in schedule.phases}  # problems a step, by phase
        first = schedule.position_in_stream(step, leading, counts)  # the number of problems that earlier steps drew
        last = first + counts[phase.name]
        # Curriculum: only the first ``share`` of the problems; 1.0: all of them.
        share = self.recipe.share_at(step, self.stores)
        return [
            train_task(self.recipe.tasks, self.seed, stream, position, split=split, share=share)
            for position in range(first, last)
        ]

    def _count_tasks(self, split: str, phase: Phase) -> int:
        """How many problems of a split a step of this phase draws."""
        n_tasks = phase.tasks or self.recipe.tasks_per_step
        n_unlabelled = round(n_tasks * phase.unlabelled)  # ``unlabelled`` is a share
        if split == UNLABELLED:
            return n_unlabelled
        return n_tasks - n_unlabelled

    def _make_samples(self, name: str, traces: Sequence[Trace]) -> tuple[Sample, ...]:
        """Make a training sample of each trace, with the values and scores that advantages need."""
        objective = self.recipe.objectives[name]
        needs = objective.algorithm.needs()
        # All roles of an objective have one temperature (checked by ``config/recipe.py``).
        temperature = needs.temperature or training_temperature(self.recipe.roles[objective.role])
        if not traces:
            return ()
        # Tokens that the policy sampled, apart from context tokens: what tools and users said between them.
        splits = [split_context(trace) for trace in traces]
        sequences = [(split.sampled.prompt_ids, split.sampled.token_ids) for split in splits]
        context_tokens = [split.context_tokens for split in splits]

        values: Sequence[torch.Tensor] | None = None  # a critic's values, for each trace
        if needs.value_policy is not None:
            values = self._score_tokens(needs.value_policy, sequences, context_tokens)
        logprobs: dict[str, Sequence[torch.Tensor]] = {}  # policy → its log-probabilities, for each trace
        for policy in needs.scoring_policies:
            logprobs[policy] = self._score_tokens(policy, sequences, context_tokens, temperature)

        samples: list[Sample] = []
        for i, (trace, split) in enumerate(zip(traces, splits, strict=True)):
            sample = sample_of(
                split.sampled,
                context_tokens=split.context_tokens,
                temperature=temperature,
                values=None if values is None else values[i],
                scores={policy: of_policy[i] for policy, of_policy in logprobs.items()},  # those of this trace
                limit=self._token_limit(trace),
            )
            samples.append(sample)
        return tuple(samples)

    def _token_limit(self, trace: Trace) -> int:
        """The most tokens that this trace could have had: for the penalty on overlong answers (DAPO)."""
        max_tokens = self.recipe.roles[trace.role].sampling.max_tokens
        return token_limit(trace, max_tokens, self.runner.renderers[trace.policy].stop_ids)

    def _with_reference(self, name: str, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """Add the reference policy's log-probabilities to the samples if the loss needs them."""
        reference = self.recipe.objectives[name].algorithm.needs().reference_policy
        if reference is None or not samples:
            return tuple(samples)
        scores: dict[str, torch.Tensor] = {}  # by the sample's key
        # One call of ``logprobs`` has one temperature, so samples are scored in groups of equal temperature.
        for temperature in sorted({s.temperature for s in samples}):
            selected = [sample for sample in samples if sample.temperature == temperature]
            sequences = [(sample.prompt_ids, sample.token_ids) for sample in selected]
            context_tokens = [sample.context_tokens for sample in selected]
            logprobs = self._score_tokens(reference, sequences, context_tokens, temperature)
            scores |= {sample.key: score for sample, score in zip(selected, logprobs, strict=True)}
        return tuple(replace(sample, reference=scores[sample.key]) for sample in samples)

    def _score_tokens(
        self, policy: str, sequences: Sequences, context_tokens: Sequence[ContextTokens], temperature: float = 1.0
    ) -> list[torch.Tensor]:
        """A policy's log-probabilities of the sampled tokens of each sequence; a critic's value before each of them.
        Counts the FLOPs. ``sequences``: (prompt ids, sampled ids) of each."""
        self.flops_meter.count_scoring(policy, sequences, context_tokens)
        # ``logprobs`` returns whatever the policy's head predicts, so values where it is a critic.
        return self.policies[policy].logprobs(sequences, temperature=temperature, context_tokens=context_tokens)

    def evaluate(
        self, split: str, count: int, *, group_size: int | None = None, collect: CollectHeldOut = collect_at_once
    ) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """Evaluate on ``count`` problems of a held-out split, chosen by the seed, the same throughout the run.
        ``collect``: collects the episodes."""
        evaluation = self.recipe.evaluation
        tasks = held_out(self.recipe.tasks, split, count, self.recipe.seed)
        runner = self.evaluation_runner
        runner.progress = self.eval_progress
        size = group_size or evaluation.group_size
        with self.checking_servers(f"held-out problems of {split}"):
            metrics, episodes = measure_protocol(
                evaluation, runner, tasks, split=split, group_size=size, collect=collect
            )
        if evaluation.implicit_rewards:
            from cotrain.trainer.implicit_reward_evaluation import implicit_reward_figures

            metrics |= implicit_reward_figures(evaluation.implicit_rewards, episodes, self.policies, self.recipe.roles)
        return metrics, episodes

    def evaluate_on_fixed_solutions(
        self, split: str, count: int, *, greedy: bool = False
    ) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """Evaluate verifiers on the solutions of a frozen solver, which are the same before and after training.

        ``greedy``: measure twice, the second time with verifiers at temperature 0, on the same solutions."""
        tasks = held_out(self.recipe.tasks, split, count, self.recipe.seed)
        with self.checking_servers(f"fixed solutions of {split}"):
            metrics, episodes = self._measure_on_fixed_solutions(split, tasks)
            if greedy:
                greedy_metrics, _ = self._measure_on_fixed_solutions(split, tasks, greedy_verifiers=True)
                metrics |= renamed_as_greedy(greedy_metrics)
        return metrics, episodes

    def _measure_on_fixed_solutions(
        self, split: str, tasks: Sequence[Task], *, greedy_verifiers: bool = False
    ) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """Measure once: metrics of the verifiers on solutions of frozen policies. ``greedy_verifiers``: at temperature
        0; the solutions keep their own."""
        evaluation = self.recipe.evaluation
        roles: dict[str, Role] = {}
        for name, role in self.recipe.roles.items():
            if name in evaluation.frozen_roles:
                roles[name] = replace(role, policy=evaluation.frozen_roles[name])
            elif greedy_verifiers:
                roles[name] = role.with_temperature(0.0)
            else:
                roles[name] = role

        runner = self.make_runner(evaluation_seed(self.recipe.seed), roles=roles)
        runner.progress = self.eval_progress
        runner.set_aside = self.evaluation_runner.set_aside  # so that what breaks off here is told, too
        size = fixed_solutions_group_size(evaluation)
        # Not ``also_greedy``: that makes the solver greedy, too, and the solutions have to stay the same.
        metrics, episodes = measure_protocol(evaluation, runner, tasks, split=split, group_size=size, also_greedy=False)
        of_verifiers: dict[str, Estimate] = {}
        for key, estimate in metrics.items():
            role_name, _, _ = key.partition("/")  # keys are "role/metric"
            if role_name not in evaluation.frozen_roles:
                of_verifiers[key] = estimate
        return of_verifiers, episodes

    @contextmanager
    def checking_servers(self, where: str) -> Iterator[None]:
        """Raise ServerSilent if a server left most requests of the block unanswered. ``where`` names the block in the
        error."""
        before = self.policies.outside_counts()
        yield
        counts = {key: value - before[key] for key, value in self.policies.outside_counts().items()}
        check_servers_answer(where, self.policies, counts)

    def set_aside(self) -> dict[str, str]:
        """Task id → why its prompt did not fit a context."""
        return self.runner.set_aside | self.evaluation_runner.set_aside

    def state(self) -> State:
        state: State = {
            "finished": self.finished_steps,
            "tokens": self.tokens,
            "rollback_count": self.rollback_count,
            "policies": self.policies.state(),
            "algorithms": dict(self.algorithm_states),
        }
        if self.stores:
            from cotrain.rollout.stores import complete_state

            state["stores"] = {
                name: complete_state(name, store, self.recipe.stores[name]) for name, store in self.stores.items()
            }
        return state

    def load(
        self,
        state: Mapping[str, Any],
        tensors: Mapping[str, Mapping[str, Any]],
        rollouts_ahead: Mapping[str, Any] | None = None,
    ) -> None:
        """Restore what ``state`` gave, and the policies' tensors. ``rollouts_ahead``: what ``rollouts.state`` gave, the
        rollouts that were collected and not learned from yet."""
        saved = require_fields(state, state_fields(self.recipe), owner="run")
        self.policies.load(saved["policies"], tensors)
        self.algorithm_states = require_fields(saved["algorithms"], self.recipe.objectives, owner="run's algorithms")
        if self.stores:
            store_states = require_fields(saved["stores"], self.recipe.stores, owner="run's stores")
            self.stores = {
                name: self.recipe.stores[name].restore_state(state_of_store)
                for name, state_of_store in store_states.items()
            }
        self._has_begun_update = False
        self.finished_steps = int(saved["finished"])
        self.tokens = int(saved["tokens"])
        self.flops_meter = FlopsMeter(self.policies)  # drops the FLOPs that an interrupted step has counted
        self.reseed(int(saved["rollback_count"]))
        self.rollouts.load(rollouts_ahead)
        self._publish_all_versions()

    def _publish_all_versions(self) -> None:
        """Tell the backend the version of every policy that the engine samples from."""
        self._publish_versions(self.policies.served_versions())

    def _publish_versions(self, policies: Iterable[str]) -> None:
        """Tell the backend the new version of each of these policies that the engine samples from."""
        versions = self.policies.served_versions()
        for policy in policies:
            if policy in versions:
                self.backend.publish(policy, versions[policy])


def training_temperature(role: Role) -> float:
    """The temperature at which the log-probabilities of a role are taken: its own, and 1 of a greedy one."""
    return 1.0 if role.sampling.is_greedy else role.sampling.temperature


def is_spent(now: float, budget: float | None) -> bool:
    """Whether a budget is used up; there may be none."""
    return budget is not None and now >= budget


def update_groups(phase: Phase) -> list[tuple[str, ...]]:
    """Groups of objectives: those of one group are updated together, the groups one after the other."""
    if phase.in_turn:
        return [(name,) for name in phase.in_turn]
    return [phase.objectives]


def traces_of(objective: Objective, episodes: Sequence[Episode]) -> list[Trace]:
    """The traces that an objective learns from: what its roles said, where nothing failed."""
    return [
        trace
        for episode in episodes
        for trace in episode.traces
        if trace.role in objective.roles and trace.failure is None
    ]


def hide_truth(tasks: Sequence[Task], *, except_at: Collection[int]) -> list[Task]:
    """The tasks; those at other indices cannot be graded any more."""
    return [replace(task, gradable=task.gradable and index in except_at) for index, task in enumerate(tasks)]


def _close_protocol_resources(phase: Phase) -> None:
    """Close those arguments of a phase's protocol that can be closed, such as a server of tools."""
    for option in phase.options.values():
        close = getattr(option, "close", None)
        if callable(close):
            close()


def state_fields(recipe: Recipe) -> tuple[str, ...]:
    """The fields of a trainer's state: a run whose recipe has stores keeps these too."""
    return (*STATE_FIELDS, "stores") if recipe.stores else STATE_FIELDS


def require_fields(state: Mapping[str, Any], names: Iterable[str], *, owner: str) -> dict[str, Any]:
    """``state`` as a dict with exactly these fields. Raises StateError for a missing or unknown one, naming the
    owner."""
    fields = list(names)
    values = take_fields(owner, state, *fields)
    return dict(zip(fields, values, strict=True))
