"""Making runs end at an equal cost: all are run as long as the plan says, then those of cheaper arms go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cotrain.lab.comparison.pool import run_jobs
from cotrain.lab.comparison.runs import is_done
from cotrain.runs.directory import RunDirectory
from cotrain.runs.figures import costs_of

if TYPE_CHECKING:
    from cotrain.lab.comparison.compare import ComparisonPlan


class RunKey(NamedTuple):
    """A run of a comparison."""

    label: str  # of its arm
    seed: int
    rate: float | None = None  # learning rate that it tries; None: the arm's


class DearestArm(NamedTuple):
    label: str  # arm that has spent most
    budget: float  # what it has spent in ``plan.batches``, the mean over its runs


def run_at_equal_cost(
    plan: ComparisonPlan,
    places: Mapping[RunKey, Path],
    command: Callable[[RunKey], list[str]],
    workers: int,
    say: Callable[[str], None],
) -> DearestArm | None:
    """Make the runs of ``places``; ``command`` begins one or goes on with it. Without a budget, and unless batches or
    updates are equal, runs of cheaper arms go on until they have spent what the dearest arm has; returns that arm, else
    None."""
    run_jobs([(folder, command(place)) for place, folder in places.items() if not is_done(folder)], workers, say)
    if plan.equal in ("batches", "updates") or plan.budget is not None:
        return None
    dearest, unfinished = runs_still_short(plan, places)
    for place in unfinished:
        RunDirectory.open(places[place]).extend(plan.ends_at(dearest.budget))
    run_jobs([(places[place], command(place)) for place in unfinished], workers, say)
    return dearest


def runs_still_short(plan: ComparisonPlan, places: Mapping[RunKey, Path]) -> tuple[DearestArm, list[RunKey]]:
    """The arm whose runs have spent most in ``plan.batches``, and the runs of other arms that have not spent as
    much."""
    spent: dict[str, list[float]] = {}
    for place, folder in places.items():
        steps = costs_of(folder)
        spent.setdefault(place.label, []).append(steps[min(plan.batches, len(steps) - 1)][plan.equal])
    means = {label: sum(values) / len(values) for label, values in spent.items()}
    most = DearestArm(*max(means.items(), key=lambda pair: pair[1]))
    others = [place for place in places if place.label != most.label]
    return most, [place for place in others if costs_of(places[place])[-1][plan.equal] < most.budget]
