"""The co-training loop: one step from schedule to saved state, the same for every method.

Read ``CoTrainer.step`` first; it is the picture of the architecture in code. Nothing changes before the update: a step
that is interrupted while it plays leaves the state of its beginning, and resuming plays it again, token for token.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cotrain.core.address import seed_of
from cotrain.core.errors import ConfigError, CotrainError, TooLong
from cotrain.core.state import State, take
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Task, TaskSource, Trace
from cotrain.engine.embedded import EmbeddedEngine
from cotrain.learn.contract import Annotated, Sample, Term
from cotrain.loop.cast import Cast, assemble
from cotrain.loop.evaluation import evaluate, evaluation_seed, held_out
from cotrain.loop.guard import MARK, NotFinite
from cotrain.loop.metrics import Row, reward_gap, role_metrics
from cotrain.loop.recipe import Recipe
from cotrain.loop.schedule import Phase
from cotrain.play.executor import TOO_LONG, Executor
from cotrain.tasks.grading import grade_outside

STATE = ("finished", "tokens", "retries", "cast", "algorithms")  # what a checkpoint has of a run
PROPORTION_OF_FAILURES = 0.5  # a step in which more episodes than this broke off stops the run


class Interrupted(Exception):
    """The run was asked to stop; its state is that of the last finished step."""

    def __init__(self, signal: int = 0) -> None:
        self.signal = signal  # number of the signal that asked, 0 when it was none
        super().__init__(f"asked to stop (signal {signal})")


class TooManyFailures(CotrainError):
    """Most episodes of a step failed: something is wrong that training on the rest would hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did."""

    row: Row  # deterministic metrics
    seconds: Mapping[str, float]  # wall time by stage: "play", "annotate", "credit", "reference", "update"
    engine_seconds: Mapping[str, float]  # of "play", by who was computing: "{policy}/seconds"
    episodes: tuple[Episode, ...]
    skipped: tuple[
        Mapping[str, Any], ...
    ]  # updates that were not finite: step, policy, and the addresses of each objective's samples


class StoppableEngine:
    """Any engine, with a question asked before each advance: which signal asks the run to stop, if any?"""

    def __init__(self, engine: EmbeddedEngine, stopping: Callable[[], int]) -> None:
        self.engine, self.stopping = engine, stopping
        self.sample, self.publish, self.counts = engine.sample, engine.publish, engine.counts

    def advance(self) -> bool:
        if asked := self.stopping():
            raise Interrupted(asked)
        try:
            return self.engine.advance()
        except FloatingPointError as error:
            raise NotFinite(str(error)) from error


class CoTrainer:
    """Owns the models, learners and engine of one run, and carries it from step to step."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        device: str = "cpu",
        stopping: Callable[[], int] = lambda: 0,
        wrap: Callable[[Any], Any] | None = None,
    ) -> None:
        """``wrap`` puts something around the engine (a test's random latency, a recorder)."""
        self.recipe = recipe
        self.cast: Cast = assemble(recipe.policies, seed=recipe.seed, device=device)
        self.engine = EmbeddedEngine(
            self.cast.speaking(),
            scorers=self.cast.scoring(),
            activate=self.cast.activate,
            device=device,
            autocast=self.cast.autocasts(),
        )
        self._stoppable: Any = StoppableEngine(self.engine, stopping)
        self._player = wrap(self._stoppable) if wrap else self._stoppable
        self.retries = 0  # how often it went back to a checkpoint, to go on with other draws
        self.executor = self._executor(self._player, self.seed)
        self.judge = self._executor(self._stoppable, evaluation_seed(recipe.seed))
        self.finished = 0  # steps done
        self.tokens = 0  # sampled in training so far, all roles
        self.algorithms = {name: copy.deepcopy(objective.by) for name, objective in recipe.objectives.items()}
        for name, objective in recipe.objectives.items():
            needs = objective.by.needs()
            read = {objective.policy, *needs.scores, *filter(None, (needs.reference, needs.values))}
            for speaker in {recipe.roles[role].policy for role in objective.roles}:
                self.cast.refuse_foreign(name, speaker, sorted(read - {speaker}))
        horizon = recipe.horizon or recipe.steps
        self.planned = {  # of each policy: its decays run on its own updates
            policy: recipe.schedule.planned([n for n, o in recipe.objectives.items() if o.policy == policy], horizon)
            for policy in self.cast.learners
        }

    def _executor(self, engine: Any, seed: int) -> Executor:
        roles, programs = self.recipe.roles, self.cast.programs()
        return Executor(engine, self.cast.renderers, roles, seed, grader=grade_outside, programs=programs)

    @property
    def seed(self) -> int:
        """Of what is drawn and sampled in training."""
        return seed_of("retry", self.recipe.seed, self.retries) if self.retries else self.recipe.seed

    def retry(self, retries: int) -> None:
        """Draw and sample from now on as at this attempt."""
        self.retries = retries
        self.executor = self._executor(self._player, self.seed)

    @property
    def done(self) -> bool:
        """Are all steps done, or all tokens spent?"""
        budget = self.recipe.tokens
        return self.finished >= self.recipe.steps or (budget is not None and self.tokens >= budget)

    def step(self) -> StepResult:
        """Schedule, draw, play, annotate, credit, refer, update, publish, observe. Raises Interrupted before the update."""
        step, clock = self.finished, _Clock()
        phase = self.recipe.schedule.phase_at(step)
        tasks = self.draw(phase, step)
        members = phase.members or self.recipe.group_size
        before = self.engine.counts()
        episodes = self.executor.play(phase.protocol, tasks, step=step, members=members, **phase.options)
        clock.lap("play")
        spent = {k: v - before[k] for k, v in self.engine.counts().items() if k.endswith("/seconds")}
        self._refuse_mass_failure(step, episodes)
        self._refuse_silence(phase, episodes)
        row: Row = {"step": step, "phase": phase.name, **role_metrics(episodes, list(self.recipe.roles))}
        gap = reward_gap(episodes)
        if gap is not None:
            row["gap"] = gap
        skipped: list[dict[str, Any]] = []
        batches: list[tuple[str, ...]] = [(name,) for name in phase.in_turn] or [phase.objectives]
        for due in batches:
            row |= self._learn(due, episodes, clock, skipped)
        silent = {*self.cast.programs(), *self.cast.scoring()}
        self.tokens += sum(len(t.token_ids) for e in episodes for t in e.traces if t.policy not in silent)
        row["tokens"] = self.tokens
        self.finished += 1
        return StepResult(row=row, seconds=clock.laps, engine_seconds=spent, episodes=episodes, skipped=tuple(skipped))

    def _learn(
        self, due: Sequence[str], episodes: Sequence[Episode], clock: _Clock, skipped: list[dict[str, Any]]
    ) -> Row:
        """These objectives at once: annotate, credit and refer for all of them, then one update of each policy; those that
        were not finite are added to ``skipped``."""
        row: Row = {}
        terms: dict[str, list[Term]] = {}
        for name in due:
            objective = self.recipe.objectives[name]
            spoken = [t for e in episodes for t in e.traces if t.role in objective.roles and t.failure is None]
            self._refuse_lonely(name, spoken, len(episodes))
            annotated = self._annotate(name, spoken)
            clock.lap("annotate")
            credit = self.algorithms[name].credit(
                annotated, updates=self.cast.updates[objective.policy], planned=self.planned[objective.policy]
            )
            row |= {f"{name}/{_credited(key)}": value for key, value in credit.metrics.items()}
            row |= {f"{name}/dropped/{reason}": count for reason, count in credit.dropped.items()}
            row[f"{name}/credit/samples"] = len(credit.samples)
            clock.lap("credit")
            samples = self._referred(name, credit.samples)
            row |= self._scored(name, annotated, samples)
            terms.setdefault(objective.policy, []).append(
                Term(name=name, algorithm=self.algorithms[name], samples=samples, weight=objective.weight)
            )
            clock.lap("reference")
        for policy, mine in terms.items():
            report = self.cast.learners[policy].update(mine)
            if report.stepped:
                self.cast.updates[policy] += 1
                changed = [policy, *self.cast.follow(policy, self.planned[policy])]
                self._publish(changed)
            row |= {f"{policy}/{_learned(k)}": v for k, v in report.metrics.items() if not k.endswith("seconds")}
            row |= {f"{policy}/updates": self.cast.updates[policy], f"{policy}/skipped": float(not report.stepped)}
            if report.skipped:
                row[f"{policy}/skipped/{report.skipped}"] = 1
            if policy + MARK in row:
                batch = {term.name: [sample.key for sample in term.samples] for term in mine}
                skipped.append({"step": self.finished, "policy": policy, "reason": report.skipped, "samples": batch})
            clock.lap("update")
        return row

    def draw(self, phase: Phase, step: int) -> list[Task]:
        """The step's problems. Addressed by (first objective due, how often it was due): the n-th generator step of two
        recipes with one seed draws the same problems."""
        count = phase.tasks or self.recipe.tasks_per_step
        first = self.recipe.schedule.occurrence(step) * count
        return [train_task(self.recipe.tasks, self.seed, phase.objectives[0], first + i) for i in range(count)]

    def _annotate(self, name: str, traces: Sequence[Trace]) -> list[Annotated]:
        """The traces with what credit has to know beforehand."""
        needs = self.algorithms[name].needs()
        warmth = self.recipe.roles[self.recipe.objectives[name].on].sampling.temperature or 1.0
        pairs = [(t.prompt_ids if t.learn_ids is None else t.learn_ids, t.token_ids) for t in traces]
        values = self.cast.score(needs.values, pairs) if needs.values and pairs else [None] * len(pairs)
        scores = {p: self.cast.score(p, pairs, temperature=warmth) for p in needs.scores if pairs}
        return [
            Annotated(trace=t, temperature=warmth, values=v, scores={p: of[i] for p, of in scores.items()})
            for i, (t, v) in enumerate(zip(traces, values, strict=True))
        ]

    def _referred(self, name: str, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """The samples with the reference's log-probabilities where the loss wants them: none is scored in vain."""
        reference = self.algorithms[name].needs().reference
        if reference is None or not samples:
            return tuple(samples)
        scores: dict[str, torch.Tensor] = {}
        for temperature in sorted({s.temperature for s in samples}):
            mine = [s for s in samples if s.temperature == temperature]
            found = self.cast.score(reference, [(s.prompt_ids, s.token_ids) for s in mine], temperature=temperature)
            scores |= {s.key: score for s, score in zip(mine, found, strict=True)}
        return tuple(replace(s, reference=scores[s.key]) for s in samples)

    def _scored(self, name: str, annotated: Sequence[Annotated], samples: Sequence[Sample]) -> Row:
        """Tokens that passed through a model beside sampling and learning, so that a needless pass shows."""
        values = sum(len(a.trace.token_ids) for a in annotated if a.values is not None)
        scores = sum(len(of) for a in annotated for of in a.scores.values())
        reference = sum(len(s.token_ids) for s in samples if s.reference is not None)
        row: Row = {f"{name}/scored/values": values, f"{name}/scored/reference": reference}
        return row | ({f"{name}/scored/scores": scores} if scores else {})

    def _refuse_lonely(self, name: str, traces: Sequence[Trace], episodes: int) -> None:
        """An algorithm that compares traces must get some to compare. A role that speaks in some episodes only (a digest of
        what a search found) may be alone by chance; then its traces have no spread and are counted as such."""
        if len(traces) < episodes:
            return
        least = self.algorithms[name].needs().group
        largest = max(Counter(t.group for t in traces).values(), default=least)
        if largest < least:
            raise ConfigError(
                f"objective {name!r} uses {type(self.algorithms[name]).__name__}, which compares at least {least} traces of "
                f"one group, but role {self.recipe.objectives[name].on!r} had {largest} in each; raise the group size"
            )

    def _refuse_mass_failure(self, step: int, episodes: Sequence[Episode]) -> None:
        failed = [e.failure for e in episodes if e.failure]
        if failed and set(failed) == {TOO_LONG} and len(failed) == len(episodes):
            raise TooLong(f"no problem of step {step} fits: {next(iter(self.executor.set_aside.values()))}")
        if len(failed) > PROPORTION_OF_FAILURES * len(episodes):
            raise TooManyFailures(
                f"step {step}: {len(failed)} of {len(episodes)} episodes failed, the first with: {failed[0]}"
            )

    def _refuse_silence(self, phase: Phase, episodes: Sequence[Episode]) -> None:
        if not any(episode.traces or episode.failure for episode in episodes):
            name = getattr(phase.protocol, "__qualname__", type(phase.protocol).__name__)
            raise ConfigError(
                f"phase {phase.name!r}: protocol {name!r} asked no role in any of {len(episodes)} episodes, so nothing can be "
                "learned; call one, as in `await roles.solver(problem=task.prompt)`"
            )

    def evaluate(
        self, split: str, count: int, *, members: int | None = None
    ) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """Figures on the first ``count`` problems of a held-out split."""
        evaluation = self.recipe.evaluation
        tasks = held_out(self.recipe.tasks, split, count)
        return evaluate(evaluation, self.judge, tasks, split=split, members=members or evaluation.members)

    def evaluate_fixed(self, split: str, count: int) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
        """The judging roles' figures on what frozen policies say: the same solutions before and after."""
        evaluation, swapped = self.recipe.evaluation, self.recipe.evaluation.fixed
        roles = {
            name: replace(role, policy=swapped[name]) if name in swapped else role
            for name, role in self.recipe.roles.items()
        }
        seed, programs = evaluation_seed(self.recipe.seed), self.cast.programs()
        still = Executor(self._stoppable, self.cast.renderers, roles, seed, grader=grade_outside, programs=programs)
        tasks = held_out(self.recipe.tasks, split, count)
        figures, played = evaluate(
            evaluation, still, tasks, split=split, members=max(1, evaluation.members // 4), greedy=False
        )
        return {key: value for key, value in figures.items() if key.split("/")[0] not in swapped}, played

    def set_aside(self) -> dict[str, str]:
        """Problems that did not fit a context so far, by id, and why."""
        return self.executor.set_aside | self.judge.set_aside

    def state(self) -> State:
        return {
            "finished": self.finished,
            "tokens": self.tokens,
            "retries": self.retries,
            "cast": self.cast.state(),
            "algorithms": {name: algorithm.state() for name, algorithm in self.algorithms.items()},
        }

    def load(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]]) -> None:
        finished, tokens, retries, cast, algorithms = take("run", state, *STATE)
        take("run's algorithms", algorithms, *self.algorithms)
        self.cast.load(cast, tensors)
        for name, algorithm in self.algorithms.items():
            algorithm.load(algorithms[name])
        self.finished, self.tokens = int(finished), int(tokens)
        self.retry(int(retries))
        self._publish(self.cast.versions())

    def _publish(self, policies: Iterable[str]) -> None:
        """Tell the engine the versions of these policies, if they speak."""
        versions = self.cast.versions()
        for policy in policies:
            if policy in versions:
                self.engine.publish(policy, versions[policy])


def train_task(source: TaskSource, seed: int, stream: str, position: int) -> Task:
    """The ``position``-th training problem of a stream. An endless source is drawn from by hash; a finite one is gone
    through in a new order each epoch, by a Feistel walk that needs no list."""
    size = source.size("train")
    if size is None:
        return source.get("train", seed_of("draw", seed, stream, position) % 2**40)
    epoch, place = divmod(position, size)
    return source.get("train", permuted(place, size, seed_of("epoch", seed, stream, epoch)))


def permuted(place: int, size: int, key: int) -> int:
    """A permutation of ``range(size)`` by cycle walking over a four-round Feistel network; constant memory."""
    half = max(1, (size - 1).bit_length() + 1) // 2 + 1
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(4):
            left, right = right, left ^ (seed_of(key, turn, right) & mask)
        place = (left << half) | right
        if place < size:
            return place


def _credited(key: str) -> str:
    """Name of a credit metric beside the role's own: a role and an objective may have one name."""
    return f"credit/{key}" if key == "traces" or key.startswith("reward/") else key


def _learned(key: str) -> str:
    """Name of a learner's metric beside the role's own."""
    return "learned_tokens" if key == "tokens" else key


class _Clock:
    """Wall seconds by stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._since
        self._since = now
