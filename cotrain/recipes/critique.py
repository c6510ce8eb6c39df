"""Critique-GRPO: failed solutions are criticised and revised, and right revisions are learned as if nobody had helped.

Zhang et al. 2025 (arXiv 2506.03106). The generator is trained. It writes a group of solutions of each problem; a critic
reviews the wrong ones, and the generator revises each with its review in the prompt. The first ``join`` right revisions
join the group, as answers to the problem alone. The advantage A is r − mean of the group, without a standard deviation,
and the loss of an answer is the sum over its tokens, divided by a fixed length. The generator would hardly have sampled
a revision without the critique, so its tokens have no importance ratio and no clip. Their loss is −A · π/(π + γ),
γ = 0.1.

Controls are parameters:

- ``critic``: "none" is GRPO with everything else the same. "frozen" has a critic of its own that is never trained,
  "self" the generator under the prompt of a verifier. "trained" learns from its final verdicts, as in RL Tango.
  "oracle" is the frozen critic, with the truth written over its verdicts.
- ``paid_by="gain"``: a trained critic earns the gain of its critique, [revision right] − [solution right] (ICRL, arXiv
  2605.15224). Its control is ``paid_by="verdict"``.
- ``refine="all"``: right solutions are revised too.
- ``leak=True``: a negative control. The refiner reads the gold answer below the critique, as in the authors' default
  (``simple_gt``), so that gains are those of copying it. No other prompt ever has the gold answer.

What differs from the authors' code: revisions are added to the group, where theirs replaces the first answer of it; and
where no revision is right none joins, where theirs adds the best one.

What differs from ICRL: solver and critic are two policies, theirs one. One revision follows each critique, theirs
several. Its tokens are weighed by γ as above, theirs by the ratio of their probabilities without and with the critique.

Left out: textual critiques made with the reference solution.
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
    """``samples`` solutions, their critiques and revisions, see above.

    A solution has the reward ``outcome``, and so has a revision that joins; others have none. With ``paid_by="gain"`` a
    critique has the reward ``gain`` where its revision could be graded, and only solutions that are revised have a
    critique. Where no solution of a group is right, metadata of the first one say whether a revision was (``rescued``).
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

    # A critic that learns from its verdicts also reviews the solutions that are not revised.
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
    """Review each solution once; returns id of a solution → its review. The reviews of all solutions of a problem are
    one group, which GRPO compares."""
    calls = [review(task, roles, solution, group=f"{solution.group}/reviews") for solution in solutions]
    critiques = {}
    for solution, [review_turn] in zip(solutions, await gather(calls), strict=True):
        reward_review(review_turn, CORRECT.require(solution))
        critiques[solution.id] = review_turn
    return critiques


def critique_text(review_turn: Turn, solution: Turn, critic: str) -> str:
    """Return the text that the refiner reads: the review as it was written; from an oracle, with the truth in the place
    of its verdicts."""
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
    paid_by: Literal["verdict", "gain"] = "verdict",  # what rewards a trained critic: a true verdict, or the gain
    critic_model: str | None = None,  # initial weights of the critic; by default the generator's model
    refine: Literal["failed", "all"] = "failed",  # solutions that are revised
    join: int = 1,  # right revisions that join the group, at most
    gamma: Weight = 0.1,  # γ of the loss of revisions
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
    has_critic = critic != "none"

    policies = {"generator": run.learner(), **run.reference_policies()}
    solver = common_roles.solver("generator", run.model)
    roles = {"solver": solver}
    measures = [measure_solver("solver", 8)]
    if has_critic:
        roles["refiner"] = common_roles.refiner("generator", run.model)
        roles["verifier"] = common_roles.verifier("generator" if critic == "self" else "critic", initial_critic)
        measures += [measure_solver("refiner", 1), measure_verifier("verifier")]

    # The generator learns from its solutions, and from right revisions under the prompt of the solver.
    learn_to_solve = DrGRPO(
        reward_weights={OUTCOME: 1.0},
        edit_after=(drop_flat_groups, TrainWithPromptOf("solver")),
        loss=Shaped(gamma, ScoreFunction()),
        normalise="constant",
        constant=float(solver.sampling.max_tokens),
        kl=run.kl_penalty(),
        entropy=entropy,
    )
    revising_roles = ("refiner",) if has_critic else ()
    objectives = {
        "generator": Objective(policy="generator", role="solver", extra_roles=revising_roles, algorithm=learn_to_solve)
    }

    if critic == "trained":
        signal = GAIN if paid_by == "gain" else AGREEMENT
        learn_to_criticise = GRPO(reward_weights={signal: 1.0, FORMAT: 0.8}, sum_rewards_first=True)
        objectives["critic"] = Objective(policy="critic", role="verifier", algorithm=learn_to_criticise)
        policies["critic"] = run.learner(initial_critic, lr=critic_lr)
    elif critic in ("frozen", "oracle"):
        policies["critic"] = frozen(initial_critic)

    protocol = partial(solve_and_revise, critic=critic, join=join, leak=leak)
    if paid_by == "gain":
        protocol = partial(protocol, paid_by=paid_by)
    return run.recipe(
        "critique" if has_critic else "critique-none",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(
            partial(protocol, samples=run.group_size, refine=refine), *objectives, name="generator", group_size=1
        ),
        evaluate=partial(protocol, refine="all"),
        measures=tuple(measures),
    )
