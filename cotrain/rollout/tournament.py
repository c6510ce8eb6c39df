"""A tournament of solutions to one problem, whose winner is the answer: V1-Infer (Singh et al. 2026, arXiv 2603.04304).

    μ_i = Σ_j w_ij · [i beats j] / Σ_j w_ij,   w_ij = max(τ, |m_ij|)

m_ij, in [−1, 1], is how far a judge of pairs puts i ahead of j. First every solution meets two others, in a ring. In
each of the following rounds solutions are put in order by μ, and neighbours that have not met are paired, as in a Swiss
tournament: comparisons are spent where the order is uncertain. So k solutions take at most k + rounds · k / 2
comparisons in the place of k (k − 1) / 2. An even comparison counts half.

- Every pair is asked in both orders, and m_ij is the mean.
- Solutions with the same text are even, and nobody is asked. One that cannot be read does not enter.
- A comparison that cannot be read, or does not fit the context, says nothing of either.
- A solution that was never compared has 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from cotrain.algorithms.functional.aggregate import mean
from cotrain.core.notes import CORRECT, Finding
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Task
from cotrain.metrics.clusters import Share, defined_figures, make_figure
from cotrain.metrics.heldout import Measure, traces_by_task
from cotrain.metrics.verdicts import best_is_right
from cotrain.rollout.event_loop import gather
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain.rollout.verifier_roles import comparison_fields, confidence

RATING = Finding[float]("rating", float, "weighted share of its comparisons that a solution won, in [0, 1]")
UNRATED = -1.0  # a solution that did not enter is behind all that did
LEAST = 0.1  # τ: the weight of a comparison without a margin
ROUNDS = 2  # rounds after the ring
Pair = tuple[int, int]


async def hold_tournament(
    task: Task, roles: Roles, solutions: Sequence[Turn], *, role: str = "comparer", rounds: int = ROUNDS
) -> None:
    """Record its rating on every solution that can be read. ``role`` is a judge of pairs
    (``verifier_roles.comparer``)."""
    comparer = getattr(roles, role)
    entrants = [solution for solution in solutions if solution.parsed.ok and not solution.failed]

    async def margin_of(i: int, j: int) -> float | None:
        """How far entrant i is ahead of entrant j, over both orders; None where no verdict can be read."""
        if entrants[i].tagged_text == entrants[j].tagged_text:
            return 0.0
        leads = []
        for was_first, turn in await compare_both_ways(task, roles, comparer, entrants[i], entrants[j]):
            lead_of_first = lead_of(turn)
            if lead_of_first is not None:
                leads.append(lead_of_first if was_first else -lead_of_first)
        return mean(leads)

    ratings = await rate_by_tournament(margin_of, len(entrants), rounds=rounds)
    for solution, rating in zip(entrants, ratings, strict=True):
        solution.add_finding(RATING, rating)


async def compare_both_ways(
    task: Task, roles: Roles, comparer: RoleHandle, one: Turn, other: Turn, *, n: int = 1
) -> list[tuple[bool, Turn]]:
    """``n`` judgements of a pair in each order: whether ``one`` was the first, and the judgement.

    All of them are one group. Each has its verdict as a finding. If one of the two solutions is right and the other is
    not, its metadata ``correct`` says whether the first is the better one.
    """
    orders = [(one, other), (other, one)]
    calls = []
    for first, second in orders:
        fields = side_by_side(roles, comparer, first, second)
        calls.append(comparer.many(n, group=f"{one.id}:{other.id}", parent=first, problem=task.prompt, **fields))

    judgements = []
    for (first, second), turns in zip(orders, await gather(calls), strict=True):
        first_is_right = CORRECT.of(first)
        has_better_one = first_is_right is not None and first_is_right != CORRECT.of(second)
        for turn in turns:
            if has_better_one:
                turn.add_metadata(CORRECT, first_is_right)
            show_verdict(turn)
            judgements.append((first is one, turn))
    return judgements


def side_by_side(roles: Roles, comparer: RoleHandle, first: Turn, second: Turn) -> dict[str, Any]:
    """The fields of a comparison, behind a nonce where the prompt has one."""
    return comparison_fields(comparer.fields, roles.nonce(first), first.tagged_text, second.tagged_text)


def lead_of(turn: Turn) -> float | None:
    """How far a judgement puts the first ahead, 2 P − 1 in [−1, 1]; None where it cannot be read."""
    if not turn.parsed.ok or turn.parsed.score is None:
        return None
    return 2.0 * (confidence(turn) or 0.0) - 1.0


async def rate_by_tournament(
    margin_of: Callable[[int, int], Coroutine[Any, Any, float | None]], count: int, *, rounds: int
) -> list[float]:
    """μ of ``count`` entrants [N]. ``margin_of(i, j)``: how far i is ahead of j; None for no verdict."""
    margins: dict[Pair, float | None] = {}
    pairs = ring_pairs(count)
    for _ in range(rounds + 1):
        new_margins = await gather([margin_of(i, j) for i, j in pairs])
        margins.update(zip(pairs, new_margins, strict=True))
        pairs = pair_neighbours(win_rates(count, margins), margins)
    return win_rates(count, margins)


def pair_of(i: int, j: int) -> Pair:
    """Two entrants in the order of their numbers."""
    return (min(i, j), max(i, j))


def ring_pairs(count: int) -> list[Pair]:
    """Each entrant with the next one, and the last one with the first; nobody with itself."""
    pairs = set()
    for i in range(count):
        j = (i + 1) % count
        if i != j:
            pairs.add(pair_of(i, j))
    return sorted(pairs)


def win_rates(count: int, margins: Mapping[Pair, float | None]) -> list[float]:
    """μ [N] from the margins of those that met; 0.5 for an entrant that has none."""
    won = [0.0] * count
    weights = [0.0] * count
    for (i, j), margin in sorted(margins.items()):
        if margin is None:
            continue
        if margin > 0.0:
            share_of_i = 1.0
        elif margin < 0.0:
            share_of_i = 0.0
        else:
            share_of_i = 0.5
        weight = max(LEAST, abs(margin))
        won[i] += weight * share_of_i
        won[j] += weight * (1.0 - share_of_i)
        weights[i] += weight
        weights[j] += weight
    return [w / total if total else 0.5 for w, total in zip(won, weights, strict=True)]


def pair_neighbours(ratings: Sequence[float], margins: Mapping[Pair, float | None]) -> list[Pair]:
    """Disjoint pairs that have not met: from the top, each with the next one below it."""
    unpaired = sorted(range(len(ratings)), key=lambda i: (-ratings[i], i))
    pairs = []
    while unpaired:
        i = unpaired.pop(0)
        for rival in unpaired:
            if pair_of(i, rival) not in margins:
                unpaired.remove(rival)
                pairs.append(pair_of(i, rival))
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
            is_right = [bool(CORRECT.of(trace)) for trace in traces[:k]]
            counts[task] = {"won": float(best_is_right(ratings, is_right)), "asked": 1.0}
        return defined_figures({f"{role}/tournament@{k}": make_figure(counts, Share("won", "asked"), len(counts))})

    vars(measure)["roles"] = (role,)  # a recipe without it is refused
    return measure
