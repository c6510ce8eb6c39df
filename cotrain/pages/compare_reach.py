"""How much a recipe needs to reach a level: the batches, tokens, FLOPs or seconds at which its mean curve passes it.

Two kinds of levels: what the reference had at the common budget and at its own last evaluation, and a few round
numbers. A crossing is found by linear interpolation between evaluations. Its spread is that of the single seeds' own
crossings; a seed that never gets there is counted, not guessed. The difference to the reference is paired by seed and
given only when every shared seed of both gets there: leaving out the slow ones would flatter.

A noisy curve passes a level earlier than its expectation does, so the figures are for comparing recipes that were
measured alike, and evaluations should be large and the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotrain.core.statistics import LEAST, Estimate, paired_difference
from cotrain.pages.compare_table import Runs, SeedRun, band, in_reading_order
from cotrain.pages.compare_words import UNITS, amount
from cotrain.pages.lines import Points, ticks, value_at

ROUND = 4  # about so many round levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """When one recipe reached one level."""

    recipe: str
    axis: str
    at: float | None  # of the mean curve over seeds; None when it never passes the level
    seeds: Mapping[object, float | None]  # seed → its own crossing
    end: float  # how far the mean curve goes
    difference: (
        Estimate | None
    )  # of the crossings, this recipe minus the reference, paired by seed; None: not all reach

    def words(self) -> str:
        """``31 (24 to 40 over 5 seeds)``, or how far the curve goes without getting there."""
        there = sorted(x for x in self.seeds.values() if x is not None)
        count = f"{len(there)} of {len(self.seeds)} seeds"
        if self.at is None:
            return f"not within {amount(self.end, self.axis)} ({count})"
        if len(self.seeds) == 1 or not there:
            return f"{amount(self.at, self.axis)} ({count})"
        whole = f"{len(there)} seeds" if len(there) == len(self.seeds) else count
        at, least, most = (amount(value, self.axis) for value in (self.at, there[0], there[-1]))
        return f"{at} ({least} to {most} over {whole})"

    def against(self) -> str:
        """The difference to the reference in words, "" when there is none."""
        if self.difference is None:
            return ""
        change = self.difference
        size = f"{'−' if change.value < 0 else '+'}{amount(abs(change.value), self.axis)}"
        if change.n < LEAST:
            return f"{size}, {change.n} shared {'seed' if change.n == 1 else 'seeds'}: no verdict"
        low_high = f"{amount(change.low, self.axis)} to {amount(change.high, self.axis)}"
        return f"{size} (95\u202f% interval {low_high})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of one metric, and when each recipe reached it."""

    metric: str
    axis: str  # one of ``AXES``
    value: float
    name: str  # whose level it is; "" for a round number
    reached: tuple[Reached, ...]  # the reference first


def crossing(points: Points, level: float) -> float | None:
    """The first x at which a line is at or above ``level``, by linear interpolation; None when it never is."""
    before: tuple[float, float] | None = None
    for x, y in points:
        if y >= level:
            return x if before is None else before[0] + (x - before[0]) * (level - before[1]) / (y - before[1])
        before = (x, y)
    return None


def levels(runs: Runs, axis: str, budget: float) -> list[Level]:
    """Levels of every solver's accuracy, each with the crossings of all recipes that have the metric."""
    measured = {key for seeds in runs.values() for run in seeds.values() for r in run.curve for key in r.figures}
    found = []
    for metric in in_reading_order({key for key in measured if key.count("/") == 1 and key.endswith("/pass@1")}):
        curves = {name: _curves(seeds, metric, axis) for name, seeds in runs.items()}
        means = {name: mean for name, seeds in curves.items() if (mean := band(list(seeds.values()))[0])}
        for value, name in _levels(means, budget, axis):
            reached = _reached({n: curves[n] for n in means}, means, value, axis)
            found.append(Level(metric=metric, axis=axis, value=value, name=name, reached=reached))
    return found


def json_of(found: Sequence[Level]) -> list[dict[str, object]]:
    """The same for compare.json."""
    return [
        {
            "metric": level.metric,
            "axis": level.axis,
            "level": level.value,
            "name": level.name,
            "reached": [
                {
                    "recipe": r.recipe,
                    "at": r.at,
                    "seeds": [[seed, x] for seed, x in r.seeds.items()],
                    "difference": None if r.difference is None else r.difference.json(),
                }
                for r in level.reached
            ],
        }
        for level in found
    ]


def _curves(seeds: Mapping[object, SeedRun], metric: str, axis: str) -> dict[object, Points]:
    return {seed: curve for seed, run in seeds.items() if (curve := run.points(metric, axis))}


def _levels(means: Mapping[str, Points], budget: float, axis: str) -> list[tuple[float, str]]:
    """(value, whose it is): the reference's own, where it has risen at all, then round numbers above every start."""
    if not means:
        return []
    reference, curve = next(iter(means.items()))
    ends = [(curve[-1][0], curve[-1][1])]
    if curve[0][0] < budget < ends[0][0]:
        ends.insert(0, (budget, value_at(curve, budget)))
    own = [(y, f"what {reference} has after {amount(x, axis)} {UNITS[axis]}") for x, y in ends if y > curve[0][1]]
    start, top = max(mean[0][1] for mean in means.values()), max(y for mean in means.values() for _, y in mean)
    return own + [(y, "") for y in ticks(start, top, ROUND) if start < y]


def _reached(
    curves: Mapping[str, Mapping[object, Points]], means: Mapping[str, Points], level: float, axis: str
) -> tuple[Reached, ...]:
    crossings = {name: {s: crossing(c, level) for s, c in seeds.items()} for name, seeds in curves.items()}
    reference = next(iter(crossings))
    return tuple(
        Reached(
            recipe=name,
            axis=axis,
            at=crossing(means[name], level),
            seeds=found,
            end=means[name][-1][0],
            difference=None if name == reference else _paired(found, crossings[reference]),
        )
        for name, found in crossings.items()
    )


def _paired(mine: Mapping[object, float | None], other: Mapping[object, float | None]) -> Estimate | None:
    pairs = [(x, other[seed]) for seed, x in mine.items() if seed in other]
    complete = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not pairs or len(complete) < len(pairs):
        return None
    return paired_difference([a for a, _ in complete], [b for _, b in complete])
