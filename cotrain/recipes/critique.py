"""Critique-GRPO: failed answers are criticised and revised, and what a revision gets right is learned without the critique.

Zhang et al. 2025 (arXiv 2506.03106). Of each problem a group of solutions is drawn. A critic reviews those that are wrong, the
generator revises each of them with the review before it, and the first ``join`` revisions that are right join the group:
as answers to the problem alone. Advantages are r − mean of the group, without a standard deviation; a loss is the sum over
tokens by a fixed length. Tokens of a revision, which the generator would not have said unasked, have neither ratio nor clip
but −A · π/(π + ``gamma``), γ = 0.1.

Controls are parameters: ``critic="none"`` is GRPO in everything else the same; "frozen" and "self" (the generator under the
prompt of a verifier) never learn to criticise, "trained" is paid as in RL Tango for the final verdict, "oracle" is the frozen one
with the truth in the place of its verdicts. ``refine="all"`` revises right solutions too. ``leak=True`` is a negative control: the gold
answer stands below the critique that the refiner reads, as in the authors' default (``simple_gt``), and gains are those of
copying it. It is in no other prompt, and otherwise in none.

Different from the authors' code: revisions come on top of the group instead of taking the place of its first answer, and
where none is right none joins (there the best one does). Left out: textual critiques made with the reference solution.
"""

from __future__ import annotations

from asyncio import gather
from typing import Literal

from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, STEP_OK, Note
from cotrain.core.signals import AGREEMENT, FORMAT, OUTCOME, gives
from cotrain.core.types import Task, TaskSource
from cotrain.learn.after import TrainWithPromptOf, drop_flat_groups
from cotrain.learn.algorithms import dr_grpo, grpo, pull_to
from cotrain.learn.losses import ScoreFunction, Shaped
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import solving, verifying
from cotrain.play import parts
from cotrain.play.executor import Roles
from cotrain.play.idle_loop import together
from cotrain.play.protocols import REVIEWED, examine, review, reward_review
from cotrain.play.role import Turn
from cotrain.tasks.words.source import study_problems
from cotrain.text.parsers import corrected_review

CRITICS = {
    "none": "",
    "oracle": "critic",
    "frozen": "critic",
    "trained": "critic",
    "self": "generator",
}  # who plays the role

RESCUED = Note[bool]("rescued", bool, "was a group that nobody solved joined by a right revision")


@gives(OUTCOME.to("solver"), OUTCOME.to("refiner"), *REVIEWED)
async def solve_and_revise(
    task: Task,
    roles: Roles,
    *,
    samples: int = 1,
    critic: str = "none",
    refine: str = "failed",
    join: int = 1,
    leak: bool = False,
) -> None:
    """``samples`` solutions, critiques and revisions, see above. The reward ``outcome`` is that of the answer; a revision that
    does not join gets none. The first solution notes whether its group, if nobody solved it, was ``rescued``."""
    drawn = await roles.solver.many(samples, problem=task.prompt)
    solutions = [s for s in drawn if await examine(task, roles, s) is not None]
    for solution in solutions:
        solution.reward(OUTCOME, float(CORRECT.known(solution)))
    if critic == "none":
        return
    readable = [s for s in solutions if s.parsed.ok]
    revisable = [s for s in readable if refine == "all" or not CORRECT.known(s)]
    written = await critiques(task, roles, readable if critic == "trained" else revisable, critic)
    told = f"\nReference: {task.answer}" if leak else ""
    revisions = await gather(
        *(
            roles.refiner(group=s.group, parent=s, problem=task.prompt, solution=s.text, review=written[s.id] + told)
            for s in revisable
        )
    )
    joined = 0
    for revision in revisions:
        if await examine(task, roles, revision) and joined < join:
            revision.reward(OUTCOME, 1.0)
            joined += 1
    if solutions and not any(CORRECT.known(s) for s in solutions):
        solutions[0].note(RESCUED, joined > 0)


async def critiques(task: Task, roles: Roles, solutions: list[Turn], critic: str) -> dict[str, str]:
    """By solution: what is said of it. Reviews of all solutions of a problem are compared with each other."""
    sheets = await together([review(task, roles, s, group=f"{s.group}/reviews") for s in solutions])
    for solution, [sheet] in zip(solutions, sheets, strict=True):
        reward_review(sheet, CORRECT.known(solution))
    if critic != "oracle":
        return {s.id: sheet.text for s, [sheet] in zip(solutions, sheets, strict=True)}
    return {
        s.id: corrected_review(sheet.text, STEP_OK.of(s) or [], CORRECT.known(s))
        for s, [sheet] in zip(solutions, sheets, strict=True)
    }


@recipe
def critique(
    model: str = "embedded-roles",
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    lr: float = 2e-4,
    critic_lr: float = 2e-4,
    kl: float = 0.0,
    entropy: float = 0.001,
    critic: Literal["none", "oracle", "frozen", "trained", "self"] = "frozen",
    critic_model: str | None = None,
    refine: Literal["failed", "all"] = "failed",
    join: int = 1,
    gamma: float = 0.1,
    leak: bool = False,
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    if leak and critic == "none":
        raise ConfigError("critique: leak=True with critic='none', where nobody reads the answer; choose a critic")
    judge, player, revises = critic_model or model, CRITICS[critic], critic != "none"
    solver, refiner = parts.solver("generator", model), parts.refiner("generator", model)
    learn = dr_grpo(
        rewards={OUTCOME: 1.0},
        after=(drop_flat_groups, TrainWithPromptOf("solver")),
        loss=Shaped(gamma, ScoreFunction()),
        normalise="constant",
        constant=float(solver.sampling.max_tokens),
        kl=pull_to("start", kl),
        entropy=entropy,
    )
    also = ("refiner",) if revises else ()
    objectives = {"generator": Objective(policy="generator", on="solver", also=also, by=learn)}
    policies = {"generator": trainable(model, lr=lr)} | ({"start": frozen(model)} if kl else {})
    if critic == "trained":
        criticise = grpo(rewards={AGREEMENT: 1.0, FORMAT: 0.8}, merge=True)
        objectives["critic"] = Objective(policy="critic", on="verifier", by=criticise)
    if player == "critic":
        policies["critic"] = trainable(judge, lr=critic_lr) if critic == "trained" else frozen(judge)
    options = {"critic": critic, "refine": refine, "join": join, "leak": leak}
    phase = Phase(
        name="generator",
        protocol=solve_and_revise,
        objectives=tuple(objectives),
        members=1,
        options={"samples": group_size, **options},
    )
    return Recipe(
        name="critique" if revises else "critique-none",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies=policies,
        roles={"solver": solver}
        | ({"refiner": refiner} if revises else {})
        | ({"verifier": parts.verifier(player, judge)} if player else {}),
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluation=Evaluation(
            protocol=solve_and_revise,
            measures=(solving("solver", 8),)
            + ((solving("refiner", 1),) if revises else ())
            + ((verifying("verifier"),) if player else ()),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
            options=options | {"refine": "all"},
        ),
        evaluate_every=evaluate_every,
    )
