"""Self-Rewarding Language Models: the model judges its own answers and learns to prefer the best to the worst.

Yuan et al. 2024 (arXiv 2401.10020). One policy is trained. It writes ``group_size`` solutions of each problem, at
temperature 0.7, and under the prompt of a verifier judges each of them ``votes`` times. The score of a solution is the
share of its readable verdicts that say CORRECT. The solutions with the highest and the lowest score are a pair, if
their scores differ, and the policy learns it by DPO (β = 0.1), with its weights at the start of the iteration as
reference.

Nobody is told what is right. The truth is only measured: ``verifier/balanced_accuracy`` and ``gap`` show how far the
judge drifts while the scores rise. Where only some problems have an answer (``--labelled answers``), the policy learns
from the others.

Controls are parameters: ``judge="frozen"`` judges with the initial weights; ``judge="oracle"`` scores by the truth
(ceiling).

What differs from the paper: an iteration is ``iteration`` updates on fresh problems, theirs two epochs over 4,000
pairs. A verdict takes the place of a score from 0 to 5. Left out: writing new prompts, and tuning the judge on human
scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Literal

from cotrain import (
    CORRECT,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    Turn,
    constant_schedule,
    frozen,
    gives,
    recipe,
    snapshot,
)
from cotrain.algorithms.dpo import CHOSEN, Preference
from cotrain.core.arguments import Positive, Weight
from cotrain.core.notes import Metadata
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import mean_verdict, review_all

CHOSEN_RIGHT = Metadata[bool](
    "chosen_right", bool, "of a pair of a right and a wrong solution: is the right one preferred"
)


@gives(CHOSEN.to("solver"))
async def judge_oneself(
    task: Task, roles: Roles, *, samples: Positive = 1, votes: Positive = 3, oracle: bool = False
) -> None:
    """``samples`` solutions, rewarded with their scores: 0 for a solution that cannot be read. One of which no review
    can be read has no score and is not learned from."""
    solutions = await attempts(task, roles, samples)

    scores: dict[str, float | None]  # by the id of a solution
    if oracle:
        scores = {solution.id: float(CORRECT.require(solution)) for solution in solutions}
    else:
        scores = {solution.id: 0.0 for solution in solutions}
        readable = [solution for solution in solutions if solution.parsed.ok]
        reviews_by_solution = await review_all(task, roles, readable, n=votes)
        for solution, review_turns in zip(readable, reviews_by_solution, strict=True):
            scores[solution.id] = mean_verdict(review_turns)

    scores_of_solutions: list[tuple[float, Turn]] = []
    for solution in solutions:
        score = scores[solution.id]
        if score is not None:
            solution.reward(CHOSEN, score)
            scores_of_solutions.append((score, solution))
    if scores_of_solutions:
        _note_pair(scores_of_solutions)


def _note_pair(scores_of_solutions: Sequence[tuple[float, Turn]]) -> None:
    """Record whether the learned pair prefers the right solution, where one of the two is right."""
    # Of equal scores the first one, as ``Preference`` chooses.
    best_score, best = max(scores_of_solutions, key=itemgetter(0))
    worst_score, worst = min(scores_of_solutions, key=itemgetter(0))
    is_pair = worst_score < best_score
    best_is_right = CORRECT.of(best)
    if is_pair and best_is_right is not None and best_is_right != CORRECT.of(worst):
        best.add_metadata(CHOSEN_RIGHT, best_is_right)


@recipe(model="shipped-roles", group_size=4, temperature=0.7, without=("kl",))
def self_rewarding(
    run: RunConfig,
    *,
    iteration: int = 25,  # updates after which DPO's reference is renewed
    beta: Weight = 0.1,  # β of DPO
    sft: float = 0.0,  # share of the preferred solution's cross-entropy in the loss
    votes: int = 3,  # verdicts on each solution
    judge: Literal["self", "frozen", "oracle"] = "self",  # who scores
    reset: Literal["nothing", "optimiser"] = "nothing",  # what is reset when an iteration begins
) -> Recipe:
    if run.group_size < 2 or votes < 1 or iteration < 1:
        settings_text = f"group_size {run.group_size}, votes {votes}, iteration {iteration}"
        raise ConfigError(f"self_rewarding: {settings_text}; expected at least 2, 1 and 1", code="E_SETTING_RANGE")
    policies = {
        "generator": run.learner(iteration=iteration, reset=reset),
        "before": snapshot(run.model, of="generator", every=iteration),
    }
    if judge == "frozen":
        policies["judge"] = frozen(run.model)
    judging_policy = "judge" if judge == "frozen" else "generator"
    dpo = Preference(policy="generator", reference="before", betas=(beta,), sft=sft)
    protocol = partial(judge_oneself, samples=run.group_size, votes=votes, oracle=judge == "oracle")
    return run.recipe(
        f"self_rewarding-{judge}",
        policies=policies,
        roles={
            "solver": common_roles.solver("generator", run.model),
            "verifier": common_roles.verifier(judging_policy, run.model),
        },
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=dpo)},
        schedule=constant_schedule(
            protocol,
            "generator",
            name="generator",
            group_size=1,  # the protocol samples the whole group itself
            unlabelled=0.0 if judge == "oracle" else run.unlabelled_share(),
        ),
        evaluate=partial(judge_oneself, votes=1),
        measures=measure_solver_and_verifier("verifier"),
    )
