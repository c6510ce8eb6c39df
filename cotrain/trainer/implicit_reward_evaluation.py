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

import torch

from cotrain.config.evaluation import Implied
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
MOST_NATS = 100.0  # of a token, for the interval of a mean
SURPRISAL = Bounded(lambda sums: ratio(sums["nats"], sums["tokens"]), 0.0, MOST_NATS, frozenset(("nats", "tokens")))
ScoredTruth = tuple[float, bool]  # its sum, and the truth


def implied_figures(
    judges: Sequence[Implied], episodes: Sequence[Episode], policies: PolicyStore, roles: Mapping[str, Role]
) -> dict[str, Estimate]:
    """Of each judge on ``episodes``, of held-out problems, with the truth noted."""
    results: dict[str, Estimate] = {}
    for judge in judges:
        results |= _judge_figures(judge, episodes, policies, roles[judge.role])
    return results


def _judge_figures(
    judge: Implied, episodes: Sequence[Episode], policies: PolicyStore, role: Role
) -> dict[str, Estimate]:
    task_traces = {
        task: [t for t in traces if CORRECT.of(t) is not None and not t.turns]
        for task, traces in traces_by_task(episodes, judge.role).items()
    }
    flat = [trace for traces in task_traces.values() for trace in traces]
    if not flat:
        return {}
    pairs = [(trace.prompt_ids, trace.token_ids) for trace in flat]
    temperature = 1.0 if role.sampling.is_greedy else role.sampling.temperature
    policy_logprobs = policies[judge.policy].logprobs(pairs, temperature=temperature)
    reference_logprobs = policy_logprobs
    if judge.reference is not None:
        reference_logprobs = policies[judge.reference].logprobs(pairs, temperature=temperature)
    rewards = {
        str(t.address): (a - b).double() for t, a, b in zip(flat, policy_logprobs, reference_logprobs, strict=True)
    }
    logs = {str(t.address): float(a.sum()) for t, a in zip(flat, policy_logprobs, strict=True)}
    renderer = policies.renderers[role.policy]
    counts = {}
    for task, traces in task_traces.items():
        token_rewards = [rewards[str(trace.address)] for trace in traces]
        scored_solutions = [
            (float(reward.sum()), CORRECT.require(trace)) for trace, reward in zip(traces, token_rewards, strict=True)
        ]
        scored_steps = [
            said for t, reward in zip(traces, token_rewards, strict=True) for said in _score_steps(t, reward, renderer)
        ]
        chosen, enough = scored_solutions[:BEST_OF], len(scored_solutions) >= BEST_OF
        best = enough and best_is_right([score for score, _ in chosen], [right for _, right in chosen])
        counts[task] = {
            **_pair_counts(scored_solutions, ""),
            **_pair_counts(scored_steps, "step_"),
            "nats": -sum(logs[str(t.address)] for t in traces if CORRECT.of(t)),
            "tokens": float(sum(len(t.token_ids) for t in traces if CORRECT.of(t))),
            "best": float(best),
            "enough": float(enough),
        }
    total = {name: sum(row[name] for row in counts.values()) for name in ("pairs", "step_pairs", "enough", "tokens")}
    surprisal = {f"{judge.policy}/surprisal": make_figure(counts, SURPRISAL, total["tokens"])} if judge.replies else {}
    if judge.reference is None:
        return defined_figures(surprisal)
    return defined_figures(
        {
            **surprisal,
            f"{judge.policy}/pair_accuracy": make_figure(counts, Share("ordered", "pairs"), total["pairs"]),
            f"{judge.policy}/step_pair_accuracy": make_figure(
                counts, Share("step_ordered", "step_pairs"), total["step_pairs"]
            ),
            f"{judge.role}/best@{BEST_OF}": make_figure(counts, Share("best", "enough"), total["enough"]),
        }
    )


def _score_steps(trace: Trace, rewards: torch.Tensor, renderer: Rendering) -> list[ScoredTruth]:
    """Each step's sum and truth; [] where steps were not checked."""
    right, spans = STEP_OK.of(trace), STEPS.of(trace)
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
