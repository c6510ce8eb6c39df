"""A generator that is paid by two verifiers, and each verifier for finding the truth."""

from functools import partial

from cotrain import (
    AGREEMENT,
    OUTCOME,
    Objective,
    Recipe,
    Roles,
    Settings,
    Task,
    examine,
    gives,
    grpo,
    measure_solver,
    recipe,
    single,
    together,
)
from cotrain.core.arguments import Positive
from cotrain.metrics.heldout import measure_judge
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
    panel = await together([review(task, roles, solution, n=reviews, role=name) for name in VERIFIERS])
    verdicts = [verdict for of_one in panel for verdict in of_one]
    for verdict in verdicts:
        agrees = verdict.parsed.ok and verdict.parsed.final == correct
        verdict.reward(AGREEMENT, float(agrees))
    believers = sum(verdict.parsed.ok and verdict.parsed.final for verdict in verdicts)
    solution.reward(OUTCOME, believers / len(verdicts))


@recipe(steps=40, tasks_per_step=8)
def two_verifiers(
    run: Settings,
    *,
    reviews: Positive = 4,  # of one solution by one verifier
) -> Recipe:
    """A generator that is paid by two verifiers, and each verifier for finding the truth."""
    learn = {"generator": Objective(policy="generator", on="solver", by=grpo(rewards={OUTCOME: 1.0}, kl=run.pull()))}
    for name in VERIFIERS:
        learn[name] = Objective(policy=name, on=name, by=grpo(rewards={AGREEMENT: 1.0}))
    return run.recipe(
        "two_verifiers",
        policies={"generator": run.learner(), **{name: run.learner() for name in VERIFIERS}, **run.start()},
        roles={
            "solver": common_roles.solver("generator", run.model),
            **{name: common_roles.verifier(name, run.model) for name in VERIFIERS},
        },
        objectives=learn,
        schedule=single(partial(convince_both, reviews=reviews), *learn),
        evaluate=partial(convince_both, reviews=1),
        measures=(measure_solver("solver", 4), *(measure_judge(name, gap=f"{name}/gap") for name in VERIFIERS)),
    )
