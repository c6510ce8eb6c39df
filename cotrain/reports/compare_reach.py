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
from cotrain.core.verbosity import count_of
from cotrain.reports.compare_table import Runs, curves_of, figures_on_curves, in_reading_order, mean_band
from cotrain.reports.compare_words import UNITS, amount_text
from cotrain.reports.lines import Points, axis_ticks, value_at

ROUND_LEVELS = 4  # about so many round levels


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCrossing:
    """When one recipe reached one level."""

    recipe: str
    axis: str
    at: float | None  # where the mean curve over seeds passes the level; None if it never does
    seeds: Mapping[object, float | None]  # seed → its own crossing
    end: float  # how far the mean curve goes
    difference: Estimate | None  # this recipe's crossing minus the reference's, by seed; None: not all reach

    def in_words(self) -> str:
        """``31 (24 to 40 over 5 seeds)``, or how far the curve goes without getting there."""
        crossings = sorted(x for x in self.seeds.values() if x is not None)
        count = f"{len(crossings)} of {len(self.seeds)} seeds"
        if self.at is None:
            return f"not within {amount_text(self.end, self.axis)} ({count})"
        if len(self.seeds) == 1 or not crossings:
            return f"{amount_text(self.at, self.axis)} ({count})"
        if len(crossings) == len(self.seeds):
            count = count_of(len(crossings), "seed")
        at, least, most = (amount_text(value, self.axis) for value in (self.at, crossings[0], crossings[-1]))
        return f"{at} ({least} to {most} over {count})"

    def difference_in_words(self) -> str:
        """The difference to the reference in words, "" when there is none."""
        if self.difference is None:
            return ""
        change = self.difference
        size = f"{'−' if change.value < 0 else '+'}{amount_text(abs(change.value), self.axis)}"
        if change.n < LEAST:
            return f"{size}, {count_of(change.n, 'shared seed')}: no verdict"
        low_high = f"{amount_text(change.low, self.axis)} to {amount_text(change.high, self.axis)}"
        return f"{size} (95\u202f% interval {low_high})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of one metric, and when each recipe reached it."""

    metric: str
    axis: str  # one of ``AXES``
    value: float
    name: str  # whose level it is; "" for a round number
    reached: tuple[LevelCrossing, ...]  # the reference first


def first_crossing(points: Points, level: float) -> float | None:
    """The first x at which a line is at or above ``level``, by linear interpolation; None when it never is."""
    previous: tuple[float, float] | None = None
    for x, y in points:
        if y >= level and previous is None:
            return x
        if y >= level and previous is not None:
            x0, y0 = previous
            return x0 + (x - x0) * (level - y0) / (y - y0)
        previous = (x, y)
    return None


def find_levels(runs: Runs, axis: str, budget: float) -> list[Level]:
    """Levels of every solver's accuracy, each with the crossings of all recipes that have the metric."""
    measured = figures_on_curves(runs)
    accuracies = {key for key in measured if key.count("/") == 1 and key.endswith("/pass@1")}
    levels = []
    for metric in in_reading_order(accuracies):
        curves = {}
        means = {}
        for recipe, seeds in curves_of(runs, metric, axis).items():
            mean, _ = mean_band(list(seeds.values()))
            if mean:
                curves[recipe] = seeds
                means[recipe] = mean
        for value, name in _level_values(means, budget, axis):
            reached = _recipe_crossings(curves, means, value, axis)
            levels.append(Level(metric=metric, axis=axis, value=value, name=name, reached=reached))
    return levels


def levels_json(levels: Sequence[Level]) -> list[dict[str, object]]:
    """The levels for compare.json."""
    rows: list[dict[str, object]] = []
    for level in levels:
        rows.append(
            {
                "metric": level.metric,
                "axis": level.axis,
                "level": level.value,
                "name": level.name,
                "reached": [_crossing_json(crossing) for crossing in level.reached],
            }
        )
    return rows


def _crossing_json(crossing: LevelCrossing) -> dict[str, object]:
    return {
        "recipe": crossing.recipe,
        "at": crossing.at,
        "seeds": [[seed, x] for seed, x in crossing.seeds.items()],
        "difference": None if crossing.difference is None else crossing.difference.to_json(),
    }


def _level_values(means: Mapping[str, Points], budget: float, axis: str) -> list[tuple[float, str]]:
    """(value, whose it is): the reference's own, where it has risen at all, then round numbers above every start."""
    if not means:
        return []
    reference, curve = next(iter(means.items()))
    ends = [(curve[-1][0], curve[-1][1])]
    if curve[0][0] < budget < ends[0][0]:
        ends.insert(0, (budget, value_at(curve, budget)))
    reference_levels = [
        (y, f"what {reference} has after {amount_text(x, axis)} {UNITS[axis]}") for x, y in ends if y > curve[0][1]
    ]
    start = max(mean[0][1] for mean in means.values())
    top = max(y for mean in means.values() for _, y in mean)
    return reference_levels + [(y, "") for y in axis_ticks(start, top, ROUND_LEVELS) if start < y]


def _recipe_crossings(
    curves: Mapping[str, Mapping[object, Points]], means: Mapping[str, Points], level: float, axis: str
) -> tuple[LevelCrossing, ...]:
    crossings = []
    of_reference = None  # the crossings of the first recipe, with which the others are compared
    for name, seeds in curves.items():
        of_seeds = {seed: first_crossing(curve, level) for seed, curve in seeds.items()}
        difference = None
        if of_reference is None:
            of_reference = of_seeds
        else:
            difference = _crossing_difference(of_seeds, of_reference)
        end, _ = means[name][-1]
        crossings.append(
            LevelCrossing(
                recipe=name,
                axis=axis,
                at=first_crossing(means[name], level),
                seeds=of_seeds,
                end=end,
                difference=difference,
            )
        )
    return tuple(crossings)


def _crossing_difference(own: Mapping[object, float | None], other: Mapping[object, float | None]) -> Estimate | None:
    pairs = [(x, other[seed]) for seed, x in own.items() if seed in other]
    complete = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not pairs or len(complete) < len(pairs):
        return None
    return paired_difference([a for a, _ in complete], [b for _, b in complete])
