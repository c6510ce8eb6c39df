"""How often a judge errs: false positives and false negatives apart, over the run and by step, and whether the policy
moves to where it errs.

Of the answers whose truth is known and of which the judge said something::

                      it is right             it is wrong
    judge accepts     true positive           false positive   "believed, and wrong"
    judge rejects     false negative          true negative

    false positive rate   FP / (FP + TN)      of the wrong answers those that it accepts
    false negative rate   FN / (FN + TP)      of the right answers those that it rejects
    fooled                FP / all            of all answers those that are accepted and wrong

Answers to one problem are not independent, so problems are what intervals count (``metrics/clusters.py``): the
jackknife over problems, and Wilson's interval on as many observations as its variance stands for.

A *trend* is a share in the last third of the run's steps minus that in the first third; its interval is Student's t on
the jackknife over problems, a problem that stands in both being one observation. "Moving to where the judge errs" is a
trend of *fooled* whose interval lies above zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cotrain.core.statistics import Estimate, wilson_interval
from cotrain.metrics.clusters import Array, Bounded, Share, Sums, make_figure
from cotrain.runs.foreign_files import ForeignRollout

WINDOWS = 10  # most windows of steps
THIRD = 3
FEW_PROBLEMS = 10  # fewer say little of other problems
RATES = {  # Share(outcomes that are counted, outcomes that they are a share of)
    "false positive rate": Share("fp", "fp tn"),
    "false negative rate": Share("fn", "fn tp"),
    "wrong among accepted": Share("fp", "fp tp"),
    "right among rejected": Share("fn", "fn tn"),
    "fooled": Share("fp", "fp tp fn tn"),
    "accepted": Share("fp tp", "fp tp fn tn"),
    "right": Share("tp fn", "fp tp fn tn"),
}
TRENDS = ("fooled", "false positive rate", "false negative rate", "accepted", "right")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """Consecutive steps, and how the judge fared in them."""

    first: int
    last: int
    answers: int  # whose verdict and truth are known
    rates: Mapping[str, Estimate]  # those of ``RATES`` that are defined


def outcome_of(rollout: ForeignRollout) -> str | None:
    """ "tp", "fp", "tn" or "fn"; None where verdict or truth is not known."""
    if rollout.verdict is None or rollout.truth is None:
        return None
    if rollout.verdict:
        return "tp" if rollout.truth else "fp"
    return "fn" if rollout.truth else "tn"


def error_rates(rollouts: Iterable[ForeignRollout]) -> dict[str, Estimate]:
    """The rates that are defined, with their intervals over problems."""
    by_problem: dict[str, dict[str, float]] = {}
    for rollout in rollouts:
        outcome = outcome_of(rollout)
        if outcome is None:
            continue
        row = by_problem.setdefault(rollout.problem, {"tp": 0.0, "fp": 0.0, "tn": 0.0, "fn": 0.0})
        row[outcome] += 1.0
    counts = dict(enumerate(by_problem.values()))
    total = {}
    for name in ("tp", "fp", "tn", "fn"):
        total[name] = sum(row[name] for row in counts.values())

    rates = {}
    for name, share in RATES.items():
        out_of = sum(total[part] for part in share.bottom.split())
        figure = make_figure(counts, share, out_of)
        if figure is not None:
            rates[name] = Estimate(value=figure.value, low=figure.low, high=figure.high, n=figure.n)
    return rates


def step_windows(rollouts: Sequence[ForeignRollout], most: int = WINDOWS) -> list[StepWindow]:
    """The run in at most ``most`` windows of equally many steps, each with its rates."""
    windows = []
    for steps in cut_steps(sorted({rollout.step for rollout in rollouts}), most):
        inside = [rollout for rollout in rollouts if steps[0] <= rollout.step <= steps[-1]]
        n_known = sum(outcome_of(rollout) is not None for rollout in inside)
        windows.append(StepWindow(first=steps[0], last=steps[-1], answers=n_known, rates=error_rates(inside)))
    return windows


def cut_steps(steps: Sequence[int], most: int) -> list[Sequence[int]]:
    """Steps in at most ``most`` runs of nearly the same length, none of them empty."""
    count = min(most, len(steps))
    if count == 0:
        return []
    bounds = [round(place * len(steps) / count) for place in range(count + 1)]
    return [steps[start:end] for start, end in pairwise(bounds)]


# -- trends


def _slope(sums: Sums) -> Array:
    """The least-squares slope of y on x, of sums over answers; NaN where x does not vary."""
    n, x, y, xy, xx = (np.asarray(sums[name], dtype=np.float64) for name in ("n", "x", "y", "xy", "xx"))
    spread = n * xx - x * x
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 1e-9, (n * xy - x * y) / spread, np.nan)


SLOPE = Bounded(_slope, -math.inf, math.inf, frozenset(("n", "x", "y", "xy", "xx")))


def slope_of(points: Iterable[tuple[str, float, float]]) -> Estimate | None:
    """The slope of y on x, of points (problem, x, y), with its interval over problems; None where there is no slope or
    a single problem."""
    by_problem: dict[str, dict[str, float]] = {}
    n = 0
    for problem, x, y in points:
        row = by_problem.setdefault(problem, dict.fromkeys(sorted(SLOPE.names), 0.0))
        for name, value in (("n", 1.0), ("x", x), ("y", y), ("xy", x * y), ("xx", x * x)):
            row[name] += value
        n += 1
    counts = dict(enumerate(by_problem.values()))

    if len(counts) < 2:
        return None
    figure = make_figure(counts, SLOPE, n)
    if figure is None:
        return None
    if math.isfinite(figure.high - figure.low):
        return Estimate(value=figure.value, low=figure.low, high=figure.high, n=n)
    # Every problem says the same, so the jackknife has no spread. A problem that says otherwise may be as frequent as
    # one that was not seen in so many.
    _, half_width = wilson_interval(0.0, len(counts))
    return Estimate(value=figure.value, low=figure.value - half_width, high=figure.value + half_width, n=n)


def error_trends(rollouts: Sequence[ForeignRollout]) -> dict[str, Estimate]:
    """The change of each of ``TRENDS`` from the first third of the steps to the last; {} for a single step."""
    steps = sorted({rollout.step for rollout in rollouts})
    if len(steps) < 2:
        return {}
    parts = cut_steps(steps, THIRD)
    first_third_ends = parts[0][-1]
    last_third_begins = parts[-1][0]
    at_the_ends = []  # rollouts of the first and the last third, with their outcomes
    for rollout in rollouts:
        if first_third_ends < rollout.step < last_third_begins:
            continue
        outcome = outcome_of(rollout)
        if outcome is not None:
            at_the_ends.append((rollout, outcome))

    trends = {}
    for name in TRENDS:
        counted = RATES[name].top.split()
        out_of = RATES[name].bottom.split()
        points = []
        for rollout, outcome in at_the_ends:
            if outcome in out_of:
                is_late = float(rollout.step >= last_third_begins)
                points.append((rollout.problem, is_late, float(outcome in counted)))
        # With x = 0 in the first third and 1 in the last, the slope is the difference of the two shares.
        slope = slope_of(points)
        if slope is not None:
            trends[name] = slope.clip_to(-1.0, 1.0)
    return trends
