"""One model answers, reviews its answer and revises it once; a review is paid for what it puts right."""

from functools import partial

from cotrain import (
    GRPO,
    OUTCOME,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    Turn,
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

RESCUED = Signal("rescued", meaning="1 for a review behind which a wrong solution became right, else 0")


async def revise(task: Task, roles: Roles, solution: Turn, criticism: Turn, was_right: bool) -> None:
    """One revision of a solution by one review: the truth pays the revision, the change pays the review."""
    revision = await roles.refiner(
        problem=task.prompt,
        solution=solution.text,
        review=criticism.text,
        parent=solution,
        group=roles.refiner.whole_group,
    )
    right = await examine(task, roles, revision)
    if right is not None:
        revision.reward(OUTCOME, float(right))
        criticism.reward(RESCUED, float(right and not was_right))


@gives(OUTCOME.to("refiner"), RESCUED.to("reviewer"))
async def answer_review_revise(task: Task, roles: Roles, *, reviews: Positive = 4) -> None:
    solution = await roles.solver(problem=task.prompt)
    was_right = await examine(task, roles, solution)
    if was_right is None or not solution.parsed.ok:
        return
    criticisms = await review(task, roles, solution, n=reviews, role="reviewer")
    await gather([revise(task, roles, solution, criticism, was_right) for criticism in criticisms])


@recipe(model="shipped-roles", steps=40, tasks_per_step=8, group_size=4)
def revise_once(
    run: RunConfig,
    *,
    reviews: Positive = 4,  # of one solution, each followed by one revision
) -> Recipe:
    """One model answers, reviews its answer and revises it once; a review is paid for what it puts right."""
    learn_to_revise = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
    learn_to_review = GRPO(reward_weights={RESCUED: 1.0}, kl=run.kl_penalty())
    return run.recipe(
        "revise_once",
        policies={"model": run.learner(), **run.reference_policies()},
        roles={
            "solver": common_roles.solver("model", run.model),
            "reviewer": common_roles.verifier("model", run.model),
            "refiner": common_roles.refiner("model", run.model),
        },
        objectives={
            "refiner": Objective(policy="model", role="refiner", algorithm=learn_to_revise),
            "reviewer": Objective(policy="model", role="reviewer", algorithm=learn_to_review),
        },
        schedule=constant_schedule(partial(answer_review_revise, reviews=reviews), "refiner", "reviewer"),
        evaluate=partial(answer_review_revise, reviews=1),
        measures=(measure_solver("solver", 4), measure_solver("refiner", 4), measure_verifier("reviewer")),
    )
