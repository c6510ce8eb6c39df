"""Two agents share one solution: a starter writes its first steps, a solver goes on from there and ends it.

Both are trained at every step. The starter writes the first ``cut`` steps, ``group_size`` times; from each of these
starts the solver writes ``finishes`` ends. A finish earns 1 if its answer is right. A start earns the share of its
finishes that are right: its value by Monte Carlo (Math-Shepherd, arXiv 2312.08935), here with another policy than the
one that wrote it. Starts of one problem are compared with each other, and so are finishes of one start.

The two may have different sizes (``starter_model``, and ``model`` of the solver) and algorithms: the starter learns by
GRPO, the solver by GRPO, by cross-entropy of its right finishes ("ce": expert iteration) or by DPO of a right against a
wrong finish of one start ("dpo"). No paper has just this; it is the smallest team of which neither half can be right
alone.

Controls are parameters: ``weights="shared"`` has one policy in both roles, to be compared with two at equal tokens;
``train`` trains one of the two alone.

Left out: learning when to hand over. It is after ``cut`` steps; a start that has not so many whole steps earns 0.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import (
    CORRECT,
    GRPO,
    OUTCOME,
    SFT,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    Turn,
    constant_schedule,
    frozen,
    gather,
    gives,
    measure_solver,
    recipe,
)
from cotrain.algorithms.contract import Algorithm
from cotrain.algorithms.dpo import Preference
from cotrain.config.policies import Policy
from cotrain.core.arguments import Positive, Weight
from cotrain.core.notes import GOLD, PROBLEM, Metadata
from cotrain.metrics.heldout import measure_metadata
from cotrain.rollout import common_roles
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.protocols import CLOSING, continue_from, show_answer

WHOLE = Metadata[bool]("whole", bool, "is a start as many whole steps as were asked for")


@gives(OUTCOME.to("starter"), OUTCOME.to("solver"))
async def hand_over(
    task: Task, roles: Roles, *, samples: Positive = 1, finishes: Positive = 1, cut: Positive = 1
) -> None:
    """Starts and their finishes. A finish is read and graded together with its start. One that cannot be graded fails,
    and does not count for its start."""
    chats = [roles.starter.begin(problem=task.prompt) for _ in range(samples)]
    starts: list[Turn | None] = await gather([_write_start(chat, cut) for chat in chats])

    # Every start that can go on is finished ``finishes`` times, all at once.
    going_on = []
    calls = []
    for chat, start in zip(chats, starts, strict=True):
        if start is None:
            chat.reward(OUTCOME, 0.0)
            continue
        going_on.append(chat)
        for _ in range(finishes):
            finish = roles.solver.begin(problem=task.prompt, group=start.id, parent=start)
            calls.append(continue_from(finish, chat.response_text))
    finish_turns = iter(await gather(calls))

    # A start is worth the share of its finishes that are right.
    for chat in going_on:
        outcomes = []
        for _ in range(finishes):
            is_right = await _judge_finish(task, roles, chat.response_text, next(finish_turns))
            if is_right is not None:
                outcomes.append(is_right)
        if outcomes:
            chat.reward(OUTCOME, sum(outcomes) / len(outcomes))


async def _judge_finish(task: Task, roles: Roles, start: str, finish: Turn) -> bool | None:
    """Reward a finish, read and graded together with its start. None, and it fails, where it could not be graded."""
    solution = start + finish.text
    finish.parsed = finish.chat.role.parse_reply(solution, finish.chat.fields)
    grade = await roles.grade(task, finish, text=solution)
    finish.add_finding(PROBLEM, task.prompt)
    show_answer(finish)
    if grade.value is None:
        finish.fail(grade.reason or "ungraded")
        return None
    finish.add_metadata(CORRECT, grade.value)
    finish.add_metadata(GOLD, task.gold)
    finish.reward(OUTCOME, float(grade.value))
    return grade.value


async def _write_start(chat: Conversation, cut: int) -> Turn | None:
    """The last turn of ``cut`` whole steps; None where the role did not write them."""
    for _ in range(cut):
        turn = await chat.say(stop=(CLOSING,))
        is_whole = turn.text.endswith(CLOSING)
        turn.add_metadata(WHOLE, is_whole)
        if not is_whole:
            return None
    return turn


@recipe(kl=0.0)
def two_agents_split(
    run: RunConfig,
    *,
    cut: int = 1,  # steps that the starter writes
    finishes: int = 4,  # ends of each start
    solver_by: Literal["grpo", "ce", "dpo"] = "ce",  # algorithm of the solver
    train: Literal["both", "starter", "solver"] = "both",  # who is trained
    weights: Literal["own", "shared"] = "own",  # two policies, or one in both roles
    starter_model: str | None = None,  # initial weights of the starter; by default the solver's model
    starter_lr: float = 2e-4,  # learning rate of a starter with weights of its own
    beta: Weight = 0.1,  # β of solver_by="dpo"
) -> Recipe:
    is_shared = weights == "shared"
    trains_solver = train != "starter"
    trains_starter = train != "solver"
    compares_finishes = trains_solver and solver_by != "ce"
    if cut < 1 or finishes < 1 or (compares_finishes and finishes < 2):
        raise ConfigError(
            f"two_agents_split: cut is {cut} and finishes {finishes}; expected at least 1, and 2 finishes where "
            "they are compared (grpo, dpo)",
            code="E_SETTING_RANGE",
        )
    if is_shared and (starter_model is not None or train != "both"):
        raise ConfigError(
            f"two_agents_split: weights='shared' with train={train!r} and starter_model {starter_model!r}; one policy "
            "in both roles learns in both, leave them out",
            code="E_SHARED_WEIGHTS_OTHER_MODEL",
        )
    if run.kl and trains_solver and solver_by != "grpo":
        raise ConfigError(
            f"two_agents_split: kl is {run.kl} with solver_by={solver_by!r}; it pulls a solver that learns by GRPO, "
            "leave it at 0, or add solver_by=grpo",
            code="E_KL_WITHOUT_LEARNER",
        )
    initial_starter = starter_model or run.model
    starting_policy = "generator" if is_shared else "starter"

    policies: dict[str, Policy] = {}
    if trains_solver:
        policies["generator"] = run.learner()
        policies |= run.reference_policies()
    else:
        policies["generator"] = frozen(run.model)
    if not is_shared and trains_starter:
        policies["starter"] = run.learner(initial_starter, lr=starter_lr)
    elif not is_shared:
        policies["starter"] = frozen(initial_starter)

    objectives = {}
    if trains_solver:
        learn_to_finish: Algorithm
        if solver_by == "grpo":
            learn_to_finish = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
        elif solver_by == "ce":
            learn_to_finish = SFT(where=OUTCOME)
        else:
            learn_to_finish = Preference(policy="generator", reference="before", better=OUTCOME, betas=(beta,))
            policies["before"] = frozen(run.model)  # DPO's reference
        objectives["generator"] = Objective(policy="generator", role="solver", algorithm=learn_to_finish)
    if trains_starter:
        learn_to_start = GRPO(reward_weights={OUTCOME: 1.0})
        objectives["starter"] = Objective(policy=starting_policy, role="starter", algorithm=learn_to_start)

    starter = common_roles.solver(starting_policy, initial_starter)
    protocol = partial(hand_over, cut=cut)
    return run.recipe(
        f"two_agents_split-{solver_by}-shared" if is_shared else f"two_agents_split-{solver_by}",
        policies=policies,
        roles={
            "solver": common_roles.solver("generator", run.model),
            "starter": replace(starter, parse=None),  # a start is no whole solution
        },
        objectives=objectives,
        schedule=constant_schedule(
            partial(protocol, samples=run.group_size, finishes=finishes), *objectives, name="both", group_size=1
        ),
        evaluate=protocol,
        measures=(measure_solver("solver", 8), measure_metadata("starter", WHOLE)),
    )
