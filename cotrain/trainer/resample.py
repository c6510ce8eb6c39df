"""Problems whose answers all earn the same teach nothing: within the step they are replaced by others (DAPO, arXiv
2503.14476, section 3.2, "dynamic sampling").

::

    16 problems ──sample──▶ 9 with spread, 7 without ──7 others──▶ 4 with, 3 without ──3 others──▶ …   ``refill`` rounds

All episodes stay, so that a ledger shows what was paid for; an algorithm drops groups without spread by itself. The
others are drawn from a stream of their own: the problems of a step are the same with and without it. Left out: problems
that are kept for the next step where more had spread than a batch takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from cotrain.config.recipe import Objective, Recipe
from cotrain.config.schedule import train_task
from cotrain.core.types import UNLABELLED, Episode, Task
from cotrain.metrics.heldout import trajectories_in


class CollectTasks(Protocol):
    """Collects the episodes of tasks, the first of which has ``first_position`` among those of the step."""

    def __call__(self, batch: Sequence[Task], first_position: int = 0, /) -> tuple[Episode, ...]: ...


ROUNDS = 2**20  # more than a step can have: places of a step's own in the stream


def with_replacements(
    recipe: Recipe, step: int, seed: int, tasks: Sequence[Task], collect: CollectTasks, *, share: float = 1.0
) -> tuple[Episode, ...]:
    """The episodes of a step's ``tasks`` and those of the problems that replace what has no spread: one with a label
    where that has one. ``seed``: the run's, by which they are drawn. ``share``: that of the problems, from the first
    one on, among which the step draws."""
    objective = recipe.objectives[recipe.leading_objective]
    episodes = collect(tasks)
    newest = episodes
    collected = list(tasks)
    for _ in range(recipe.refill):
        flat = [collected[place] for place in flat_places(newest, objective)]
        if not flat:
            break
        first = len(collected)
        drawn = first - len(tasks)  # replacements so far, in this step's own part of the stream
        for place, old in enumerate(flat, step * ROUNDS + drawn):
            collected.append(_replacement_of(old, recipe, seed, place, share))
        newest = collect(collected[first:], first)
        episodes = (*episodes, *newest)
    return episodes


def _replacement_of(old: Task, recipe: Recipe, seed: int, place: int, share: float) -> Task:
    """The problem at this place of the stream of replacements: with a label where ``old`` has one."""
    split = "train" if old.labelled else UNLABELLED
    task = train_task(recipe.tasks, seed, "refill", place, split, share)
    if old.labelled or recipe.audits is None:
        return task
    return replace(task, gradable=False)  # only the audited problems of the step itself are graded


def flat_places(episodes: Sequence[Episode], objective: Objective) -> list[int]:
    """Places of the problems that have no group in which two answers earned different rewards that the objective
    reads."""
    read = {signal.name for signal in objective.algorithm.needs().reward_signals}
    spread: set[int] = set()
    first: dict[str, tuple[float, ...]] = {}  # rewards of the first answer of each group
    for episode in episodes:
        for trace in trajectories_in(episode):
            if trace.role not in objective.roles or trace.failure is not None:
                continue
            earned = tuple(reward.value for reward in trace.rewards if reward.name in read)
            if first.setdefault(trace.group, earned) != earned:
                spread.add(episode.task)
    return sorted({episode.task for episode in episodes} - spread)
