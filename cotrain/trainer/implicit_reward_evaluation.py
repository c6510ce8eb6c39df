"""Evaluation of an implicit reward model (PRIME), which scores solutions by log-ratios and never speaks.

PRIME's process rewards (arXiv 2502.01456, eq. 3) are log-ratios of one policy to another at the tokens of a solution.
Their sum over the solution is its word on the solution, their sum over a step its word on the step. It has no
threshold, so what is counted is order, among what was said to one problem::

    prm/pair_accuracy         pairs of a right and a wrong solution in which the right one has the larger sum
    prm/step_pair_accuracy    the same of steps, where the program that made a problem checks them
    solver/best@8             the solution with the largest sum is right
    generator/surprisal       mean −log π of a token of the right ones, where they are replies that were given

Equal sums count half; 0.5 is chance. Left out: solutions of several turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from cotrain.config.evaluation import ImplicitReward
from cotrain.core.notes import CORRECT, STEP_OK, STEPS
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Trace
from cotrain.metrics.clusters import Bounded, Share, defined_figures, make_figure, ratio
from cotrain.metrics.heldout import traces_by_task
from cotrain.metrics.verdicts import best_is_right
from cotrain.prompts.decoding import char_to_tokens
from cotrain.prompts.render import Rendering
from cotrain.rollout.role import Role
from cotrain.trainer.policy_store import PolicyStore

BEST_OF = 8
MOST_NATS = 100.0  # a token's surprisal counts as this at most, for the interval of a mean
SURPRISAL = Bounded(lambda sums: ratio(sums["nats"], sums["tokens"]), 0.0, MOST_NATS, frozenset(("nats", "tokens")))
ScoredTruth = tuple[float, bool]  # the sum of a solution or a step, and whether it is right


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSolution:
    """A solution, and what an implicit reward model says of each of its tokens."""

    trace: Trace
    logprobs: torch.Tensor  # [T] of the policy
    rewards: torch.Tensor  # [T] log-ratios to the reference; zeros without one

    @property
    def is_right(self) -> bool:
        return CORRECT.require(self.trace)

    @property
    def score_and_truth(self) -> ScoredTruth:
        return float(self.rewards.sum()), self.is_right


def implicit_reward_figures(
    scorers: Sequence[ImplicitReward], episodes: Sequence[Episode], policies: PolicyStore, roles: Mapping[str, Role]
) -> dict[str, Estimate]:
    """The figures of each verifier on ``episodes`` of held-out problems, whose truth was noted."""
    results: dict[str, Estimate] = {}
    for scorer in scorers:
        results |= _scorer_figures(scorer, episodes, policies, roles[scorer.role])
    return results


def implicit_reward_names(scorers: Sequence[ImplicitReward]) -> set[str]:
    """The names of all figures that ``implicit_reward_figures`` may give."""
    names: set[str] = set()
    for scorer in scorers:
        if scorer.replies:
            names.add(f"{scorer.policy}/surprisal")
        if scorer.reference is not None:
            names |= {f"{scorer.policy}/pair_accuracy", f"{scorer.policy}/step_pair_accuracy"}
            names.add(f"{scorer.role}/best@{BEST_OF}")
    return names


def _scorer_figures(
    scorer: ImplicitReward, episodes: Sequence[Episode], policies: PolicyStore, role: Role
) -> dict[str, Estimate]:
    solutions_by_task = _score_solutions(scorer, episodes, policies, role)
    if not any(solutions_by_task.values()):
        return {}
    renderer = policies.renderers[role.policy]
    counts = {task: _count_task(solutions, renderer) for task, solutions in solutions_by_task.items()}

    def total(name: str) -> float:
        return sum(row[name] for row in counts.values())

    figures = {}
    if scorer.replies:
        figures[f"{scorer.policy}/surprisal"] = make_figure(counts, SURPRISAL, total("tokens"))
    if scorer.reference is not None:
        pairs = Share("ordered", "pairs")
        step_pairs = Share("step_ordered", "step_pairs")
        best = Share("best", "enough")
        figures[f"{scorer.policy}/pair_accuracy"] = make_figure(counts, pairs, total("pairs"))
        figures[f"{scorer.policy}/step_pair_accuracy"] = make_figure(counts, step_pairs, total("step_pairs"))
        figures[f"{scorer.role}/best@{BEST_OF}"] = make_figure(counts, best, total("enough"))
    return defined_figures(figures)


def _score_solutions(
    scorer: ImplicitReward, episodes: Sequence[Episode], policies: PolicyStore, role: Role
) -> dict[int, list[ScoredSolution]]:
    """The solutions to each problem that are one turn and whose truth is known, scored by the verifier."""
    traces_of = {
        task: [trace for trace in traces if CORRECT.of(trace) is not None and not trace.turns]
        for task, traces in traces_by_task(episodes, scorer.role).items()
    }
    pairs = [(trace.prompt_ids, trace.token_ids) for traces in traces_of.values() for trace in traces]
    if not pairs:
        return {}
    temperature = 1.0 if role.sampling.is_greedy else role.sampling.temperature
    logprobs = policies[scorer.policy].logprobs(pairs, temperature=temperature)
    reference = logprobs
    if scorer.reference is not None:
        reference = policies[scorer.reference].logprobs(pairs, temperature=temperature)
    scores = iter(zip(logprobs, reference, strict=True))
    solutions: dict[int, list[ScoredSolution]] = {}
    for task, traces in traces_of.items():
        solutions[task] = []
        for trace in traces:
            own, other = next(scores)
            solutions[task].append(ScoredSolution(trace=trace, logprobs=own, rewards=(own - other).double()))
    return solutions


def _count_task(solutions: Sequence[ScoredSolution], renderer: Rendering) -> dict[str, float]:
    """The counts of the solutions to one problem."""
    scored_solutions = [solution.score_and_truth for solution in solutions]
    scored_steps: list[ScoredTruth] = []
    for solution in solutions:
        scored_steps += _score_steps(solution.trace, solution.rewards, renderer)
    right = [solution for solution in solutions if solution.is_right]
    enough = len(scored_solutions) >= BEST_OF
    chosen = scored_solutions[:BEST_OF]
    best = enough and best_is_right([score for score, _ in chosen], [is_right for _, is_right in chosen])
    return {
        **_pair_counts(scored_solutions, ""),
        **_pair_counts(scored_steps, "step_"),
        "nats": -sum(float(solution.logprobs.sum()) for solution in right),
        "tokens": float(sum(len(solution.trace.token_ids) for solution in right)),
        "best": float(best),
        "enough": float(enough),
    }


def _score_steps(trace: Trace, rewards: torch.Tensor, renderer: Rendering) -> list[ScoredTruth]:
    """Each step's sum and truth; [] where steps were not checked."""
    right = STEP_OK.of(trace)
    spans = STEPS.of(trace)
    if not right or not spans or len(right) != len(spans):
        return []
    ends = renderer.offsets(trace.token_ids)
    tokens = [char_to_tokens(ends, start, end) for start, end, _ in spans]
    return [(float(rewards[a:b].sum()), ok) for (a, b), ok in zip(tokens, right, strict=True)]


def _pair_counts(judged: Sequence[ScoredTruth], what: str) -> dict[str, float]:
    right = [score for score, ok in judged if ok]
    wrong = [score for score, ok in judged if not ok]
    ordered = sum((a > b) + 0.5 * (a == b) for a in right for b in wrong)
    return {f"{what}ordered": float(ordered), f"{what}pairs": float(len(right) * len(wrong))}
