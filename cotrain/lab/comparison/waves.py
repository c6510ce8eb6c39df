"""Runs that end at an equal cost: first all of them last as long as the plan says, then those of cheaper arms go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cotrain.lab.comparison.pool import work
from cotrain.lab.comparison.runs import is_done
from cotrain.runs.costs import costs_of
from cotrain.runs.directory import RunDirectory

if TYPE_CHECKING:
    from cotrain.lab.comparison.compare import Plan


class Place(NamedTuple):
    """A run of a comparison."""

    label: str  # of its arm
    seed: int
    rate: float | None = None  # learning rate that it tries; None: the arm's


class Dearest(NamedTuple):
    label: str  # arm that has spent most
    budget: float  # what it has spent in ``plan.batches``, the mean over its runs


def run_equally(
    plan: Plan,
    places: Mapping[Place, Path],
    command: Callable[[Place], list[str]],
    workers: int,
    say: Callable[[str], None],
) -> Dearest | None:
    """Make the runs of ``places``; ``command`` begins one or goes on with it. Without a budget, and unless batches or
    updates are equal, runs of cheaper arms go on until they have spent what the dearest arm has; returns that arm, else
    None."""
    work([(folder, command(place)) for place, folder in places.items() if not is_done(folder)], workers, say)
    if plan.equal in ("batches", "updates") or plan.budget is not None:
        return None
    dearest, short = still_short(plan, places)
    for place in short:
        RunDirectory.open(places[place]).extend(plan.until(dearest.budget))
    work([(places[place], command(place)) for place in short], workers, say)
    return dearest


def still_short(plan: Plan, places: Mapping[Place, Path]) -> tuple[Dearest, list[Place]]:
    """The arm whose runs have spent most in ``plan.batches``, and the runs of other arms that have not spent as
    much."""
    spent: dict[str, list[float]] = {}
    for place, folder in places.items():
        steps = costs_of(folder)
        spent.setdefault(place.label, []).append(steps[min(plan.batches, len(steps) - 1)][plan.equal])
    means = {label: sum(values) / len(values) for label, values in spent.items()}
    most = Dearest(*max(means.items(), key=lambda pair: pair[1]))
    others = [place for place in places if place.label != most.label]
    return most, [place for place in others if costs_of(places[place])[-1][plan.equal] < most.budget]
