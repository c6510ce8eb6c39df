"""Self-trained verification: a verifier that judges well with the reference in sight is taught to say the same without
it, and then pays a generator.

Wu & Raghunathan 2026 (arXiv 2605.30290). In ``lessons`` steps the verifier's start, frozen, is shown the reference and
reviews solutions; the verifier, who is not shown it, learns these reviews by cross-entropy. After that it pays the
generator by the share of its reviews that call a solution right. It aims at verifiers that are near chance when they
begin, and ruin what they pay.

There is something to be taught only where the start judges better with the reference than without, so both are measured
on held-out problems before the run, as ``sighted/balanced_accuracy`` and ``verifier/balanced_accuracy``. Look at these
first.

Controls are parameters: ``taught="none"`` pays by the verifier's start, untaught; ``taught="blind"`` teaches it the
reviews of its start without the reference, as many of them, so that the difference is the reference's. ``keep="right"``
leaves out lessons whose verdict is not the truth. ``verifier="trained"`` lets the verifier learn on beside the
generator, 1 for a verdict that is the truth and 0.8 for the format, as in ``judged``.

Different from the paper: lessons are drawn at each step from the present generator, which does not change meanwhile;
the generator is paid for first solutions and does not revise them by the verifier's words. Left out: verification and
refinement in turn, in training and on held-out problems.
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
Sight = Literal["solution", "answer", "nothing"]
Keep = Literal["readable", "right"]


def problem_with_reference(task: Task, sight: Sight) -> str:
    """The problem as the sighted verifier is shown it: with the worked solution below it, or with the answer where
    ``sight`` says so or there is no worked solution."""
    if sight == "nothing":
        return task.prompt
    worked = task.solution if sight == "solution" else None
    return f"{task.prompt}\n\nReference answer, which is right:\n{worked or task.gold}"


async def review_in_sight(task: Task, roles: Roles, solution: Turn, sight: Sight) -> Turn:
    """The role ``sighted`` reviews a solution that was examined, in the same words as the verifier is asked."""
    fields = fields_for(task, roles, roles.sighted, solution, solution.tagged_text)
    fields["problem"] = problem_with_reference(task, sight)
    turn = await roles.sighted(group=solution.id, parent=solution, **fields)
    right = CORRECT.of(solution)
    if right is not None:
        turn.add_metadata(CORRECT, right)
    show_verdict(turn)
    return turn


@gives(LESSON.to("pupil"))
async def teach(task: Task, roles: Roles, *, group: Positive, sight: Sight, keep: Keep) -> None:
    """Each of ``group`` solutions that can be read is reviewed in sight of the reference, and the review is said again
    under the verifier's own prompt, where it is learned."""
    solutions = [solution for solution in await attempts(task, roles, group) if solution.parsed.ok]
    seen = await gather([review_in_sight(task, roles, solution, sight) for solution in solutions])
    for solution, turn in zip(solutions, seen, strict=True):
        fields = fields_for(task, roles, roles.verifier, solution, solution.tagged_text)
        lesson = await roles.pupil(parent=solution, group=solution.id, said=turn.text, **fields)
        is_kept = turn.parsed.ok and (keep == "readable" or turn.parsed.final == CORRECT.require(solution))
        lesson.reward(LESSON, float(is_kept))


def say_again(fields: Mapping[str, Any], rng: Random) -> str:
    """Return what the sighted verifier said, as the pupil's own words."""
    return str(fields["said"])


@gives(*SOLVED, CALLED_RIGHT.to("solver"), *REVIEWED, once=("solver",))
async def solve_for_the_verifier(task: Task, roles: Roles, *, reviews: Positive) -> None:
    """``reviews`` verdicts pay a solution. One that cannot be read earns 0; one of which no review can be read earns
    nothing and is not learned from."""
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
async def judge_with_and_without(task: Task, roles: Roles, *, sight: Sight) -> None:
    """One review of a solution without the reference, and one by the verifier's start in sight of it."""
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
    taught: Literal["sighted", "blind", "none"] = "sighted",  # whose reviews it learns first; blind: without reference
    lessons: int = 20,  # steps in which the verifier is taught, and nobody else learns
    sight: Literal["solution", "answer"] = "solution",  # what the teacher is shown; the answer where none is worked
    keep: Keep = "readable",  # which lessons are learned; right: those whose verdict is the truth
    verifier: Literal["frozen", "trained"] = "frozen",  # does it learn on beside the generator?
    reviews: int = 4,  # of a solution, where they pay
    review_format: verifier_roles.ReviewFormat = "steps",  # format of the verifier's reviews
) -> Recipe:
    is_taught = taught != "none"
    learns_on = verifier == "trained"
    if reviews < 1 or (learns_on and reviews < 2):
        raise ConfigError(
            f"stv: reviews is {reviews}; expected at least 1, and 2 where the verifier learns on",
            code="E_SETTING_RANGE",
        )
    if is_taught and lessons < 1:
        raise ConfigError(
            f"stv: lessons is {lessons} and taught={taught}; raise it, or say taught=none",
            code="E_LESSONS_WITHOUT_TAUGHT",
        )

    start = verifier_model or run.model
    verifier_role = verifier_roles.verifier_role("verifier", start, review_format)
    shown: Sight = "nothing" if taught == "blind" else sight
    policies = {
        "generator": run.learner(),
        "verifier": run.learner(start, lr=verifier_lr) if is_taught or learns_on else frozen(start),
        "sighted": frozen(start),
        **run.reference_policies(),
    }
    roles = {
        "solver": common_roles.solver("generator", run.model),
        "verifier": verifier_role,
        "sighted": replace(verifier_role, policy="sighted"),
    }

    # The generator is paid by verdicts; the verifier may learn on from the same reviews.
    learn_to_solve = GRPO(reward_weights={CALLED_RIGHT: 1.0}, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}
    if learns_on:
        learn_to_judge = GRPO(
            reward_weights={AGREEMENT: 1.0, FORMAT: 0.8}, sum_rewards_first=True, balance=ClassBalance()
        )
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)
    paying = Phase(
        name="generator",
        protocol=partial(solve_for_the_verifier, reviews=reviews),
        objectives=("generator", "verifier") if learns_on else ("generator",),
    )
    if not is_taught:
        schedule = alternate(paying, ratio=(1,))
    else:
        policies["pupil"] = program(say_again, tokens_of="verifier")
        roles["pupil"] = replace(verifier_role, policy="pupil")
        objectives["lessons"] = Objective(policy="verifier", role="pupil", algorithm=SFT(where=LESSON))
        teaching = Phase(
            name="lessons",
            protocol=partial(teach, group=run.group_size, sight=shown, keep=keep),
            objectives=("lessons",),
            group_size=1,
        )
        schedule = alternate(paying, teaching, ratio=(1, 0), warmup={"lessons": lessons})

    return run.recipe(
        f"stv-{taught}" if taught != "sighted" else "stv",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(judge_with_and_without, sight=shown),
        measures=(*measure_solver_and_verifier("verifier"), measure_verifier("sighted", gap="sighted/gap")),
    )
