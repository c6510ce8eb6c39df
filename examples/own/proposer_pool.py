"""A proposer is paid for problems that the solver solves sometimes; these enter a pool and are played again later."""

from functools import partial

from cotrain import (
    GRPO,
    OUTCOME,
    Objective,
    Recipe,
    Role,
    Roles,
    RunConfig,
    Sampling,
    Signal,
    Task,
    Turn,
    constant_schedule,
    examine,
    gather,
    gives,
    measure_solver,
    recipe,
    rng_of,
    solve,
)
from cotrain.core.arguments import Positive
from cotrain.core.types import ParseFailure
from cotrain.data.word_problems.reader import problem_signature, read_problem, task_of
from cotrain.rollout import common_roles
from cotrain.rollout.readers import is_held_out
from cotrain.rollout.stores import MINTED, REPLAYED, TaskPool

LEARNABLE = Signal("learnable", meaning="1 for a problem that is solved sometimes and not always, else 0")


async def share_solved(roles: Roles, task: Task, samples: int, group: str) -> float:
    """Let the solver answer a problem, pay each answer the truth, and return the share that is right."""
    answers = await roles.solver.many(samples, problem=task.prompt, group=group)
    rights = await gather([examine(task, roles, answer) for answer in answers])
    for answer, right in zip(answers, rights, strict=True):
        if right is not None:
            answer.reward(OUTCOME, float(right))
    return sum(bool(right) for right in rights) / samples


def task_from(text: str, name: str) -> tuple[Task, str] | None:
    """The problem that a text is, as a task, and its signature; None where it is none, or a held-out one."""
    problem = read_problem(text)
    if isinstance(problem, ParseFailure) or is_held_out(text):
        return None
    return task_of(problem, name), problem_signature(problem)


async def play_again(roles: Roles, pool: TaskPool, proposal: Turn, samples: int) -> None:
    """Solve a problem of the pool, if there is one, and bring its record up to date."""
    old = pool.draw_problem(rng_of("replay", proposal.id))
    found = task_from(old.problem, f"pool/{old.signature}") if old else None
    if old and found:
        solved = await share_solved(roles, found[0], samples, group=f"{proposal.id} again")
        proposal.add_finding(REPLAYED, (old.signature, solved))


@gives(LEARNABLE.to("proposer"), OUTCOME.to("solver"))
async def propose(task: Task, roles: Roles, *, pool: TaskPool, samples: Positive = 4) -> None:
    proposal = await roles.proposer(hint="")
    found = task_from(proposal.text.strip(), f"proposed/{proposal.id}")
    if found is None:
        proposal.reward(LEARNABLE, 0.0)
    else:
        fresh, signature = found
        solved = await share_solved(roles, fresh, samples, group=proposal.id)
        proposal.reward(LEARNABLE, float(0 < solved < 1))
        if 0 < solved < 1:
            proposal.add_finding(MINTED, (fresh.prompt, str(fresh.gold), signature, solved))
    await play_again(roles, pool, proposal, samples)


@recipe(model="shipped-proposer", steps=40, tasks_per_step=4, group_size=8)
def proposer_pool(
    run: RunConfig,
    *,
    samples: Positive = 4,  # answers to one problem
    cap: Positive = 256,  # problems that the pool holds
) -> Recipe:
    """A proposer is paid for problems that are solved sometimes; a pool keeps them for later steps."""
    protocol = partial(propose, samples=samples)
    return run.recipe(
        "proposer_pool",
        policies={"generator": run.learner(), "proposer": run.learner(), **run.reference_policies()},
        roles={
            "solver": common_roles.solver("generator", run.model),
            "proposer": Role(policy="proposer", prompt="{hint}\nWrite a problem:", sampling=Sampling(max_tokens=192)),
        },
        objectives={
            "generator": Objective(
                policy="generator", role="solver", algorithm=GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
            ),
            "proposer": Objective(policy="proposer", role="proposer", algorithm=GRPO(reward_weights={LEARNABLE: 1.0})),
        },
        schedule=constant_schedule(protocol, "generator", "proposer", stores=("pool",)),
        evaluate=solve,
        measures=(measure_solver("solver", 4),),
        stores={"pool": TaskPool(cap=cap)},
    )
