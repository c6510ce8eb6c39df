"""Self-trained verification: a verifier learns to judge without the reference as it does with it, then is the reward.

Wu & Raghunathan 2026 (arXiv 2605.30290). In the first ``lessons`` steps a frozen copy of the verifier is shown the
reference answer and reviews solutions (role ``sighted``); the verifier is not shown it, and learns these reviews by
cross-entropy. In all later steps the generator learns by GRPO from the share of the verifier's reviews that call its
solution right. The method is for verifiers that are near chance at first, and would ruin a generator that they pay.

The lessons can only help where the initial verifier judges better with the reference than without. Both are measured on
held-out problems before training, as ``sighted/balanced_accuracy`` and ``verifier/balanced_accuracy``: compare them
first.

Controls are parameters:

- ``taught="none"``: no lessons.
- ``taught="blind"``: as many lessons, from reviews without the reference. What is left is the effect of the reference.
- ``keep="right"``: only reviews with a true verdict are learned.
- ``verifier="trained"``: after the lessons the verifier learns beside the generator: 1 for a true verdict and 0.8 for
  the format, as in ``judged``.

What differs from the paper: the solutions of the lessons are sampled at each step, from the generator, which does not
change meanwhile. The generator is paid for its first solutions and does not revise them by the reviews. Left out:
verification and refinement in turn, in training and on held-out problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    FORMAT,
    GRPO,
    SFT,
    ClassBalance,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    Turn,
    alternate,
    constant_schedule,
    frozen,
    gather,
    gives,
    program,
    recipe,
    solve,
)
from cotrain.core.arguments import Positive
from cotrain.metrics.heldout import measure_solver_and_verifier, measure_verifier
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.protocols import SOLVED, attempts
from cotrain.rollout.reviews import REVIEWED, fields_for, mean_verdict, review, reward_review, show_verdict

CALLED_RIGHT = Signal("called_right", meaning="share of the readable reviews that call the solution right")
LESSON = Signal("lesson", meaning="1 for a review that is learned, else 0")
Reference = Literal["solution", "answer", "nothing"]  # what the sighted verifier is shown
Keep = Literal["readable", "right"]  # reviews that are learned


def problem_with_reference(task: Task, sight: Reference) -> str:
    """The problem as the sighted verifier is shown it: with the worked solution below it, or with the answer where
    ``sight`` says so or there is no worked solution."""
    if sight == "nothing":
        return task.prompt
    reference = task.gold
    if sight == "solution" and task.solution:
        reference = task.solution
    return f"{task.prompt}\n\nReference answer, which is right:\n{reference}"


async def review_in_sight(task: Task, roles: Roles, solution: Turn, sight: Reference) -> Turn:
    """The role ``sighted`` reviews a solution that was examined, in the same words as the verifier is asked."""
    fields = fields_for(task, roles, roles.sighted, solution, solution.tagged_text)
    fields["problem"] = problem_with_reference(task, sight)
    turn = await roles.sighted(group=solution.id, parent=solution, **fields)
    is_right = CORRECT.of(solution)
    if is_right is not None:
        turn.add_metadata(CORRECT, is_right)
    show_verdict(turn)
    return turn


@gives(LESSON.to("pupil"))
async def teach(task: Task, roles: Roles, *, group: Positive, sight: Reference, keep: Keep) -> None:
    """``group`` solutions are reviewed in sight of the reference. The role ``pupil`` repeats each review under the
    verifier's own prompt, which does not show the reference; this is what the verifier learns."""
    solutions = [solution for solution in await attempts(task, roles, group) if solution.parsed.ok]
    sighted_reviews = await gather([review_in_sight(task, roles, solution, sight) for solution in solutions])
    for solution, review_turn in zip(solutions, sighted_reviews, strict=True):
        fields = fields_for(task, roles, roles.verifier, solution, solution.tagged_text)
        lesson = await roles.pupil(parent=solution, group=solution.id, said=review_turn.text, **fields)
        is_kept = review_turn.parsed.ok
        if keep == "right":
            is_kept = is_kept and review_turn.parsed.final == CORRECT.require(solution)
        lesson.reward(LESSON, float(is_kept))


def say_again(fields: Mapping[str, Any], rng: Random) -> str:
    """The policy of the role ``pupil``: it says what it is given."""
    return str(fields["said"])


@gives(*SOLVED, CALLED_RIGHT.to("solver"), *REVIEWED, once=("solver",))
async def solve_for_the_verifier(task: Task, roles: Roles, *, reviews: Positive) -> None:
    """A solution earns the share of its ``reviews`` that call it right.

    One that cannot be read earns 0. One of which no review can be read has no reward and is not learned from.
    """
    solution = await solve(task, roles)
    if solution.failed:
        return
    if not solution.parsed.ok:
        solution.reward(CALLED_RIGHT, 0.0)
        return
    review_turns = await review(task, roles, solution, n=reviews)
    for turn in review_turns:
        reward_review(turn, CORRECT.require(solution))
    share = mean_verdict(review_turns)
    if share is not None:
        solution.reward(CALLED_RIGHT, share)


@gives(*SOLVED, *REVIEWED, once=("solver",))
async def judge_with_and_without(task: Task, roles: Roles, *, sight: Reference) -> None:
    """The evaluation: one review of a solution without the reference, and one by the initial verifier with it."""
    solution = await solve(task, roles)
    if solution.parsed.ok and not solution.failed:
        await review(task, roles, solution)
        await review_in_sight(task, roles, solution, sight)


@recipe(steps=120)
def stv(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    taught: Literal["sighted", "blind", "none"] = "sighted",  # reviews of the lessons; blind: without reference
    lessons: int = 20,  # first steps, in which only the verifier is trained
    sight: Literal["solution", "answer"] = "solution",  # the reference: a worked solution where there is one, or answer
    keep: Keep = "readable",  # reviews that are learned; right: those with a true verdict
    verifier: Literal["frozen", "trained"] = "frozen",  # trained: the verifier goes on learning after the lessons
    reviews: int = 4,  # reviews of a solution, where they pay
    review_format: verifier_roles.ReviewFormat = "steps",  # format of the verifier's reviews
) -> Recipe:
    is_taught = taught != "none"
    learns_beside = verifier == "trained"
    if reviews < 1 or (learns_beside and reviews < 2):
        raise ConfigError(
            f"stv: reviews is {reviews}; expected at least 1, and 2 where the verifier learns on",
            code="E_SETTING_RANGE",
        )
    if is_taught and lessons < 1:
        raise ConfigError(
            f"stv: lessons is {lessons} and taught={taught}; raise it, or say taught=none",
            code="E_LESSONS_WITHOUT_TAUGHT",
        )

    initial_verifier = verifier_model or run.model
    verifier_role = verifier_roles.verifier_role("verifier", initial_verifier, review_format)
    reference: Reference = "nothing" if taught == "blind" else sight
    policies = {"generator": run.learner()}
    if is_taught or learns_beside:
        policies["verifier"] = run.learner(initial_verifier, lr=verifier_lr)
    else:
        policies["verifier"] = frozen(initial_verifier)
    policies["sighted"] = frozen(initial_verifier)
    policies |= run.reference_policies()
    roles = {
        "solver": common_roles.solver("generator", run.model),
        "verifier": verifier_role,
        "sighted": replace(verifier_role, policy="sighted"),
    }

    # The generator is paid by verdicts. The verifier may learn from the same reviews.
    learn_to_solve = GRPO(reward_weights={CALLED_RIGHT: 1.0}, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}
    if learns_beside:
        learn_to_judge = GRPO(
            reward_weights={AGREEMENT: 1.0, FORMAT: 0.8}, sum_rewards_first=True, balance=ClassBalance()
        )
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)
    generator_phase = Phase(
        name="generator",
        protocol=partial(solve_for_the_verifier, reviews=reviews),
        objectives=("generator", "verifier") if learns_beside else ("generator",),
    )

    # The lessons come first, as a warm-up: after it, this phase has no share of the steps.
    if is_taught:
        policies["pupil"] = program(say_again, tokens_of="verifier")
        roles["pupil"] = replace(verifier_role, policy="pupil")
        objectives["lessons"] = Objective(policy="verifier", role="pupil", algorithm=SFT(where=LESSON))
        lesson_phase = Phase(
            name="lessons",
            protocol=partial(teach, group=run.group_size, sight=reference, keep=keep),
            objectives=("lessons",),
            group_size=1,  # the protocol samples a group of solutions itself
        )
        schedule = alternate(generator_phase, lesson_phase, ratio=(1, 0), warmup={"lessons": lessons})
    else:
        schedule = constant_schedule(generator_phase.protocol, *generator_phase.objectives, name="generator")

    return run.recipe(
        f"stv-{taught}" if taught != "sighted" else "stv",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(judge_with_and_without, sight=reference),
        measures=(*measure_solver_and_verifier("verifier"), measure_verifier("sighted", gap="sighted/gap")),
    )
