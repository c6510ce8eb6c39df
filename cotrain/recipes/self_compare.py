"""V1-PairRL: one policy solves, and as its own verifier compares two of its solutions (Singh et al. 2026, arXiv
2603.04304). At test time a tournament of such comparisons chooses among its solutions (``rollout/tournament.py``).

    J = J_solve + λ · J_compare,   both by GRPO without division by the deviation and without KL, in one step

A solution earns 1 where it is right. Of each problem ``pairs`` pairs of its solutions are compared, in both orders and
``comparisons`` times each, and all comparisons of a pair are a group. A comparison earns

    a letter, or a grade     1 where it names the right one; the pairs have one right and one wrong solution
    points of both (grm)     the mean of [|v − y| ≤ 0.2] over the two, with v its points in [0, 1] and y 1 for right;
                             a pair has at least one right solution

as in the paper: a comparison that commits itself to nothing earns nothing, and solutions that are wrong in a way that
is easy to see gain nothing, as pairs of two wrong ones are never shown.

Controls are parameters: ``comparer="unpaid"`` compares with the same weights and learns nothing from it (the solver is
plain GRPO), "frozen" compares with the start's. The pointwise self-verifier is ``self_verify --mode joint``.

Left out: the paper's equal budget of rollouts (it halves the solutions of a problem); the window of its tournament.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    FORMAT,
    OUTCOME,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    Turn,
    constant_schedule,
    frozen,
    gather,
    gives,
    measure_solver,
    recipe,
    rng_of,
    solve,
)
from cotrain.algorithms.grpo import DrGRPO
from cotrain.algorithms.policy_gradient import PPOClip
from cotrain.core.arguments import Positive, Weight
from cotrain.core.notes import JUDGED
from cotrain.formats.preferences import BEST, Ratings
from cotrain.metrics.heldout import measure_verifier
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.protocols import SOLVED, attempts
from cotrain.rollout.tournament import ROUNDS, compare_both_ways, hold_tournament, measure_tournament
from cotrain.rollout.verifier_roles import Comparison

NEAR = 0.2  # how far points may be from the truth


@gives(*SOLVED, AGREEMENT.to("comparer"), FORMAT.to("comparer"))
async def compare_own(
    task: Task, roles: Roles, *, samples: Positive, comparisons: Positive, pairs: Positive = 1, points: bool = False
) -> None:
    """``samples`` solutions, rewarded as by ``solve``; ``pairs`` of them are compared ``comparisons`` times in each
    order. ``points``: both of a pair get points, and so both may be right."""
    solutions = await gather([solve(task, roles) for _ in range(samples)])
    chosen_pairs = choose_pairs(solutions, pairs, points=points)
    judged_ids = set()
    for one, other in chosen_pairs:
        judged_ids |= {one.id, other.id}
    for solution in solutions:
        solution.add_metadata(JUDGED, solution.id in judged_ids)

    calls = [compare_both_ways(task, roles, roles.comparer, one, other, n=comparisons) for one, other in chosen_pairs]
    for (one, other), comparison_turns in zip(chosen_pairs, await gather(calls), strict=True):
        one_is_right = CORRECT.require(one)
        other_is_right = CORRECT.require(other)
        for was_first, turn in comparison_turns:
            truths = (one_is_right, other_is_right) if was_first else (other_is_right, one_is_right)
            turn.reward(AGREEMENT, comparison_reward(turn, truths))
            turn.reward(FORMAT, turn.parsed.format_score)


def choose_pairs(solutions: Sequence[Turn], most: int, *, points: bool = False) -> list[tuple[Turn, Turn]]:
    """Up to ``most`` pairs of different readable solutions, drawn: of a right and a wrong one, with ``points`` also of
    two right ones where there are not enough."""
    by_text = {solution.tagged_text: solution for solution in solutions if solution.parsed.ok and not solution.failed}
    right = [solution for solution in by_text.values() if CORRECT.require(solution)]
    wrong = [solution for solution in by_text.values() if not CORRECT.require(solution)]
    if not right:
        return []

    rng = rng_of("pairs", right[0].id)
    mixed_pairs = list(product(right, wrong))
    chosen = rng.sample(mixed_pairs, min(most, len(mixed_pairs)))
    right_pairs = list(combinations(right, 2)) if points else []
    chosen += rng.sample(right_pairs, min(most - len(chosen), len(right_pairs)))
    return chosen


def comparison_reward(turn: Turn, truths: tuple[bool, bool]) -> float:
    """Return what a comparison of a first and a second solution earns, in [0, 1]."""
    if isinstance(turn.parsed, Ratings):
        near = [abs((p - 1) / (BEST - 1) - y) <= NEAR for p, y in zip(turn.parsed.points, truths, strict=True)]
        return sum(near) / 2
    return float(bool(turn.parsed.ok) and turn.parsed.final == truths[0])


@gives()
async def choose_own(task: Task, roles: Roles, *, samples: Positive, rounds: Positive = ROUNDS) -> None:
    """``samples`` solutions and their tournament."""
    await hold_tournament(task, roles, await attempts(task, roles, samples), rounds=rounds)


@recipe(steps=120, kl=0.0)
def self_compare(
    run: RunConfig,
    *,
    pairs: int = 1,  # of solutions of a problem
    comparisons: int = 4,  # of a pair, in each order
    weight: Weight = 1.0,  # λ of what is learned from comparisons
    comparer: Literal["trained", "unpaid", "frozen"] = "trained",  # does it learn to compare, and who compares?
    form: Comparison | None = None,  # of comparisons; by default grm, and thinkrm of a model that knows short formats
    candidates: int = 8,  # solutions of a held-out problem, and its tournament
    rounds: int = ROUNDS,  # of the tournament, after the ring
    clip_high: float = 0.28,  # upper clip of the ratio
) -> Recipe:
    if min(pairs, comparisons, candidates, rounds) < 1 or run.group_size < 2 or weight <= 0.0:
        raise ConfigError(
            f"self_compare: pairs {pairs}, comparisons {comparisons}, candidates {candidates}, rounds {rounds}, "
            f"group_size {run.group_size}, weight {weight}; expected at least 1, of group_size 2, and a weight above 0",
            code="E_SETTING_RANGE",
        )
    form = form or ("thinkrm" if common_roles.is_terse(run.model) else "grm")
    learns = comparer == "trained"
    compares = "reference" if comparer == "frozen" else "model"
    play = partial(compare_own, samples=run.group_size, comparisons=comparisons, pairs=pairs, points=form == "grm")
    by = partial(DrGRPO, loss=PPOClip(0.2, clip_high), kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="model", role="solver", algorithm=by(reward_weights={OUTCOME: 1.0}))}
    if learns:
        by_comparing = by(reward_weights={AGREEMENT: 1.0})
        objectives["comparer"] = Objective(policy="model", role="comparer", algorithm=by_comparing, weight=weight)
    made = run.recipe(
        f"self_compare-{comparer}",
        policies={
            "model": run.learner(),
            **({"reference": frozen(run.model)} if comparer == "frozen" else run.reference_policies()),
        },
        roles={
            "solver": common_roles.solver("model", run.model),
            "comparer": verifier_roles.comparer(compares, run.model, form),
        },
        objectives=objectives,
        schedule=constant_schedule(play, *objectives, name="both", group_size=1)
        if learns
        else constant_schedule(solve, "generator", name="generator"),
        evaluate=partial(choose_own, samples=candidates, rounds=rounds),
        measures=(
            measure_solver("solver", candidates),
            measure_verifier("comparer"),
            measure_tournament("solver", candidates),
        ),
    )
    return replace(made, evaluation=replace(made.evaluation, group_size=1))
