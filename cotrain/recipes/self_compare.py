"""V1-PairRL: one policy solves, and compares two of its solutions as its own verifier (Singh et al. 2026, arXiv
2603.04304).

    J = J_solve + λ · J_compare

Both objectives are learned in one step, by GRPO without division by the standard deviation and without KL. A solution
earns 1 where it is right. Of each problem ``pairs`` pairs of its solutions are compared, in both orders and
``comparisons`` times each; all comparisons of a pair are one group. A comparison earns

    where it says a letter or a grade      1 if it prefers the right solution. Pairs have a right and a wrong solution
    where it says points of both (grm)     the mean of [|v − y| ≤ 0.2] over the two, v the points, scaled to [0, 1],
                                           and y 1 for right, else 0. Pairs have at least one right solution

So, as in the paper, a comparison that is undecided earns nothing. And since two wrong solutions are never compared,
nothing is gained by writing ones that are easily seen to be wrong.

In the evaluation a tournament of comparisons chooses among the solutions of a problem (``rollout/tournament.py``).

Controls are parameters: ``comparer="unpaid"`` compares with the same weights and learns nothing from it, so that the
solver is plain GRPO; "frozen" compares with the initial weights. The pointwise self-verifier is ``self_verify --mode
joint``.

What differs from the paper: it halves the solutions of a problem, for an equal budget of rollouts. Left out: the window
of its tournament.
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

TOLERANCE = 0.2  # how far points may be from the truth


@gives(*SOLVED, AGREEMENT.to("comparer"), FORMAT.to("comparer"))
async def compare_own(
    task: Task, roles: Roles, *, samples: Positive, comparisons: Positive, pairs: Positive = 1, points: bool = False
) -> None:
    """``samples`` solutions, rewarded as by ``solve``; ``pairs`` of them are compared ``comparisons`` times in each
    order. ``points``: each of a pair gets points, so that both may be right."""
    solutions = await gather([solve(task, roles) for _ in range(samples)])
    chosen_pairs = choose_pairs(solutions, pairs, points=points)
    ids_in_pairs = set()
    for solution_i, solution_j in chosen_pairs:
        ids_in_pairs |= {solution_i.id, solution_j.id}
    for solution in solutions:
        solution.add_metadata(JUDGED, solution.id in ids_in_pairs)

    calls = []
    for solution_i, solution_j in chosen_pairs:
        calls.append(compare_both_ways(task, roles, roles.comparer, solution_i, solution_j, n=comparisons))
    for (solution_i, solution_j), judgements in zip(chosen_pairs, await gather(calls), strict=True):
        for judgement in judgements:
            labels = (CORRECT.require(solution_i), CORRECT.require(solution_j))
            if judgement.is_swapped:
                labels = labels[::-1]
            turn = judgement.turn
            turn.reward(AGREEMENT, comparison_reward(turn, labels))
            turn.reward(FORMAT, turn.parsed.format_score)


def choose_pairs(solutions: Sequence[Turn], max_pairs: int, *, points: bool = False) -> list[tuple[Turn, Turn]]:
    """Draw up to ``max_pairs`` pairs of different readable solutions, a right and a wrong one each. With ``points``,
    pairs of two right ones make up for missing ones."""
    # Of equal solutions one.
    by_text = {solution.tagged_text: solution for solution in solutions if solution.parsed.ok and not solution.failed}
    right = [solution for solution in by_text.values() if CORRECT.require(solution)]
    wrong = [solution for solution in by_text.values() if not CORRECT.require(solution)]
    if not right:
        return []

    rng = rng_of("pairs", right[0].id)
    mixed_pairs = list(product(right, wrong))
    pairs = rng.sample(mixed_pairs, min(max_pairs, len(mixed_pairs)))
    right_pairs = list(combinations(right, 2)) if points else []
    pairs += rng.sample(right_pairs, min(max_pairs - len(pairs), len(right_pairs)))
    return pairs


def comparison_reward(turn: Turn, labels: tuple[bool, bool]) -> float:
    """Return the reward of a comparison, in [0, 1]. ``labels``: whether the first and the second solution in its prompt
    are right."""
    verdict = turn.parsed
    if isinstance(verdict, Ratings):
        n_close = 0
        for points, is_right in zip(verdict.points, labels, strict=True):
            value = (points - 1) / (BEST - 1)  # in [0, 1]
            if abs(value - is_right) <= TOLERANCE:
                n_close += 1
        return n_close / 2
    first_is_right, _ = labels
    return float(bool(verdict.ok) and verdict.final == first_is_right)


@gives()
async def choose_own(task: Task, roles: Roles, *, samples: Positive, rounds: Positive = ROUNDS) -> None:
    """The evaluation: ``samples`` solutions and their tournament."""
    await hold_tournament(task, roles, await attempts(task, roles, samples), rounds=rounds)


@recipe(steps=120, kl=0.0)
def self_compare(
    run: RunConfig,
    *,
    pairs: int = 1,  # pairs of solutions that are compared, of each problem
    comparisons: int = 4,  # comparisons of a pair, in each order
    weight: Weight = 1.0,  # λ: weight of the objective of comparisons
    comparer: Literal["trained", "unpaid", "frozen"] = "trained",  # unpaid: learns nothing; frozen: initial weights
    form: Comparison | None = None,  # format of comparisons; by default grm, for models with terse prompts thinkrm
    candidates: int = 8,  # solutions of a held-out problem, among which the tournament chooses
    rounds: int = ROUNDS,  # rounds of the tournament, after the first one in a ring
    clip_high: float = 0.28,  # upper clip of the importance ratio
) -> Recipe:
    if min(pairs, comparisons, candidates, rounds) < 1 or run.group_size < 2 or weight <= 0.0:
        raise ConfigError(
            f"self_compare: pairs {pairs}, comparisons {comparisons}, candidates {candidates}, rounds {rounds}, "
            f"group_size {run.group_size}, weight {weight}; expected at least 1, of group_size 2, and a weight above 0",
            code="E_SETTING_RANGE",
        )
    if form is None:
        form = "thinkrm" if common_roles.is_terse(run.model) else "grm"

    policies = {"model": run.learner()}
    if comparer == "frozen":
        comparing_policy = "reference"
        policies["reference"] = frozen(run.model)
    else:
        comparing_policy = "model"
        policies |= run.reference_policies()

    loss = PPOClip(0.2, clip_high)
    learn_to_solve = DrGRPO(reward_weights={OUTCOME: 1.0}, loss=loss, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="model", role="solver", algorithm=learn_to_solve)}
    if comparer == "trained":
        learn_to_compare = DrGRPO(reward_weights={AGREEMENT: 1.0}, loss=loss, kl=run.kl_penalty())
        objectives["comparer"] = Objective(policy="model", role="comparer", algorithm=learn_to_compare, weight=weight)
        protocol = partial(
            compare_own, samples=run.group_size, comparisons=comparisons, pairs=pairs, points=form == "grm"
        )
        schedule = constant_schedule(protocol, "generator", "comparer", name="both", group_size=1)
    else:
        schedule = constant_schedule(solve, "generator", name="generator")  # comparisons are only evaluated

    compare_recipe = run.recipe(
        f"self_compare-{comparer}",
        policies=policies,
        roles={
            "solver": common_roles.solver("model", run.model),
            "comparer": verifier_roles.comparer(comparing_policy, run.model, form),
        },
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(choose_own, samples=candidates, rounds=rounds),
        measures=(
            measure_solver("solver", candidates),
            measure_verifier("comparer"),
            measure_tournament("solver", candidates),
        ),
    )
    # ``choose_own`` samples all candidates of a problem itself.
    return replace(compare_recipe, evaluation=replace(compare_recipe.evaluation, group_size=1))
