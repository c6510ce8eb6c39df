"""On-policy distillation: the student writes the answers, and a teacher says how likely it finds each of their tokens.

The student is pulled to the teacher at every token that it sampled itself: the policy gradient of the per-token reverse
KL divergence, log π(token) − log π_teacher(token), without credit for later tokens (MiniLLM, arXiv 2306.08543; GKD,
arXiv 2306.13649, with λ = 1; Qwen3, arXiv 2505.09388, §4.5). As a loss that is half of the squared difference of the
two log-probabilities (``k2``). Every token is taught, so an answer needs no group and no grade: ``outcome=0`` learns
from problems without answers too (``--labelled answers``).

``outcome=1`` adds GRPO's advantage from the graded answer. Control: ``pull=0`` with ``outcome=1`` is GRPO on the same
answers. The teacher must have the student's tokens.

Left out: answers of the teacher or of a data set among the student's (GKD's λ < 1), other divergences, and the whole
distribution of the teacher at each token.
"""

from __future__ import annotations

from cotrain import (
    GRPO,
    OUTCOME,
    ConfigError,
    KLPenalty,
    Objective,
    Recipe,
    RunConfig,
    constant_schedule,
    frozen,
    recipe,
    solve,
)
from cotrain.core.arguments import Weight
from cotrain.rollout import common_roles


@recipe(model="shipped-habits", without=("kl",))
def distill(
    run: RunConfig,
    *,
    teacher: str = "shipped-checker",  # the model that is learned from
    pull: Weight = 1.0,  # weight of the pull towards the teacher
    outcome: Weight = 0.0,  # weight of the graded answer beside that pull
) -> Recipe:
    if max(pull, outcome) == 0:
        raise ConfigError(
            "distill: pull and outcome are both 0, so that nothing is learned; raise one", code="E_WEIGHTS_ALL_ZERO"
        )
    reward_weights = {OUTCOME: outcome} if outcome else {}
    policies = {"generator": run.learner()}
    if pull:
        # Groups without spread stay: the pull teaches something of them too.
        to_teacher = KLPenalty("teacher", pull, "k2")
        algorithm = GRPO(reward_weights=reward_weights, kl=to_teacher, edit_after=())
        policies["teacher"] = frozen(teacher)
    else:
        algorithm = GRPO(reward_weights=reward_weights)

    if not outcome:
        name = "distill"
    elif pull:
        name = "distill-outcome"
    else:
        name = "distill-none"
    unlabelled = 0.0 if outcome else run.unlabelled_share()

    return run.recipe(
        name,
        policies=policies,
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=algorithm)},
        schedule=constant_schedule(solve, "generator", name="generator", unlabelled=unlabelled),
        evaluate=solve,
    )
