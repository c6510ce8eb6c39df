"""Critique-GRPO: failed answers are criticised and revised, and what a revision gets right is learned without the
critique.

Zhang et al. 2025 (arXiv 2506.03106). Of each problem a group of solutions is drawn. A critic reviews those that are
wrong, the generator revises each of them with the review before it, and the first ``join`` revisions that are right
join the group: as answers to the problem alone. Advantages are r − mean of the group, without a standard deviation; a
loss is the sum over tokens by a fixed length. Tokens of a revision, which the generator would not have said unasked,
have neither ratio nor clip but −A · π/(π + ``gamma``), γ = 0.1.

Controls are parameters: ``critic="none"`` is GRPO in everything else the same; "frozen" and "self" (the generator under
the prompt of a verifier) never learn to criticise, "trained" is paid as in RL Tango for the final verdict, "oracle" is
the frozen one with the truth in the place of its verdicts. ``paid_by="gain"`` pays a trained critic for what its
critique is good for, whether the revision is right minus whether the solution was (ICRL, arXiv 2605.15224); its control
is ``paid_by="verdict"``, with everything else the same. ``refine="all"`` revises right solutions too. ``leak=True``
is a negative control: the gold answer stands below the critique that the refiner reads, as in the authors' default
(``simple_gt``), and gains are those of copying it. It is in no other prompt, and otherwise in none.

Different from the authors' code: revisions come on top of the group instead of taking the place of its first answer,
and where none is right none joins (there the best one does). From ICRL: there one model is solver and critic, several
revisions follow each critique, and a token of a revision is weighed by the ratio of its probabilities without and with
the critique; here the two are apart, one revision follows, and it is weighed by γ as above. Left out: textual critiques
made with the reference solution.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    FORMAT,
    GRPO,
    OUTCOME,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    Turn,
    constant_schedule,
    examine,
    frozen,
    gather,
    gives,
    measure_solver,
    recipe,
)
from cotrain.algorithms.advantage_edits import TrainWithPromptOf
from cotrain.algorithms.grpo import DrGRPO
from cotrain.algorithms.policy_gradient import drop_flat_groups
from cotrain.algorithms.policy_loss import ScoreFunction, Shaped
from cotrain.core.arguments import NotNegative, Positive, Weight
from cotrain.core.notes import STEP_OK, Metadata
from cotrain.formats.role_replies import corrected_review
from cotrain.metrics.heldout import measure_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import REVIEWED, review, reward_review

GAIN = Signal("gain", meaning="is the revision right, minus is the solution right that was criticised")
RESCUED = Metadata[bool]("rescued", bool, "was a group that nobody solved joined by a right revision")


@gives(OUTCOME.to("solver"), OUTCOME.to("refiner"), *REVIEWED, GAIN.to("verifier"))
async def solve_and_revise(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 1,
    critic: Literal["none", "oracle", "frozen", "trained", "self"] = "none",
    paid_by: Literal["verdict", "gain"] = "verdict",
    refine: Literal["failed", "all"] = "failed",
    join: NotNegative = 1,
    leak: bool = False,
) -> None:
    """``samples`` solutions, critiques and revisions, see above.

    The reward ``outcome`` is that of the answer; a revision that does not join gets none. ``paid_by="gain"`` adds the
    reward ``gain`` of each critique whose revision could be graded, and asks for no critique that nobody revises by.
    Where nobody of a group solved the problem, metadata of its first solution say whether it was ``rescued``.
    """
    solutions = await attempts(task, roles, samples)
    for solution in solutions:
        solution.reward(OUTCOME, float(CORRECT.require(solution)))
    if critic == "none":
        return

    readable = [solution for solution in solutions if solution.parsed.ok]
    revisable = readable
    if refine == "failed":
        revisable = [solution for solution in readable if not CORRECT.require(solution)]

    # A critic that learns from its verdicts also judges what nobody revises.
    learns_from_verdicts = critic == "trained" and paid_by == "verdict"
    critiques = await write_critiques(task, roles, readable if learns_from_verdicts else revisable)

    calls = []
    for solution in revisable:
        text = critique_text(critiques[solution.id], solution, critic)
        if leak:
            text += f"\nReference: {task.gold}"
        call = roles.refiner(
            group=solution.group,
            parent=solution,
            problem=task.prompt,
            solution=solution.tagged_text,
            review=text,
        )
        calls.append(call)

    n_joined = 0
    for solution, revision in zip(revisable, await gather(calls), strict=True):
        is_right = await examine(task, roles, revision)
        if paid_by == "gain" and is_right is not None:
            gain = float(is_right) - float(CORRECT.require(solution))
            critiques[solution.id].chat.reward(GAIN, gain)
        if is_right and n_joined < join:
            revision.reward(OUTCOME, 1.0)
            n_joined += 1

    is_solved = any(CORRECT.require(solution) for solution in solutions)
    if solutions and not is_solved:
        solutions[0].add_metadata(RESCUED, n_joined > 0)


async def write_critiques(task: Task, roles: Roles, solutions: list[Turn]) -> dict[str, Turn]:
    """Id of a solution → its review. Reviews of all solutions of a problem are compared with each other."""
    calls = [review(task, roles, solution, group=f"{solution.group}/reviews") for solution in solutions]
    critiques = {}
    for solution, [review_turn] in zip(solutions, await gather(calls), strict=True):
        reward_review(review_turn, CORRECT.require(solution))
        critiques[solution.id] = review_turn
    return critiques


def critique_text(review_turn: Turn, solution: Turn, critic: str) -> str:
    """Return what the refiner reads: the review as it was written, with the truth for its verdicts where an oracle
    speaks."""
    if critic != "oracle":
        return review_turn.text
    return corrected_review(review_turn.text, STEP_OK.of(solution) or [], CORRECT.require(solution))


@recipe(model="shipped-roles", kl=0.0)
def critique(
    run: RunConfig,
    *,
    critic_lr: float = 2e-4,  # learning rate of the critic
    entropy: Weight = 0.001,  # weight of the entropy bonus
    critic: Literal["none", "oracle", "frozen", "trained", "self"] = "frozen",  # who criticises
    paid_by: Literal["verdict", "gain"] = "verdict",  # a trained critic's pay: its verdict, or what its revision gains
    critic_model: str | None = None,  # begins the critic; by default the generator's model
    refine: Literal["failed", "all"] = "failed",  # which solutions are revised
    join: int = 1,  # right revisions that join the group
    gamma: Weight = 0.1,  # γ of the shaped loss
    leak: bool = False,  # show the refiner the gold answer
) -> Recipe:
    if leak and critic == "none":
        raise ConfigError(
            "critique: leak=True with critic='none', where nobody reads the answer; choose a critic",
            code="E_LEAK_WITHOUT_CRITIC",
        )
    if paid_by == "gain" and critic != "trained":
        raise ConfigError(
            f"critique: paid_by=gain with critic={critic!r}, who learns nothing; add critic=trained",
            code="E_GAIN_WITHOUT_LEARNER",
        )
    initial_critic = critic_model or run.model
    revises = critic != "none"
    solver = common_roles.solver("generator", run.model)
    learn = DrGRPO(
        reward_weights={OUTCOME: 1.0},
        edit_after=(drop_flat_groups, TrainWithPromptOf("solver")),
        loss=Shaped(gamma, ScoreFunction()),
        normalise="constant",
        constant=float(solver.sampling.max_tokens),
        kl=run.kl_penalty(),
        entropy=entropy,
    )
    also = ("refiner",) if revises else ()
    objectives = {"generator": Objective(policy="generator", role="solver", extra_roles=also, algorithm=learn)}
    policies = {"generator": run.learner(), **run.reference_policies()}
    roles = {"solver": solver}
    measures = [measure_solver("solver", 8)]
    if revises:
        roles["refiner"] = common_roles.refiner("generator", run.model)
        roles["verifier"] = common_roles.verifier("generator" if critic == "self" else "critic", initial_critic)
        measures += [measure_solver("refiner", 1), measure_verifier("verifier")]
    if critic == "trained":
        pay = GAIN if paid_by == "gain" else AGREEMENT
        criticise = GRPO(reward_weights={pay: 1.0, FORMAT: 0.8}, sum_rewards_first=True)
        objectives["critic"] = Objective(policy="critic", role="verifier", algorithm=criticise)
        policies["critic"] = run.learner(initial_critic, lr=critic_lr)
    elif critic in ("frozen", "oracle"):
        policies["critic"] = frozen(initial_critic)
    play = partial(solve_and_revise, critic=critic, join=join, leak=leak)
    if paid_by == "gain":
        play = partial(play, paid_by=paid_by)
    return run.recipe(
        "critique" if revises else "critique-none",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(
            partial(play, samples=run.group_size, refine=refine), *objectives, name="generator", group_size=1
        ),
        evaluate=partial(play, refine="all"),
        measures=tuple(measures),
    )
