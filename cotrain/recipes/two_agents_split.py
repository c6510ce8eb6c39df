"""A solution split between two agents: one begins it, the other one goes on from there and ends it.

The starter writes the first ``cut`` steps, ``group_size`` times; from each of them the solver goes on ``finishes``
times. A finish earns whether its answer is right. A start earns the share of its finishes that are right: its value by
Monte Carlo (Math-Shepherd, arXiv 2312.08935), here with another policy than the one that wrote it. Starts of one
problem are compared with each other, and so are finishes of one start.

The two need have neither one size (``starter_model``, and ``model`` of the solver) nor one algorithm: the starter
learns by GRPO, the solver by GRPO, by cross-entropy of its right finishes ("ce": expert iteration) or by DPO of a right
against a wrong finish of one start ("dpo").

Controls: ``weights="shared"`` has one policy in both roles, to be compared at equal tokens with two; ``train`` leaves
one of them as it was. No paper has just this; it is the smallest team of which neither half can be right alone.

Left out: who hands over when; it is after ``cut`` steps, or the start is none and earns 0.
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
from cotrain.core.notes import ANSWER, FAILURE, GOLD, PROBLEM, Metadata
from cotrain.metrics.heldout import measure_metadata
from cotrain.rollout import common_roles
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.protocols import CLOSING, continue_from

WHOLE = Metadata[bool]("whole", bool, "is a start as many whole steps as were asked for")


@gives(OUTCOME.to("starter"), OUTCOME.to("solver"))
async def hand_over(
    task: Task, roles: Roles, *, samples: Positive = 1, finishes: Positive = 1, cut: Positive = 1
) -> None:
    """Starts and their finishes. A finish is judged as the whole that it ends: start and finish; one that cannot be
    graded fails, and its start is valued by the others."""
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
    """Reward a finish, read and judged with its start. None, and it fails, where it could not be graded."""
    finish.parsed = finish.chat.role.parse_reply(start + finish.text, finish.chat.fields)
    grade = await roles.grade(task, finish, text=start + finish.text)
    finish.add_finding(PROBLEM, task.prompt)
    if finish.parsed.ok:
        finish.add_finding(ANSWER, finish.parsed.answer)
    else:
        finish.add_finding(FAILURE, finish.parsed.reason)
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
        whole = turn.text.endswith(CLOSING)
        turn.add_metadata(WHOLE, whole)
        if not whole:
            return None
    return turn


@recipe(kl=0.0)
def two_agents_split(
    run: RunConfig,
    *,
    cut: int = 1,  # steps that the starter writes
    finishes: int = 4,  # of each start
    solver_by: Literal["grpo", "ce", "dpo"] = "ce",  # how the one who finishes learns
    train: Literal["both", "starter", "solver"] = "both",  # who learns
    weights: Literal["own", "shared"] = "own",  # two policies, or one in both roles
    starter_model: str | None = None,  # begins the starter; by default the solver's model
    starter_lr: float = 2e-4,  # learning rate of a starter with weights of its own
    beta: Weight = 0.1,  # β of solver_by="dpo"
) -> Recipe:
    shared = weights == "shared"
    if cut < 1 or finishes < 1 or (finishes < 2 and train != "starter" and solver_by != "ce"):
        raise ConfigError(
            f"two_agents_split: cut is {cut} and finishes {finishes}; expected at least 1, and 2 finishes where "
            "they are compared (grpo, dpo)",
            code="E_SETTING_RANGE",
        )
    if shared and (starter_model is not None or train != "both"):
        raise ConfigError(
            f"two_agents_split: weights='shared' with train={train!r} and starter_model {starter_model!r}; one policy "
            "in both roles learns in both, leave them out",
            code="E_SHARED_WEIGHTS_OTHER_MODEL",
        )
    writer = "generator" if shared else "starter"
    small = starter_model or run.model
    policies: dict[str, Policy] = {"generator": run.learner() if train != "starter" else frozen(run.model)}
    if train != "starter":
        policies |= run.reference_policies()
    if not shared:
        policies["starter"] = run.learner(small, lr=starter_lr) if train != "solver" else frozen(small)
    objectives = {}
    if train != "starter":
        finishing: dict[str, Algorithm] = {
            "grpo": GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty()),
            "ce": SFT(where=OUTCOME),
            "dpo": Preference(policy="generator", reference="before", better=OUTCOME, betas=(beta,)),
        }
        if solver_by == "dpo":
            policies["before"] = frozen(run.model)
        objectives["generator"] = Objective(policy="generator", role="solver", algorithm=finishing[solver_by])
    if train != "solver":
        objectives["starter"] = Objective(policy=writer, role="starter", algorithm=GRPO(reward_weights={OUTCOME: 1.0}))
    begins = common_roles.solver(writer, small)
    play = partial(hand_over, cut=cut)
    return run.recipe(
        f"two_agents_split-{solver_by}" if not shared else f"two_agents_split-{solver_by}-shared",
        policies=policies,
        roles={"solver": common_roles.solver("generator", run.model), "starter": replace(begins, parse=None)},
        objectives=objectives,
        schedule=constant_schedule(
            partial(play, samples=run.group_size, finishes=finishes), *objectives, name="both", group_size=1
        ),
        evaluate=play,
        measures=(measure_solver("solver", 8), measure_metadata("starter", WHOLE)),
    )
