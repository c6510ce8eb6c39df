"""A tournament of solutions to one problem, whose winner is the answer: V1-Infer (Singh et al. 2026, arXiv 2603.04304).

    μ_i = Σ_j w_ij · [i beats j] / Σ_j w_ij,   w_ij = max(τ, |m_ij|)

m_ij, in [−1, 1], is how far a judge of pairs puts i ahead of j. First every solution meets two others, in a ring. In
each of the following rounds solutions are put in order by μ, and neighbours that have not met are paired, as in a Swiss
tournament: comparisons are spent where the order is uncertain. So k solutions take at most k + rounds · k / 2
comparisons in the place of k (k − 1) / 2. An even comparison counts half.

Every pair is asked in both orders, and m_ij is the mean. Solutions with the same text are even, and nobody is asked;
one that cannot be read does not enter. A comparison that cannot be read, or does not fit the context, says nothing of
either; who was never compared has 0.5.
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
from cotrain.rollout.judges import comparison_fields, confidence
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles

RATING = Finding[float]("rating", float, "weighted share of its comparisons that a solution won, in [0, 1]")
LEAST = 0.1  # τ: the weight of a comparison without a margin
ROUNDS = 2  # after the ring
Pair = tuple[int, int]


async def hold_tournament(
    task: Task, roles: Roles, solutions: Sequence[Turn], *, role: str = "comparer", rounds: int = ROUNDS
) -> None:
    """Shows its rating on every solution that can be read. ``role`` is a judge of pairs (``judges.comparer``)."""
    judge, entrants = getattr(roles, role), [s for s in solutions if s.parsed.ok and not s.failed]

    async def margin_of(i: int, j: int) -> float | None:
        if entrants[i].tagged_text == entrants[j].tagged_text:
            return 0.0
        asked = await compare_both_ways(task, roles, judge, entrants[i], entrants[j])
        return mean([lead if ahead else -lead for ahead, turn in asked if (lead := lead_of(turn)) is not None])

    for solution, rating in zip(
        entrants, await rate_by_tournament(margin_of, len(entrants), rounds=rounds), strict=True
    ):
        solution.add_finding(RATING, rating)


async def compare_both_ways(
    task: Task, roles: Roles, judge: RoleHandle, one: Turn, other: Turn, *, n: int = 1
) -> list[tuple[bool, Turn]]:
    """``n`` judgements of a pair in each order, which are compared with each other, and whether ``one`` was the first.
    Each shows its verdict, and notes as ``correct`` whether the first is the better one where one of the two is right.
    """
    orders = [(True, one, other), (False, other, one)]
    shown = [side_by_side(roles, judge, first, second) for _, first, second in orders]
    calls = [
        judge.many(n, group=f"{one.id}:{other.id}", parent=first, problem=task.prompt, **fields)
        for (_, first, _), fields in zip(orders, shown, strict=True)
    ]
    found = []
    for (ahead, first, second), turns in zip(orders, await gather(calls), strict=True):
        truth = CORRECT.of(first)
        for turn in turns:
            if truth is not None and truth != CORRECT.of(second):
                turn.add_metadata(CORRECT, truth)
            show_verdict(turn)
            found.append((ahead, turn))
    return found


def side_by_side(roles: Roles, judge: RoleHandle, first: Turn, second: Turn) -> dict[str, Any]:
    """The fields of a comparison, behind a nonce where the prompt has one."""
    return comparison_fields(judge.fields, roles.nonce(first), first.tagged_text, second.tagged_text)


def lead_of(turn: Turn) -> float | None:
    """How far a judgement puts the first ahead, 2 P − 1 in [−1, 1]; None where it cannot be read."""
    return 2.0 * (confidence(turn) or 0.0) - 1.0 if turn.parsed.ok and turn.parsed.score is not None else None


async def rate_by_tournament(
    margin_of: Callable[[int, int], Coroutine[Any, Any, float | None]], count: int, *, rounds: int
) -> list[float]:
    """μ of ``count`` entrants [N]. ``margin_of(i, j)``: how far i is ahead of j; None for no verdict."""
    met: dict[Pair, float | None] = {}
    pairs = sorted({(min(i, j), max(i, j)) for i in range(count) if (j := (i + 1) % count) != i})
    for _ in range(rounds + 1):
        met.update(zip(pairs, await gather([margin_of(*pair) for pair in pairs]), strict=True))
        pairs = pair_neighbours(win_rates(count, met), met)
    return win_rates(count, met)


def win_rates(count: int, met: Mapping[Pair, float | None]) -> list[float]:
    """μ [N] from the margins of those that met; 0.5 for who has none."""
    won, weights = [0.0] * count, [0.0] * count
    for (i, j), margin in sorted(met.items()):
        if margin is not None:
            weight, share = max(LEAST, abs(margin)), 0.5 + 0.5 * ((margin > 0.0) - (margin < 0.0))
            for entrant, part in ((i, share), (j, 1.0 - share)):
                won[entrant] += weight * part
                weights[entrant] += weight
    return [w / total if total else 0.5 for w, total in zip(won, weights, strict=True)]


def pair_neighbours(ratings: Sequence[float], met: Mapping[Pair, float | None]) -> list[Pair]:
    """Disjoint pairs that have not met: from the top, each with the next one below it."""
    free, pairs = sorted(range(len(ratings)), key=lambda i: (-ratings[i], i)), []
    while free:
        i, *free = free
        rival = next((j for j in free if (min(i, j), max(i, j)) not in met), None)
        if rival is not None:
            free.remove(rival)
            pairs.append((min(i, rival), max(i, rival)))
    return sorted(pairs)


def measure_tournament(role: str, k: int) -> Measure:
    """``tournament@k``: of the first k solutions, is the one with the highest rating right?"""

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        counts = {}
        for task, traces in traces_by_task(episodes, role).items():
            if len(traces) >= k:
                ratings = [-1.0 if (rating := RATING.of(t)) is None else rating for t in traces[:k]]
                right = [bool(CORRECT.of(t)) for t in traces[:k]]
                counts[task] = {"won": float(best_is_right(ratings, right)), "asked": 1.0}
        return defined_figures({f"{role}/tournament@{k}": make_figure(counts, Share("won", "asked"), len(counts))})

    vars(measure)["roles"] = (role,)  # a recipe without it is refused
    return measure
