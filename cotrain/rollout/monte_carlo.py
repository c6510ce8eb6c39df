"""Monte-Carlo step labels: a step is as good as the chance to end right from where it leads.

::

    MC(k) = share of ``rollouts`` continuations of (problem, steps 1 … k) whose answer is right,   k = 0 … K

    "absolute"  MC(k) > 0                                                      Math-Shepherd, Abs-Q of StepWiser
    "relative"  MC(k) + α (B(k) − B(k−1)) > 0 with B = 1 − (1 − MC)^n          Rel-Effective of StepWiser
    "ratio"     MC(k) / MC(k−1) ≥ γ, and nothing is right after the first 0    GenPRM; Rel-Ratio of StepWiser

StepWiser is arXiv 2508.19229 (§3.2; n = 4, α = 0.8 and γ = 0.7 at 7B, α = 0.4 and γ = 0.8 at 1.5B; its ratio is strict
and does not say what follows a 0), GenPRM arXiv 2504.00891 (γ = 0.8). The continuations are a role of their own, by the
solver's policy: they get no signal, so nothing can learn from them, and they stay out of the solver's figures. The
answer has a label, too: its grade.

A label says whether the solution can still end right. So every step after an error that is not repaired is labelled
wrong. The oracle of the word problems judges each step by the steps before it: there, a step that goes on correctly
from a wrong value is right. That is why ``label_right``, the agreement of the two, is below 1. They mean the same up to
the first error, which ``first_wrong_right`` compares.
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

MonteCarloRule = Literal["absolute", "relative", "ratio"]
MONTE_CARLO_RULES: tuple[str, ...] = get_args(MonteCarloRule)
Labels = Literal[MonteCarloRule, "oracle"]  # "oracle": no continuations, but the truth of the steps
ALPHA = 0.8  # weight of progress in "relative"
BEST_OF = 4  # n of "relative"
GAMMA = 0.8  # least ratio in "ratio"

HAS_LABELS = Metadata[bool]("labelled", bool, "were there labels for the steps of the solution")
LABEL_POSITIVE = Metadata[float]("label_positive", float, "share of the steps that are labelled right")
FIRST_WRONG_RIGHT = Metadata[bool]("first_wrong_right", bool, "do the labels place the first wrong step where it is")
MONTE_CARLO = Finding[list[float]](
    "monte_carlo", list[float], "share of continuations that are right, after 0 … K steps"
)
STEP_LABELS = Finding[list[bool]]("labels", list[bool], "labels of the steps and, last, of the answer")


def apply_rule(
    rule: str, values: Sequence[float], *, alpha: float = ALPHA, best_of: int = BEST_OF, gamma: float = GAMMA
) -> list[bool] | None:
    """Label K steps by a Monte-Carlo rule. None for "ratio" if MC(0) is 0, as no progress is defined from there; the
    authors of GenPRM skip such problems too.

    Args:
        values: ``[K + 1]`` MC(0) … MC(K), each in [0, 1].

    Raises UnknownName for another rule.
    """
    if rule == "absolute":
        return [mc > 0.0 for mc in values[1:]]
    if rule == "relative":
        return _relative_labels(values, alpha, best_of)
    if rule != "ratio":
        raise UnknownName("Monte-Carlo label", rule, MONTE_CARLO_RULES)
    if values[0] == 0.0:
        return None
    return _ratio_labels(values, gamma)


def _relative_labels(values: Sequence[float], alpha: float, best_of: int) -> list[bool]:
    """MC(k) + α (B(k) − B(k−1)) > 0 with B = 1 − (1 − MC)^n."""
    labels = []
    for mc_before, mc in pairwise(values):
        b_before = 1.0 - (1.0 - mc_before) ** best_of
        b = 1.0 - (1.0 - mc) ** best_of
        labels.append(mc + alpha * (b - b_before) > 0.0)
    return labels


def _ratio_labels(values: Sequence[float], gamma: float) -> list[bool]:
    """MC(k) / MC(k−1) ≥ γ, and False from the first 0 on."""
    labels = []
    can_end_right = True
    for mc_before, mc in pairwise(values):
        can_end_right = can_end_right and mc > 0.0
        labels.append(can_end_right and mc / mc_before >= gamma)
    return labels


def share_equal(verdicts: Sequence[bool], labels: Sequence[bool], places: Sequence[int] | None = None) -> float:
    """Share of the verdicts that equal the label, over these places; None: over all."""
    if places is None:
        places = range(len(labels))
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
    """The role ``completer``: the solver, which goes on from a beginning. Its answers are not parsed."""
    return replace(solver, parse=None)


async def step_values(task: Task, roles: Roles, solutions: Sequence[Turn], *, rollouts: int) -> dict[str, list[float]]:
    """MC(0) … MC(K) of readable solutions to one task, by their ids. A beginning that several solutions share is
    continued only once.

    Raises ValueError, which ends the episode, when no continuation of a beginning could be graded.
    """

    async def value_of(beginning: str, group: str) -> float:
        """MC: the share of continuations whose answer is right."""
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
    different_beginnings: list[str] = []
    for beginnings in beginnings_by_id.values():
        for beginning in beginnings:
            if beginning not in different_beginnings:
                different_beginnings.append(beginning)

    calls = [value_of(beginning, f"{solutions[0].id}:{i}") for i, beginning in enumerate(different_beginnings)]
    value_by_beginning = dict(zip(different_beginnings, await gather(calls), strict=True))
    values_by_id = {}
    for solution_id, beginnings in beginnings_by_id.items():
        values_by_id[solution_id] = [value_by_beginning[beginning] for beginning in beginnings]
    return values_by_id


def beginnings_of(solution: Turn) -> list[str]:
    """The text of a solution up to the end of each step, from no step to all of them."""
    beginnings = [""]
    for step in solution.parsed.steps:
        end = include_closing_tag(step, solution).end
        beginnings.append(solution.text[:end])
    return beginnings


async def label_steps(
    task: Task,
    roles: Roles,
    solutions: Sequence[Turn],
    *,
    labels_by: str,
    rollouts: int,
    alpha: float = ALPHA,
    gamma: float = GAMMA,
) -> dict[str, list[bool]]:
    """Labels of the K steps and, last, of the answer, for readable and examined solutions to one task, by their ids.

    A solution for which the rule has no labels is left out. Findings of a solution are its values and labels; metadata
    says how far its labels agree with the oracle.

    Args:
        labels_by: a Monte-Carlo rule; or "oracle" for the truth of the steps, which is the ceiling.
        rollouts: continuations of each beginning.
    """
    if not solutions:
        return {}
    uses_oracle = labels_by == "oracle"
    values_by_id: dict[str, list[float]] = {}
    if not uses_oracle:
        values_by_id = await step_values(task, roles, solutions, rollouts=rollouts)

    labels_by_id: dict[str, list[bool]] = {}
    for solution in solutions:
        values = values_by_id.get(solution.id, [])
        labels: Sequence[bool] | None
        if uses_oracle:
            labels = _true_labels(task, solution)
        else:
            labels = apply_rule(labels_by, values, alpha=alpha, gamma=gamma)

        solution.add_metadata(HAS_LABELS, labels is not None)
        if labels is None:
            continue
        labels_by_id[solution.id] = [*labels, CORRECT.require(solution)]
        solution.add_finding(MONTE_CARLO, values)
        solution.add_finding(STEP_LABELS, labels_by_id[solution.id])
        solution.add_metadata(LABEL_POSITIVE, sum(labels) / len(labels))
        true_labels = STEP_OK.of(solution)
        if true_labels is not None:
            solution.add_metadata(LABEL_RIGHT, share_equal(labels, true_labels))
            solution.add_metadata(FIRST_WRONG_RIGHT, _first_false(labels) == _first_false(true_labels))
    return labels_by_id


def _true_labels(task: Task, solution: Turn) -> Sequence[bool]:
    """The oracle's labels of the steps. Raises ConfigError for a task whose steps nobody knows."""
    labels = STEP_OK.of(solution)
    if labels is None:
        raise ConfigError(
            f"labels 'oracle': nobody knows the steps of task {task.id}; expected one of {MONTE_CARLO_RULES}",
            code="E_STEPS_UNKNOWN",
        )
    return labels


def _first_false(labels: Sequence[bool]) -> int:
    """The first place that is False; the length, when there is none."""
    for place, label in enumerate(labels):
        if not label:
            return place
    return len(labels)
