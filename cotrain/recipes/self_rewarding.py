"""Self-Rewarding Language Models: the model judges its own answers and learns to prefer the best to the worst.

Yuan et al. 2024 (arXiv 2401.10020). Of each problem ``group_size`` solutions are drawn at temperature 0.7. The same
weights, under the prompt of a verifier, judge each of them ``votes`` times at that temperature; its score is the share
CORRECT of the verdicts that can be read. Of a problem the solutions with the highest and the lowest score are a pair,
if they differ, and DPO (β = 0.1) learns it, with the model at the start of the iteration as reference. Nobody is told
what is right: truths are noted alone, and ``verifier/balanced_accuracy`` and ``gap`` show how far the judge drifts
while the scores rise.

Where only some problems have an answer (``--labelled answers``), it learns from the others. Controls:
``judge="frozen"`` judges with the start's weights, "oracle" scores by the truth, the ceiling.

Different from the paper: an iteration is ``iteration`` updates on fresh problems and not two epochs over 4,000 pairs; a
verdict takes the place of a score from 0 to 5. Left out: writing new prompts, and tuning the judge on human scores.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import (
    CORRECT,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
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
    """Solutions and their scores: 0 for one that cannot be read, none where no review can be."""
    solutions = await attempts(task, roles, samples)
    readable = [s for s in solutions if s.parsed.ok]
    review_turns = [] if oracle else await review_all(task, roles, readable, n=votes)
    means = {s.id: mean_verdict(turns) for s, turns in zip(readable, review_turns, strict=not oracle)}
    scores: dict[str, float] = {}
    for solution in solutions:
        score = float(CORRECT.require(solution)) if oracle else means.get(solution.id, 0.0)
        if score is not None:
            solution.reward(CHOSEN, score)
            scores[solution.id] = score
    scored = [s for s in solutions if s.id in scores]
    if not scored:
        return
    best = max(scored, key=lambda s: scores[s.id])  # of equals the first, as it is learned
    worst = min(scored, key=lambda s: scores[s.id])
    right = CORRECT.of(best)
    if scores[worst.id] < scores[best.id] and right is not None and right != CORRECT.of(worst):
        best.add_metadata(CHOSEN_RIGHT, right)


@recipe(model="shipped-roles", group_size=4, temperature=0.7, without=("kl",))
def self_rewarding(
    run: RunConfig,
    *,
    iteration: int = 25,  # updates with one reference
    beta: Weight = 0.1,  # β of DPO
    sft: float = 0.0,  # share of the preferred solution's cross-entropy in the loss
    votes: int = 3,  # verdicts on a solution
    judge: Literal["self", "frozen", "oracle"] = "self",  # who scores
    reset: Literal["nothing", "optimiser"] = "nothing",  # what each iteration begins anew
) -> Recipe:
    if run.group_size < 2 or votes < 1 or iteration < 1:
        settings_text = f"group_size {run.group_size}, votes {votes}, iteration {iteration}"
        raise ConfigError(f"self_rewarding: {settings_text}; expected at least 2, 1 and 1", code="E_SETTING_RANGE")
    by = Preference(policy="generator", reference="before", betas=(beta,), sft=sft)
    learner = run.learner(iteration=iteration, reset=reset)
    policies = {"generator": learner, "before": snapshot(run.model, of="generator", every=iteration)}
    if judge == "frozen":
        policies["judge"] = frozen(run.model)
    verdicts = common_roles.verifier("judge" if judge == "frozen" else "generator", run.model)
    play = partial(judge_oneself, samples=run.group_size, votes=votes, oracle=judge == "oracle")
    return run.recipe(
        f"self_rewarding-{judge}",
        policies=policies,
        roles={"solver": common_roles.solver("generator", run.model), "verifier": verdicts},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=by)},
        schedule=constant_schedule(
            play,
            "generator",
            name="generator",
            group_size=1,
            unlabelled=0.0 if judge == "oracle" else run.unlabelled_share(),
        ),
        evaluate=partial(judge_oneself, votes=1),
        measures=measure_solver_and_verifier("verifier"),
    )
