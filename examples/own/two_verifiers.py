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

    verdicts = []
    for verdicts_of_one in await gather([review(task, roles, solution, n=reviews, role=name) for name in VERIFIERS]):
        verdicts += verdicts_of_one

    n_believing = 0
    for verdict in verdicts:
        agrees = verdict.parsed.ok and verdict.parsed.final == correct
        verdict.reward(AGREEMENT, float(agrees))
        if verdict.parsed.ok and verdict.parsed.final:
            n_believing += 1
    solution.reward(OUTCOME, n_believing / len(verdicts))


@recipe(steps=40, tasks_per_step=8)
def two_verifiers(
    run: RunConfig,
    *,
    reviews: Positive = 4,  # of one solution by one verifier
) -> Recipe:
    """A generator that is paid by two verifiers, and each verifier for finding the truth."""
    learn_to_solve = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
    learn_to_judge = GRPO(reward_weights={AGREEMENT: 1.0})

    policies = {"generator": run.learner()}
    roles = {"solver": common_roles.solver("generator", run.model)}
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}
    for name in VERIFIERS:
        policies[name] = run.learner()
        roles[name] = common_roles.verifier(name, run.model)
        objectives[name] = Objective(policy=name, role=name, algorithm=learn_to_judge)
    policies |= run.reference_policies()

    return run.recipe(
        "two_verifiers",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(partial(convince_both, reviews=reviews), *objectives),
        evaluate=partial(convince_both, reviews=1),
        measures=(measure_solver("solver", 4), *(measure_verifier(name, gap=f"{name}/gap") for name in VERIFIERS)),
    )
