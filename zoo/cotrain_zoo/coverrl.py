"""CoVerRL: one model elects its labels and verifies them, and both roles learn from what it agrees on.

Pan et al. 2026 (arXiv 2603.17775). One policy is trained as solver, verifier and refiner. No answer is known; for each
problem:

1. ``votes`` solutions elect a label, their most frequent answer.
2. The policy reviews up to ``reviews`` solutions that give the label (the right anchor), and the solution of the rarest
   other answer as many times (the wrong anchor).
3. The problem is vetoed, and nobody learns from it, unless more reviews of the right anchor say "right" than "wrong".
   Without any review there is no veto.
4. After each review that says "wrong" the policy writes ``revisions`` new solutions.

Every turn earns 1 for the format and 1 for agreeing with the label: solutions (the first ``group_size``) and revisions
by their answer, reviews by their verdict. GRPO compares the reviews of equal answers with each other, and the revisions
after one review. Where only some problems have an answer (``--labelled answers``), it learns from the others.

Controls are parameters:

- ``veto=False``: no problem is vetoed.
- ``balanced=False``: the first 2 · ``reviews`` solutions are reviewed once each, whatever they answer.
- ``regenerate``: "review" shows the refiner a solution and its review, as in the paper. "prefix" lets it go on from the
  steps before the first one called wrong; it is the default of models that know only the shipped formats.

What differs from the paper:

- It has 32 votes, 16 of them trained on, 8 reviews of either anchor and 6 revisions (4 in the authors' code, which
  rounds to a multiple of the GPUs).
- A review that cannot be read is no verdict; theirs counts as "correct", or as "wrong" where such a word occurs.
- Each role's tokens are averaged apart.
- Left out: the second turn in evaluation.
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
from cotrain.core.notes import LABEL_RIGHT, REWARD_RIGHT, Finding, Metadata
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS
from cotrain.core.types import ParseFailure
from cotrain.formats.role_prompts import REFINE, REFINE_FULL
from cotrain.formats.solutions import Solution, parse_solution, tagged_solution
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts, continue_from, include_closing_tag, show_answer
from cotrain.rollout.reviews import review
from cotrain.rollout.votes import agrees_with, elected_turn, rarest_turn

VETOED = Metadata[bool]("vetoed", bool, "did the reviews veto the elected answer")
VETO_RIGHT = Metadata[bool]("veto_right", bool, "of a vetoed problem: was the veto right")
KEPT_LABEL_RIGHT = Metadata[bool]("kept_label_right", bool, "of a problem that was not vetoed: is the label the truth")
KEPT = Finding[str]("kept", str, "the beginning of a revision that was given to it")
Regenerate = Literal["prefix", "review"]  # what a refiner sees


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
    regenerate: Regenerate = "prefix",
) -> None:
    """One problem, see above. A vetoed one gets no reward, so that its traces are dropped from learning and counted."""
    solutions = await attempts(task, roles, votes)
    label = elected_turn(solutions)
    if label is None:
        return

    anchors = review_anchors(solutions, label, reviews, balanced=balanced)
    reviews_by_anchor = await gather(
        [
            review(task, roles, solution, n=n_reviews, group=f"{solution.group}/{solution.parsed.answer}")
            for solution, n_reviews in anchors
        ]
    )
    solution_reviews: list[tuple[Turn, Turn]] = []  # (solution, a review of it)
    for (solution, _), review_turns in zip(anchors, reviews_by_anchor, strict=True):
        for review_turn in review_turns:
            solution_reviews.append((solution, review_turn))

    verdicts_on_label = []
    for solution, review_turn in solution_reviews:
        if review_turn.parsed.ok and agrees_with(solution, label):
            verdicts_on_label.append(review_turn.parsed.final)
    has_veto = veto and is_vetoed(verdicts_on_label)
    for solution in solutions:
        _note_veto(solution, has_veto, CORRECT.of(label))
    if has_veto:
        return

    for solution in solutions[:trained]:
        pay_turn(solution, agrees_with(solution, label), CORRECT.of(solution))
    negative_reviews: list[tuple[Turn, Turn]] = []  # (solution, a review that calls it wrong)
    for solution, review_turn in solution_reviews:
        verdict = review_turn.parsed.final if review_turn.parsed.ok else None
        is_right = CORRECT.of(solution)
        by_truth = None if is_right is None else verdict == is_right
        pay_turn(review_turn, verdict == agrees_with(solution, label), by_truth)
        if review_turn.parsed.ok and not verdict:
            negative_reviews.append((solution, review_turn))

    revisions_by_review = await gather(
        [
            revise_solution(task, roles, solution, review_turn, revisions, regenerate)
            for solution, review_turn in negative_reviews
        ]
    )
    for revision_turns in revisions_by_review:
        for revision in revision_turns:
            pay_turn(revision, agrees_with(revision, label), CORRECT.of(revision))


def _note_veto(solution: Turn, has_veto: bool, label_is_right: bool | None) -> None:
    """Record whether the problem is vetoed, and whether that is right, where the truth is known."""
    if label_is_right is not None:
        solution.add_metadata(LABEL_RIGHT, label_is_right)
    solution.add_metadata(VETOED, has_veto)
    if label_is_right is None:
        return
    if has_veto:
        solution.add_metadata(VETO_RIGHT, not label_is_right)
    else:
        solution.add_metadata(KEPT_LABEL_RIGHT, label_is_right)


def review_anchors(
    solutions: Sequence[Turn], label: Turn, reviews: int, *, balanced: bool = True
) -> list[tuple[Turn, int]]:
    """The solutions to review, and how often each; none where the label has fewer than two solutions, or no rival."""
    readable = [solution for solution in solutions if solution.parsed.ok]
    wrong_anchor = rarest_turn(readable, label.parsed.answer)
    candidates = readable if balanced else readable[: 2 * reviews]
    right_anchor = [solution for solution in candidates if agrees_with(solution, label)]
    if wrong_anchor is None or len(right_anchor) < 2:
        return []
    if not balanced:
        return [(solution, 1) for solution in candidates]
    anchors = [(solution, 1) for solution in right_anchor[:reviews]]
    anchors.append((wrong_anchor, len(anchors)))
    return anchors


def is_vetoed(verdicts: Sequence[bool]) -> bool:
    """Whether there are verdicts on the elected answer, and no majority of them calls it right."""
    return bool(verdicts) and verdicts.count(False) >= verdicts.count(True)


def pay_turn(turn: Turn, agrees: bool, by_truth: bool | None) -> None:
    """Reward ``FORMAT``, and ``AGREEMENT`` with the label. ``by_truth``: the agreement with the truth in place of the
    label, where it is known; whether both are the same becomes metadata."""
    turn.reward(FORMAT, float(turn.parsed.ok))
    turn.reward(AGREEMENT, float(agrees))
    if by_truth is not None:
        turn.add_metadata(REWARD_RIGHT, agrees == by_truth)


async def revise_solution(
    task: Task, roles: Roles, solution: Turn, review_turn: Turn, n: int, regenerate: Regenerate
) -> list[Turn]:
    """``n`` graded revisions of a solution that a review called wrong; those whose grading failed are left out."""
    kept_text = _text_before_first_error(solution, review_turn) if regenerate == "prefix" else ""
    fields = {
        "kept": kept_text,
        "problem": task.prompt,
        "solution": solution.tagged_text,
        "review": review_turn.text,
    }
    chats = [roles.refiner.begin(group=review_turn.id, parent=review_turn, **fields) for _ in range(n)]
    turns = await gather([continue_from(chat, kept_text) for chat in chats])

    revisions = []
    for turn in turns:
        if task.gradable:
            grade = await roles.grade(task, turn, text=kept_text + turn.text if kept_text else None)
            if grade.value is None:
                turn.fail(grade.reason or "ungraded")
                continue
            turn.add_metadata(CORRECT, grade.value)
        turn.add_finding(KEPT, kept_text)
        show_answer(turn)
        revisions.append(turn)
    return revisions


def _text_before_first_error(solution: Turn, review_turn: Turn) -> str:
    """A solution up to the first step that a review calls wrong; "" where that is the first one, or no step."""
    step_verdicts = review_turn.parsed.steps
    if False not in step_verdicts:
        return ""
    n_sound = step_verdicts.index(False)
    if n_sound == 0:
        return ""
    last_sound_step = include_closing_tag(solution.parsed.steps[n_sound - 1], solution)
    return solution.text[: last_sound_step.end]


def parse_revision(text: str, fields: Mapping[str, Any]) -> Solution | ParseFailure:
    """The whole solution, its kept beginning included."""
    return tagged_solution(f"{fields['kept']}{text}")


@recipe
def coverrl(
    run: RunConfig,
    *,
    votes: int = 16,  # solutions that elect the label
    reviews: int = 4,  # reviews of the label's solutions, and as many of a rival
    revisions: int = 4,  # solutions after each review that says "wrong"
    clip_high: float = 0.28,  # upper clip of the importance ratio
    veto: bool = True,  # leave out problems whose label the reviews doubt
    balanced: bool = True,  # review a right and a wrong anchor
    regenerate: Regenerate | None = None,  # what a revision sees; by default as the model knows it
) -> Recipe:
    is_terse = common_roles.is_terse(run.model)
    if regenerate is None:
        regenerate = "prefix" if is_terse else "review"
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

    solver = common_roles.solver("generator", run.model)
    if regenerate == "prefix":
        refiner = replace(solver, parse=parse_revision)
    else:
        refiner = replace(solver, prompt=REFINE if is_terse else REFINE_FULL, parse=parse_solution)
    roles = {
        "solver": solver,
        "verifier": common_roles.verifier("generator", run.model),
        "refiner": refiner,
    }

    # All three roles teach the one policy, by the same rule.
    learn = GRPO(
        reward_weights={AGREEMENT: 1.0, FORMAT: 1.0},
        sum_rewards_first=True,
        loss=PPOClip(0.2, clip_high),
        kl=run.kl_penalty(),
    )
    objectives = {
        "generator": Objective(policy="generator", role="solver", algorithm=learn),
        "verifier": Objective(policy="generator", role="verifier", algorithm=learn),
        "refiner": Objective(policy="generator", role="refiner", algorithm=learn),
    }
    protocol = partial(
        vote_then_verify,
        votes=votes,
        trained=run.group_size,
        reviews=reviews,
        revisions=revisions,
        veto=veto,
        balanced=balanced,
        regenerate=regenerate,
    )

    name = "coverrl"
    if not veto:
        name += "-no-veto"
    if not balanced:
        name += "-unbalanced"
    return run.recipe(
        name,
        policies={"generator": run.learner(), **run.reference_policies()},
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="both", group_size=1, unlabelled=run.unlabelled_share()),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles(),
    )
