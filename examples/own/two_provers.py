"""A helpful and a sneaky prover write for one verifier: right solutions, and wrong ones that look right.

Prover-verifier games (Kirchner et al. 2024, arXiv 2407.13692). The verifier is a reward model. In its steps it learns
to tell right solutions from wrong ones, also those of the sneaky prover as it was in earlier rounds. In the steps of
the provers it is paid nothing, and both learn against it: the helpful one earns its score for right solutions, the
sneaky one for wrong ones. The zoo has a fuller one with controls, `prover_verifier`, whose verifier speaks.
"""

from __future__ import annotations

from functools import partial

from cotrain import (
    CORRECT,
    GRPO,
    Objective,
    Phase,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    alternate,
    gather,
    gives,
    measure_solver,
    recipe,
    reward_model,
    snapshot,
)
from cotrain.algorithms.reward_model import Pointwise
from cotrain.core.arguments import Positive
from cotrain.core.signals import LABEL
from cotrain.metrics.heldout import measure_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import rate

CONVINCED = Signal("convinced", meaning="the verifier's score, for a solution of the kind that its prover is to write")
# Role → whether its solutions are to be right. The helpful prover is called as all roles that solve, so that its
# figures are compared with those of other methods.
PROVERS = {"solver": True, "sneaky": False}


@gives(CONVINCED.to("solver"), CONVINCED.to("sneaky"), LABEL.to("verifier"))
async def prove(task: Task, roles: Roles, *, samples: Positive = 1, past: bool = False) -> None:
    """``samples`` solutions of each prover, rated by the verifier. ``past``: also those of an earlier sneaky prover."""
    for role in (*PROVERS, "past") if past else PROVERS:
        solutions = await attempts(task, roles, samples, role=role)
        ratings = await gather([rate(task, roles, solution, role="verifier") for solution in solutions])
        for solution, rating in zip(solutions, ratings, strict=True):
            if rating.failed:  # the solution is too long for the verifier
                continue
            is_right = CORRECT.require(solution)
            rating.reward(LABEL, float(is_right))
            if role in PROVERS:
                is_as_wanted = is_right == PROVERS[role] and solution.parsed.ok
                solution.reward(CONVINCED, rating.score_probability if is_as_wanted else 0.0)


@recipe(steps=60, tasks_per_step=8)
def two_provers(
    run: RunConfig,
    *,
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    turns: tuple[int, int] = (2, 4),  # steps of the verifier and of the provers in a round
) -> Recipe:
    """A helpful and a sneaky prover write for one verifier: right solutions, and wrong ones that look right."""
    policies = {
        "helpful": run.learner(),
        "sneaky": run.learner(),
        "past": snapshot(run.model, of="sneaky", every=turns[1], keep=3),
        "verifier": reward_model(run.model, lr=verifier_lr),
        **run.reference_policies(),
    }
    policy_of = {"solver": "helpful", "sneaky": "sneaky"}

    objectives = {}
    for role, policy in policy_of.items():
        convince = GRPO(reward_weights={CONVINCED: 1.0}, kl=run.kl_penalty())
        objectives[policy] = Objective(policy=policy, role=role, algorithm=convince)
    objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=Pointwise())

    protocol = partial(prove, samples=run.group_size)
    verifier_phase = Phase(
        name="verifier",
        protocol=partial(protocol, past=True),
        objectives=("verifier",),
        group_size=1,  # the protocol samples the whole group itself
    )
    provers_phase = Phase(name="provers", protocol=protocol, objectives=("helpful", "sneaky"), group_size=1)

    return run.recipe(
        "two_provers",
        policies=policies,
        roles={
            **{role: common_roles.solver(policy, run.model) for role, policy in policy_of.items()},
            "past": common_roles.solver("past", run.model),
            "verifier": common_roles.rater("verifier"),
        },
        objectives=objectives,
        schedule=alternate(verifier_phase, provers_phase, ratio=turns),
        evaluate=prove,
        measures=(measure_solver("solver", 8), measure_solver("sneaky", 8), measure_verifier("verifier")),
    )
