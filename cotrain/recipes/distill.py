"""On-policy distillation: the student writes the answers, and a teacher says how likely it finds each of their tokens.

At every token y_t that the student sampled, the gradient is that of the reverse KL divergence to the teacher, without
credit for later tokens (MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649, with λ = 1; Qwen3, arXiv 2505.09388, §4.5):

    k2 = ½ (log π(y_t) − log π_teacher(y_t))²        a loss whose gradient is (log π − log π_teacher) ∇ log π

The teacher has something to say of every token, so an answer needs no grade and no other answers to be compared with:
``outcome=0`` learns from problems without answers too (``--labelled answers``).

``outcome=1`` adds GRPO's advantage from the graded answer. Control: ``teacher_kl=0`` with ``outcome=1`` is GRPO on the
same answers. The teacher must have the student's tokens.

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
    teacher_kl: Weight = 1.0,  # weight of the KL term to the teacher
    outcome: Weight = 0.0,  # weight of the graded answer beside that term
) -> Recipe:
    if max(teacher_kl, outcome) == 0:
        raise ConfigError(
            "distill: teacher_kl and outcome are both 0, so that nothing is learned; raise one",
            code="E_WEIGHTS_ALL_ZERO",
        )
    reward_weights = {OUTCOME: outcome} if outcome else {}
    policies = {"generator": run.learner()}
    if teacher_kl:
        policies["teacher"] = frozen(teacher)
        algorithm = GRPO(
            reward_weights=reward_weights,
            kl=KLPenalty(to="teacher", weight=teacher_kl, estimator="k2"),
            edit_after=(),  # GRPO's own edit drops groups whose answers are all right or all wrong; these have a KL
        )
    else:
        algorithm = GRPO(reward_weights=reward_weights)

    if not outcome:
        name = "distill"
    elif teacher_kl:
        name = "distill-outcome"
    else:
        name = "distill-none"

    # The share of a step's problems that are drawn from those without answers.
    unlabelled = 0.0 if outcome else run.unlabelled_share()
    return run.recipe(
        name,
        policies=policies,
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=algorithm)},
        schedule=constant_schedule(solve, "generator", name="generator", unlabelled=unlabelled),
        evaluate=solve,
    )
