"""CoVerRL: one model elects its labels and verifies them, and both roles learn from what it agrees on.

Pan et al. 2026 (arXiv 2603.17775). No answer is known. ``votes`` samples of a problem elect a label. The model verifies
up to ``reviews`` of the answers that say so, and as many times the rarest answer that does not: a right and a wrong
anchor of one size. Where no more of its reviews call the elected answer right than wrong, the problem is vetoed, and
nobody learns from it. For every verdict "wrong" on what is left it writes ``revisions`` new solutions. Each role is
paid 1 for the format and 1 for agreeing with the label: solutions (the first ``group_size``) and revisions by their
answer, reviews by their verdict. Reviews of equal answers are one group, and so are the revisions after one review.
What was not verified is not vetoed. Where only some problems have an answer (``--labelled answers``), it learns from
the others.

Controls are parameters: ``veto=False``, and ``balanced=False``, which verifies the first 2 · ``reviews`` solutions as
they come. ``regenerate="review"`` shows the solution and its review, as the paper does; the shipped base does not know
such a prompt and goes on from the steps before the first one called wrong ("prefix", the default of models that speak
its formats).

Different from the paper, which has 32 votes, 16 trained, 8 reviews of either anchor and 6 revisions (the authors' code
rounds them to a multiple of the GPUs: 4): a review that cannot be read is no verdict (there it counts as "correct", or
as "wrong" where such a word occurs), and each role's tokens are averaged apart. Left out: the second turn in
evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    FORMAT,
    GRPO,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    Turn,
    constant_schedule,
    gather,
    gives,
    recipe,
    solve_then_verify,
)
from cotrain.algorithms.policy_gradient import PPOClip
from cotrain.core.arguments import Positive
from cotrain.core.notes import ANSWER, FAILURE, LABEL_RIGHT, REWARD_RIGHT, Finding, Metadata
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS
from cotrain.core.types import ParseFailure
from cotrain.formats.role_prompts import REFINE, REFINE_FULL
from cotrain.formats.solutions import Solution, parse_solution, tagged_solution
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts, continue_from, include_closing_tag
from cotrain.rollout.reviews import review
from cotrain.rollout.votes import agrees_with, elected_turn, rarest_turn

VETOED = Metadata[bool]("vetoed", bool, "did the reviews veto the elected answer")
VETO_RIGHT = Metadata[bool]("veto_right", bool, "of a vetoed problem: was the veto right")
KEPT_LABEL_RIGHT = Metadata[bool]("kept_label_right", bool, "of a problem that was not vetoed: is the label the truth")
KEPT = Finding[str]("kept", str, "the beginning of a revision that was given to it")


@gives(AGREEMENT, FORMAT)
async def vote_then_verify(
    task: Task,
    roles: Roles,
    *,
    votes: Positive,
    trained: Positive,
    reviews: Positive,
    revisions: Positive,
    veto: bool = True,
    balanced: bool = True,
    regenerate: Literal["prefix", "review"] = "prefix",
) -> None:
    """One problem, see above. A vetoed one gets no reward, so that its traces are dropped from learning and counted."""
    solutions = await attempts(task, roles, votes)
    label = elected_turn(solutions)
    if label is None:
        return
    judged = review_anchors(solutions, label, reviews, balanced=balanced)
    review_turns = await gather(
        [review(task, roles, s, n=copies, group=f"{s.group}/{s.parsed.answer}") for s, copies in judged]
    )
    pairs = [(s, review_turn) for (s, _), written in zip(judged, review_turns, strict=True) for review_turn in written]
    verdicts = [review_turn.parsed.final for s, review_turn in pairs if review_turn.parsed.ok and agrees_with(s, label)]
    vetoed = veto and is_vetoed(verdicts)
    label_right = CORRECT.of(label)
    for solution in solutions:
        if label_right is not None:
            solution.add_metadata(LABEL_RIGHT, label_right)
        solution.add_metadata(VETOED, vetoed)
        if label_right is not None:
            solution.add_metadata(VETO_RIGHT if vetoed else KEPT_LABEL_RIGHT, label_right != vetoed)
    if vetoed:
        return
    for solution in solutions[:trained]:
        pay_turn(solution, agrees_with(solution, label), CORRECT.of(solution))
    for solution, review_turn in pairs:
        right = CORRECT.of(solution)
        final = review_turn.parsed.final if review_turn.parsed.ok else None
        agreed = final == agrees_with(solution, label)
        pay_turn(review_turn, agreed, None if right is None else final == right)
    doubted = [(s, review_turn) for s, review_turn in pairs if review_turn.parsed.ok and not review_turn.parsed.final]
    for revised in await gather(
        [revise_solution(task, roles, s, review_turn, revisions, regenerate) for s, review_turn in doubted]
    ):
        for turn in revised:
            pay_turn(turn, agrees_with(turn, label), CORRECT.of(turn))


def review_anchors(
    solutions: Sequence[Turn], label: Turn, reviews: int, *, balanced: bool = True
) -> list[tuple[Turn, int]]:
    """What to review, and how often; nothing where the label has fewer than two solutions, or no rival."""
    readable = [s for s in solutions if s.parsed.ok]
    wrong = rarest_turn(readable, label.parsed.answer)
    chosen = readable if balanced else readable[: 2 * reviews]
    right = [s for s in chosen if agrees_with(s, label)]
    if wrong is None or len(right) < 2:
        return []
    if not balanced:
        return [(s, 1) for s in chosen]
    return [(s, 1) for s in right[:reviews]] + [(wrong, min(reviews, len(right)))]


def is_vetoed(said: Sequence[bool]) -> bool:
    """Do these verdicts on the elected answer leave it without a majority? Not where there are none."""
    return bool(said) and said.count(False) >= said.count(True)


def pay_turn(turn: Turn, agreed: bool, truth: bool | None) -> None:
    """``FORMAT`` and ``AGREEMENT``; notes whether the latter is what the truth would have paid, where it is known."""
    turn.reward(FORMAT, float(turn.parsed.ok))
    turn.reward(AGREEMENT, float(agreed))
    if truth is not None:
        turn.add_metadata(REWARD_RIGHT, agreed == truth)


async def revise_solution(
    task: Task, roles: Roles, solution: Turn, review_turn: Turn, n: int, regenerate: str
) -> list[Turn]:
    """``n`` solutions after a review that called this one wrong: ``regenerate`` says from what."""
    step_verdicts = review_turn.parsed.steps
    sound = step_verdicts.index(False) if False in step_verdicts else 0  # steps before the first one called wrong
    kept_text = (
        solution.text[: include_closing_tag(solution.parsed.steps[sound - 1], solution).end]
        if sound and regenerate == "prefix"
        else ""
    )
    fields_shown = {
        "kept": kept_text,
        "problem": task.prompt,
        "solution": solution.tagged_text,
        "review": review_turn.text,
    }
    chats = [roles.refiner.begin(group=review_turn.id, parent=review_turn, **fields_shown) for _ in range(n)]
    turns = await gather([continue_from(chat, kept_text) for chat in chats])
    graded = []
    for turn in turns:
        if task.gradable:
            grade = await roles.grade(task, turn, text=kept_text + turn.text if kept_text else None)
            if grade.value is None:
                turn.fail(grade.reason or "ungraded")
                continue
            turn.add_metadata(CORRECT, grade.value)
        turn.add_finding(KEPT, kept_text)
        turn.add_finding(*(ANSWER, turn.parsed.answer) if turn.parsed.ok else (FAILURE, turn.parsed.reason))
        graded.append(turn)
    return graded


def parse_revision(text: str, fields: Mapping[str, Any]) -> Solution | ParseFailure:
    """The whole solution, its kept beginning included."""
    return tagged_solution(f"{fields['kept']}{text}")


@recipe
def coverrl(
    run: RunConfig,
    *,
    votes: int = 16,  # samples that elect the label
    reviews: int = 4,  # of the elected and of a rival answer each
    revisions: int = 4,  # after a verdict "wrong"
    clip_high: float = 0.28,  # upper clip of the ratio
    veto: bool = True,  # leave out problems whose label the reviews doubt
    balanced: bool = True,  # review a right and a wrong anchor
    regenerate: Literal["prefix", "review"] | None = None,  # what a revision sees
) -> Recipe:
    short = common_roles.is_terse(run.model)
    regenerate = regenerate or ("prefix" if short else "review")
    if regenerate == "review" and run.model in SHIPPED_LANGUAGE_MODELS:
        raise ConfigError(
            f"coverrl: model {run.model!r} knows no prompt that shows a review; use regenerate='prefix'",
            code="E_MODEL_WITHOUT_REVIEW_PROMPT",
        )
    if votes < run.group_size or min(reviews, revisions) < 2:
        raise ConfigError(
            f"coverrl: votes {votes}, group_size {run.group_size}, reviews {reviews}, revisions {revisions}; expected "
            "no more in group_size than votes, and at least 2 reviews and revisions, which are compared with each "
            "other",
            code="E_SETTING_RANGE",
        )
    by = GRPO(
        reward_weights={AGREEMENT: 1.0, FORMAT: 1.0},
        sum_rewards_first=True,
        loss=PPOClip(0.2, clip_high),
        kl=run.kl_penalty(),
    )
    solver = common_roles.solver("generator", run.model)
    refine = {"prefix": solver.prompt, "review": REFINE if short else REFINE_FULL}[regenerate]
    learners = {"generator": "solver", "verifier": "verifier", "refiner": "refiner"}
    play = partial(
        vote_then_verify,
        votes=votes,
        trained=run.group_size,
        reviews=reviews,
        revisions=revisions,
        veto=veto,
        balanced=balanced,
        regenerate=regenerate,
    )
    return run.recipe(
        "coverrl" + ("" if veto else "-no-veto") + ("" if balanced else "-unbalanced"),
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={
            "solver": solver,
            "verifier": common_roles.verifier("generator", run.model),
            "refiner": replace(
                solver, prompt=refine, parse=parse_revision if regenerate == "prefix" else parse_solution
            ),
        },
        objectives={name: Objective(policy="generator", role=role, algorithm=by) for name, role in learners.items()},
        schedule=constant_schedule(play, *learners, name="both", group_size=1, unlabelled=run.unlabelled_share()),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles(),
    )
