"""Monte-Carlo step labels: a step is as good as the chance to end right from where it leads.

::

    MC(k) = share of ``rollouts`` continuations of (problem, steps 1 … k) whose answer is right,   k = 0 … K

    "absolute"  MC(k) > 0                                                      Math-Shepherd, Abs-Q of StepWiser
    "relative"  MC(k) + α (B(k) − B(k−1)) > 0 with B = 1 − (1 − MC)^n          Rel-Effective of StepWiser
    "ratio"     MC(k) / MC(k−1) ≥ γ, and nothing is right after the first 0    GenPRM; Rel-Ratio of StepWiser

StepWiser is arXiv 2508.19229 (§3.2; n = 4, α = 0.8 and γ = 0.7 at 7B, α = 0.4 and γ = 0.8 at 1.5B; its ratio is strict
and does not say what follows a 0), GenPRM arXiv 2504.00891 (γ = 0.8). The continuations are a role of their own, by the
solver's policy: they get no signal, so nothing can learn from them, and they stay out of the solver's figures. The
answer is judged after the last step and has the grade itself for its label, as a last step has with both.

A label says whether the solution can still end right, so every step after an unrepaired error is wrong to it. The
oracle of the word problems judges each step by what stands before it: there, a step that goes on correctly from a wrong
value is right. ``label_right`` is below 1 for that reason alone; ``first_wrong_right`` compares what both mean alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Literal, get_args

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.notes import CORRECT, LABEL_RIGHT, STEP_OK, Finding, Metadata
from cotrain.core.types import Task
from cotrain.rollout.event_loop import gather
from cotrain.rollout.protocols import continue_from, include_closing_tag
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import Roles

Labels = Literal["absolute", "relative", "ratio", "oracle"]
LABELS: tuple[str, ...] = get_args(Labels)
ALPHA = 0.8  # weight of progress in "relative"
BEST_OF = 4  # n of "relative"
GAMMA = 0.8  # least ratio in "ratio"

LABELLED = Metadata[bool]("labelled", bool, "were there labels for the steps of the solution")
LABEL_POSITIVE = Metadata[float]("label_positive", float, "share of the steps that are labelled right")
FIRST_WRONG_RIGHT = Metadata[bool]("first_wrong_right", bool, "do the labels place the first wrong step where it is")
MONTE_CARLO = Finding[list[float]](
    "monte_carlo", list[float], "share of continuations that are right, after 0 … K steps"
)
STEP_LABELS = Finding[list[bool]]("labels", list[bool], "labels of the steps and, last, of the answer")


def labels_of(
    kind: str, values: Sequence[float], *, alpha: float = ALPHA, best_of: int = BEST_OF, gamma: float = GAMMA
) -> list[bool] | None:
    """One label for each of K steps; None for "ratio" when MC(0) is 0, as no progress is defined from there (the
    authors of GenPRM skip such problems too).

    Args:
        values: ``[K + 1]`` MC(0) … MC(K), each in [0, 1].

    Raises UnknownName for a kind that is not Monte-Carlo.
    """
    labels: list[bool] = []
    if kind == "absolute":
        return [value > 0.0 for value in values[1:]]
    if kind == "relative":
        for before, after in pairwise(values):
            best_before = 1.0 - (1.0 - before) ** best_of
            best_after = 1.0 - (1.0 - after) ** best_of
            labels.append(after + alpha * (best_after - best_before) > 0.0)
        return labels
    if kind != "ratio":
        raise UnknownName("Monte-Carlo label", kind, LABELS[:-1])
    if values[0] == 0.0:
        return None
    can_end_right = True
    for before, after in pairwise(values):
        can_end_right = can_end_right and after > 0.0
        labels.append(can_end_right and after / before >= gamma)
    return labels


def share_right(verdicts: Sequence[bool], labels: Sequence[bool], counted: Sequence[int] | None = None) -> float:
    """Share of the verdicts at the places ``counted`` (all, if None) that are the label."""
    places = range(len(labels)) if counted is None else counted
    return sum(verdicts[k] == labels[k] for k in places) / len(places)


def majority_contradicts(reviews: Sequence[Sequence[bool]], labels: Sequence[bool]) -> bool:
    """Does a majority of the reviews say the opposite of any label? A tie does not; no review contradicts nothing."""
    for k, label in enumerate(labels):
        n_agreeing = sum(review[k] == label for review in reviews)
        if 2 * n_agreeing < len(reviews):
            return True
    return False


def balanced_places(labels: Sequence[bool], rng: Random) -> list[int]:
    """Places of as many labels of each class as the rarer class has, drawn at random; in order, [] for one class."""
    false_places = [place for place, label in enumerate(labels) if label is False]
    true_places = [place for place, label in enumerate(labels) if label is True]
    count = min(len(false_places), len(true_places))
    return sorted([*rng.sample(false_places, count), *rng.sample(true_places, count)])


def review_verdicts(review: Turn) -> tuple[bool, ...]:
    """The verdicts of a readable review on each step, and last on the answer."""
    return (*review.parsed.steps, review.parsed.final)


def completer_role(solver: Role) -> Role:
    """The role ``completer``: the solver going on from the beginning it is given, with nothing parsed."""
    return replace(solver, parse=None)


async def step_values(task: Task, roles: Roles, solutions: Sequence[Turn], *, rollouts: int) -> dict[str, list[float]]:
    """MC(0) … MC(K) of readable solutions to one task, by their ids. A beginning that several share is continued once.

    Raises ValueError, which ends the episode, when no continuation of a beginning could be graded.
    """

    async def value_of(beginning: str, group: str) -> float:
        """The share of continuations whose answer is right."""
        grades = []
        chats = [roles.completer.begin(group=group, problem=task.prompt) for _ in range(rollouts)]
        for turn in await gather([continue_from(chat, beginning) for chat in chats]):
            grade = await roles.grade(task, beginning + turn.text)
            if grade.value is None:
                turn.fail(grade.reason or "ungraded")
                continue
            turn.add_metadata(CORRECT, grade.value)
            grades.append(grade.value)
        if not grades:
            raise ValueError(f"none of {rollouts} continuations of {beginning[-40:]!r} could be graded")
        return sum(grades) / len(grades)

    beginnings_by_id = {solution.id: beginnings_of(solution) for solution in solutions}
    distinct: dict[str, None] = {}  # in the order in which they come
    for beginnings in beginnings_by_id.values():
        distinct |= dict.fromkeys(beginnings)

    calls = [value_of(beginning, f"{solutions[0].id}:{i}") for i, beginning in enumerate(distinct)]
    values = dict(zip(distinct, await gather(calls), strict=True))
    return {
        solution_id: [values[beginning] for beginning in beginnings]
        for solution_id, beginnings in beginnings_by_id.items()
    }


def beginnings_of(solution: Turn) -> list[str]:
    """The text of a solution up to the end of each step, from no step to all of them."""
    beginnings = [""]
    for step in solution.parsed.steps:
        end = include_closing_tag(step, solution).end
        beginnings.append(solution.text[:end])
    return beginnings


async def step_labels(
    task: Task,
    roles: Roles,
    solutions: Sequence[Turn],
    *,
    kind: str,
    rollouts: int,
    alpha: float = ALPHA,
    gamma: float = GAMMA,
) -> dict[str, list[bool]]:
    """Labels of the K steps and, last, of the answer, for readable and examined solutions to one task, by their ids.

    ``kind`` "oracle" takes the truth of the steps instead: the ceiling. Solutions that ``labels_of`` has no labels for
    are left out. The values are findings of a solution; how far its labels agree with the oracle is metadata.
    """
    if not solutions:
        return {}
    values_by_id: dict[str, list[float]] = {}
    if kind != "oracle":
        values_by_id = await step_values(task, roles, solutions, rollouts=rollouts)

    labels_by_id: dict[str, list[bool]] = {}
    for solution in solutions:
        truth = STEP_OK.of(solution)
        values = values_by_id.get(solution.id, [])
        labels: Sequence[bool] | None
        if kind == "oracle":
            if truth is None:
                raise ConfigError(
                    f"labels 'oracle': nobody knows the steps of task {task.id}; expected one of {LABELS[:-1]}",
                    code="E_STEPS_UNKNOWN",
                )
            labels = truth
        else:
            labels = labels_of(kind, values, alpha=alpha, gamma=gamma)

        solution.add_metadata(LABELLED, labels is not None)
        if labels is None:
            continue
        labels_by_id[solution.id] = [*labels, CORRECT.require(solution)]
        solution.add_finding(MONTE_CARLO, values)
        solution.add_finding(STEP_LABELS, labels_by_id[solution.id])
        solution.add_metadata(LABEL_POSITIVE, sum(labels) / len(labels))
        if truth is not None:
            solution.add_metadata(LABEL_RIGHT, share_right(labels, truth))
            solution.add_metadata(FIRST_WRONG_RIGHT, _first_false(labels) == _first_false(truth))
    return labels_by_id


def _first_false(labels: Sequence[bool]) -> int:
    """The first place that is False; the length, when there is none."""
    for place, label in enumerate(labels):
        if not label:
            return place
    return len(labels)
