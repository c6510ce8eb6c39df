"""Right and short: an answer earns 1 if it is right, and pays a little for each of its tokens."""

from functools import partial

from cotrain import (
    GRPO,
    OUTCOME,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    constant_schedule,
    examine,
    gives,
    measure_solver,
    recipe,
)
from cotrain.rollout import common_roles


@gives(OUTCOME.to("solver"))
async def answer_briefly(task: Task, roles: Roles, *, price: float = 0.002) -> None:
    solution = await roles.solver(problem=task.prompt)
    correct = await examine(task, roles, solution)
    if correct is None:
        return
    solution.reward(OUTCOME, float(correct) - price * solution.tokens)


@recipe(steps=40)
def short_answers(
    run: RunConfig,
    *,
    price: float = 0.002,  # of one token of an answer
) -> Recipe:
    """GRPO that pays for right answers and charges for their tokens."""
    return run.recipe(
        "short_answers",
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={
            "generator": Objective(
                policy="generator", role="solver", algorithm=GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
            )
        },
        schedule=constant_schedule(partial(answer_briefly, price=price), "generator"),
        evaluate=partial(answer_briefly, price=price),
        measures=(measure_solver("solver", 4),),
    )
