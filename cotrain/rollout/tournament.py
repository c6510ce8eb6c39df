"""A tournament of solutions to one problem, whose winner is the answer: V1-Infer (Singh et al. 2026, arXiv 2603.04304).

    μ_i = Σ_j w_ij · [i beats j] / Σ_j w_ij,   w_ij = max(τ, |m_ij|)

The margin m_ij, in [−1, 1], is how far a judge of pairs puts i ahead of j. First every solution meets two others, in a
ring. In each of the following rounds solutions are put in order by μ, and neighbours that have not met are paired, as
in a Swiss tournament: comparisons are spent where the order is uncertain. So k solutions take at most
k + rounds · k / 2 comparisons in the place of k (k − 1) / 2. In the sum, [i beats j] is ½ for a margin of 0.

- The judge sees every pair in both orders, and m_ij is the mean.
- Two solutions with the same text have the margin 0, without a call of the judge.
- A solution that cannot be read does not enter.
- A comparison that cannot be read, or does not fit the context, has no margin and no weight.
- A solution without any margin has μ = 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotrain.algorithms.functional.aggregate import mean
from cotrain.core.notes import CORRECT, Finding
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Task
from cotrain.metrics.clusters import Share, defined_figures, make_figure
from cotrain.metrics.heldout import Measure, traces_by_task, with_names
from cotrain.metrics.verdicts import best_is_right
from cotrain.rollout.event_loop import gather
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain.rollout.verifier_roles import comparison_fields, confidence

RATING = Finding[float]("rating", float, "weighted share of its comparisons that a solution won, in [0, 1]")
UNRATED = -1.0  # rating of a solution that did not enter: behind all that did
TAU = 0.1  # τ: the least weight of a comparison
ROUNDS = 2  # rounds after the ring
Pair = tuple[int, int]  # numbers of two entrants, the smaller one first


@dataclass(frozen=True, slots=True, kw_only=True)
class PairJudgement:
    """A judgement of a pair (i, j)."""

    turn: Turn
    is_swapped: bool  # True if the judge saw j first


async def hold_tournament(
    task: Task, roles: Roles, solutions: Sequence[Turn], *, role: str = "comparer", rounds: int = ROUNDS
) -> None:
    """Record μ as the finding ``rating`` of every solution that can be read.

    Args:
        role: name of the judge of pairs (``verifier_roles.comparer``).
        rounds: rounds after the ring.
    """
    comparer = getattr(roles, role)
    entrants = [solution for solution in solutions if solution.parsed.ok and not solution.failed]

    async def compare(i: int, j: int) -> float | None:
        """The margin m_ij; None where no verdict can be read."""
        if entrants[i].tagged_text == entrants[j].tagged_text:
            return 0.0
        margins = []
        for judgement in await compare_both_ways(task, roles, comparer, entrants[i], entrants[j]):
            margin = margin_of_first(judgement.turn)
            if margin is not None:
                margins.append(-margin if judgement.is_swapped else margin)
        return mean(margins)

    ratings = await rate_by_tournament(compare, len(entrants), rounds=rounds)
    for solution, rating in zip(entrants, ratings, strict=True):
        solution.add_finding(RATING, rating)


async def compare_both_ways(
    task: Task, roles: Roles, comparer: RoleHandle, solution_i: Turn, solution_j: Turn, *, n: int = 1
) -> list[PairJudgement]:
    """``n`` judgements of a pair in each order, all of them in one group.

    Each judgement has its verdict as a finding. If one of the two solutions is right and the other is wrong, the
    metadata ``correct`` of a judgement says whether the solution that it saw first is the right one.
    """
    orders = [(solution_i, solution_j), (solution_j, solution_i)]
    group = f"{solution_i.id}:{solution_j.id}"
    calls = []
    for shown_first, shown_second in orders:
        fields = side_by_side(roles, comparer, shown_first, shown_second)
        calls.append(comparer.many(n, group=group, parent=shown_first, problem=task.prompt, **fields))

    judgements = []
    for (shown_first, shown_second), turns in zip(orders, await gather(calls), strict=True):
        first_is_right = CORRECT.of(shown_first)
        is_graded = first_is_right is not None
        one_is_right = is_graded and first_is_right != CORRECT.of(shown_second)
        for turn in turns:
            if one_is_right:
                turn.add_metadata(CORRECT, first_is_right)
            show_verdict(turn)
            judgements.append(PairJudgement(turn=turn, is_swapped=shown_first is solution_j))
    return judgements


def side_by_side(roles: Roles, comparer: RoleHandle, solution_a: Turn, solution_b: Turn) -> dict[str, Any]:
    """The fields of a comparison, behind a nonce where the prompt has one."""
    return comparison_fields(comparer.fields, roles.nonce(solution_a), solution_a.tagged_text, solution_b.tagged_text)


def margin_of_first(turn: Turn) -> float | None:
    """How far a judgement puts the solution that it saw first ahead: 2 P − 1 in [−1, 1]. None where it cannot be
    read."""
    if not turn.parsed.ok or turn.parsed.score is None:
        return None
    return 2.0 * (confidence(turn) or 0.0) - 1.0


async def rate_by_tournament(
    compare: Callable[[int, int], Coroutine[Any, Any, float | None]], count: int, *, rounds: int
) -> list[float]:
    """μ [N] of ``count`` entrants. ``compare(i, j)`` returns the margin m_ij; None for no verdict."""
    margins: dict[Pair, float | None] = {}

    async def play_round(pairs: Sequence[Pair]) -> None:
        new_margins = await gather([compare(i, j) for i, j in pairs])
        margins.update(zip(pairs, new_margins, strict=True))

    await play_round(ring_pairs(count))
    for _ in range(rounds):
        await play_round(pair_neighbours(win_rates(count, margins), margins))
    return win_rates(count, margins)


def pair_of(i: int, j: int) -> Pair:
    """The pair of two entrants, in the order of their numbers."""
    return (min(i, j), max(i, j))


def ring_pairs(count: int) -> list[Pair]:
    """Each entrant with the next one, and the last one with the first. Two entrants have one pair."""
    pairs = set()
    for i in range(count):
        j = (i + 1) % count
        if i != j:
            pairs.add(pair_of(i, j))
    return sorted(pairs)


def win_rates(count: int, margins: Mapping[Pair, float | None]) -> list[float]:
    """μ [N] from the margins of those that met; 0.5 for an entrant that has none."""
    weights_of_wins = [0.0] * count  # Σ_j w_ij · [i beats j]
    weights = [0.0] * count  # Σ_j w_ij
    for (i, j), margin in sorted(margins.items()):
        if margin is None:
            continue
        if margin > 0.0:
            share_of_i = 1.0
        elif margin < 0.0:
            share_of_i = 0.0
        else:
            share_of_i = 0.5
        weight = max(TAU, abs(margin))
        weights_of_wins[i] += weight * share_of_i
        weights_of_wins[j] += weight * (1.0 - share_of_i)
        weights[i] += weight
        weights[j] += weight

    rates = []
    for weight_of_wins, total_weight in zip(weights_of_wins, weights, strict=True):
        rates.append(weight_of_wins / total_weight if total_weight else 0.5)
    return rates


def pair_neighbours(ratings: Sequence[float], margins: Mapping[Pair, float | None]) -> list[Pair]:
    """Disjoint pairs that have not met: from the top, each with the next one below it."""
    ranking = sorted(range(len(ratings)), key=lambda i: (-ratings[i], i))  # those that are still without a rival
    pairs = []
    while ranking:
        i = ranking.pop(0)
        for j in ranking:
            if pair_of(i, j) not in margins:
                ranking.remove(j)
                pairs.append(pair_of(i, j))
                break
    return sorted(pairs)


def measure_tournament(role: str, k: int) -> Measure:
    """``tournament@k``: of the first k solutions, is the one with the highest rating right?"""

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        counts = {}
        for task, traces in traces_by_task(episodes, role).items():
            if len(traces) < k:
                continue
            ratings = []
            for trace in traces[:k]:
                rating = RATING.of(trace)
                ratings.append(UNRATED if rating is None else rating)
            labels = [bool(CORRECT.of(trace)) for trace in traces[:k]]
            counts[task] = {"right": float(best_is_right(ratings, labels)), "tasks": 1.0}
        return defined_figures({f"{role}/tournament@{k}": make_figure(counts, Share("right", "tasks"), len(counts))})

    return with_names(measure, roles=[role], figures=[f"{role}/tournament@{k}"])
