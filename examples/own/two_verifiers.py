"""A generator that is paid by two verifiers, and each verifier for finding the truth."""

from functools import partial

from cotrain import (
    AGREEMENT,
    GRPO,
    OUTCOME,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    constant_schedule,
    examine,
    gather,
    gives,
    measure_solver,
    recipe,
)
from cotrain.core.arguments import Positive
from cotrain.metrics.heldout import measure_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.reviews import review

VERIFIERS = ("first", "second")


@gives(OUTCOME.to("solver"), *(AGREEMENT.to(name) for name in VERIFIERS))
async def convince_both(task: Task, roles: Roles, *, reviews: Positive = 4) -> None:
    solution = await roles.solver(problem=task.prompt)
    correct = await examine(task, roles, solution)
    if correct is None:
        return
    if not solution.parsed.ok:
        solution.reward(OUTCOME, 0.0)  # nobody can review it
        return
    panel = await gather([review(task, roles, solution, n=reviews, role=name) for name in VERIFIERS])
    verdicts = [verdict for of_one in panel for verdict in of_one]
    for verdict in verdicts:
        agrees = verdict.parsed.ok and verdict.parsed.final == correct
        verdict.reward(AGREEMENT, float(agrees))
    believers = sum(verdict.parsed.ok and verdict.parsed.final for verdict in verdicts)
    solution.reward(OUTCOME, believers / len(verdicts))


@recipe(steps=40, tasks_per_step=8)
def two_verifiers(
    run: RunConfig,
    *,
    reviews: Positive = 4,  # of one solution by one verifier
) -> Recipe:
    """A generator that is paid by two verifiers, and each verifier for finding the truth."""
    learn = {
        "generator": Objective(
            policy="generator", role="solver", algorithm=GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
        )
    }
    for name in VERIFIERS:
        learn[name] = Objective(policy=name, role=name, algorithm=GRPO(reward_weights={AGREEMENT: 1.0}))
    return run.recipe(
        "two_verifiers",
        policies={
            "generator": run.learner(),
            **{name: run.learner() for name in VERIFIERS},
            **run.reference_policies(),
        },
        roles={
            "solver": common_roles.solver("generator", run.model),
            **{name: common_roles.verifier(name, run.model) for name in VERIFIERS},
        },
        objectives=learn,
        schedule=constant_schedule(partial(convince_both, reviews=reviews), *learn),
        evaluate=partial(convince_both, reviews=1),
        measures=(measure_solver("solver", 4), *(measure_verifier(name, gap=f"{name}/gap") for name in VERIFIERS)),
    )
