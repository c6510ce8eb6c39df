"""Figures on held-out problems with 95 % intervals that do not claim more than the problems allow.

Every figure is a function of counts summed over tasks, and the G samples of one task are not independent. So one task
is one observation::

    θ        the statistic on the sums over N tasks
    v        its variance: delete one task at a time, v = (N − 1)/N · Σ (θ₋ᵢ − mean θ₋)²     (jackknife; Miller 1974)
    n        observations that a single share with this variance would rest on, θ(1 − θ)/v
    interval Wilson's of θ on n observations, at Student's t with N − 1 degrees        (after Franco et al. 2019, JSSAM
                                                                                       7)

On the scale of its bounds any bounded statistic is treated like a share, so no interval leaves [0, 1]. Three cases need
no estimate of v: one yes or no a task is Wilson's interval itself; where tasks do not differ at all there is no spread
to estimate, and each task counts as one observation (0 of 4 is [0, 0.49]); and a mean of shares one of which has no
spread is taken at all lower and at all upper bounds, which is wider than 95 %.

A change is measured on the same tasks before and after, so what a task is worth to both cancels: θ is then the
difference, and its interval Student's t. Where no task changed, one in N might have, by Wilson.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from cotrain.core.late import np
from cotrain.core.statistics import Estimate, independent_difference, student_t, wilson_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.float64]"
Sums = Mapping[str, "Array"]  # counts by name, summed over tasks; all of one shape
Counts = Mapping[int, Mapping[str, float]]  # task → its counts by name, the same names for each
NOTHING = 1e-12  # a variance below is rounding


class Statistic(Protocol):
    """A function of summed counts: NaN where it is undefined."""

    @property
    def bounds(self) -> tuple[float, float]: ...

    @property
    def names(self) -> frozenset[str]:
        """The counts that it is a function of."""
        ...

    def __call__(self, sums: Sums) -> Array: ...


@dataclass(frozen=True, slots=True)
class Share:
    """Σ of some counts over Σ of others, which contain them: ``Share("tp", "tp fn")``. A name that is twice counts
    twice."""

    top: str
    bottom: str
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(f"{self.top} {self.bottom}".split())

    def top_and_bottom(self, sums: Sums) -> tuple[Array, Array]:
        top = np.sum([sums[name] for name in self.top.split()], axis=0)
        bottom = np.sum([sums[name] for name in self.bottom.split()], axis=0)
        return top, bottom

    def __call__(self, sums: Sums) -> Array:
        return ratio(*self.top_and_bottom(sums))


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of several statistics in [0, 1]; undefined where one of them is."""

    of: Sequence[Share | Mean]
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def names(self) -> frozenset[str]:
        return frozenset().union(*(one.names for one in self.of))

    def __call__(self, sums: Sums) -> Array:
        return self.combine([one(sums) for one in self.of])

    def combine(self, values: Sequence[Array]) -> Array:
        return np.asarray(sum(values[1:], values[0]) / len(values))


@dataclass(frozen=True, slots=True)
class Harmonic(Mean):
    """The harmonic mean of two shares; 0 where both are, undefined where one of them is."""

    def combine(self, values: Sequence[Array]) -> Array:
        one, other = values
        return np.where(one + other == 0, 0.0, ratio(2 * one * other, one + other))


@dataclass(frozen=True, slots=True)
class Bounded:
    """Any other function of the sums with values in [low, high]."""

    function: Callable[[Sums], Array]
    low: float
    high: float
    names: frozenset[str]

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def __call__(self, sums: Sums) -> Array:
        return self.function(sums)


def mean_of_values(low: float, high: float) -> Bounded:
    """The mean of values in [low, high] whose ``sum`` and ``count`` were counted."""
    return Bounded(lambda sums: ratio(sums["sum"], sums["count"]), low, high, frozenset(("sum", "count")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Estimate):
    """An estimate that remembers what it was made from, so that a later one can be paired with it."""

    counts: Counts = field(repr=False, compare=False)
    statistic: Statistic = field(repr=False, compare=False)

    def without_each(self) -> dict[int, float]:
        """Task → the statistic of all others, NaN where that is undefined; tasks that it says nothing of are left
        out."""
        counted_tasks = _counted_tasks(self.counts, self.statistic)
        table = _count_columns(self.counts, counted_tasks)
        sums = _column_sums(table)
        left = self.statistic({name: sums[name] - column for name, column in table.items()})
        return dict(zip(counted_tasks, np.asarray(left, dtype=np.float64).tolist(), strict=True))


def make_figure(counts: Counts, statistic: Statistic, n: float) -> Figure | None:
    """A statistic of counts with its interval; ``n``: what it is out of. None where it is undefined on the whole (for
    instance no wrong solution to recognise)."""
    counted_tasks = _counted_tasks(counts, statistic)
    if not counted_tasks:
        return None
    table = _count_columns(counts, counted_tasks)
    value = float(statistic(_column_sums(table)))
    if math.isnan(value):
        return None
    low, high = _statistic_interval(table, statistic)
    return Figure(value=value, low=low, high=high, n=int(n), counts=counts, statistic=statistic)


def defined_figures(named: Mapping[str, Figure | None]) -> dict[str, Estimate]:
    """The figures that are defined."""
    return {name: figure for name, figure in named.items() if figure is not None}


def ratio(top: Array, bottom: Array) -> Array:
    """top / bottom, NaN where bottom is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)


def sums_of(counts: Mapping[str, float]) -> Sums:
    """Counts that are summed already."""
    return {name: np.asarray(count, dtype=np.float64) for name, count in counts.items()}


def _counted_tasks(counts: Counts, statistic: Statistic) -> list[int]:
    """The tasks in which a count of the statistic is not 0."""
    return [task for task, row in counts.items() if _has_any(row, statistic.names)]


def _has_any(row: Mapping[str, float], names: Iterable[str]) -> bool:
    return any(row[name] for name in names)


def _statistic_interval(table: Mapping[str, Array], statistic: Statistic) -> tuple[float, float]:
    if isinstance(statistic, Share):
        return _share_interval(table, statistic)
    if isinstance(statistic, Mean) and any(_jackknife_variance(table, part) is None for part in statistic.of):
        intervals = [_statistic_interval(table, part) for part in statistic.of]
        all_low = [np.asarray(low) for low, _ in intervals]
        all_high = [np.asarray(high) for _, high in intervals]
        return float(statistic.combine(all_low)), float(statistic.combine(all_high))
    low, high = statistic.bounds
    scale = high - low
    tasks = _task_count(table)
    variance = _jackknife_variance(table, statistic)
    value = float(statistic(_column_sums(table)))
    if math.isinf(scale):  # without bounds Student's t, which needs a spread
        half = math.nan if variance is None else student_t(tasks - 1) * math.sqrt(variance)
        return value - half, value + half
    place = min(max((value - low) / scale, 0.0), 1.0)
    if variance is None or not 0.0 < place < 1.0:
        least, most = wilson_interval(place, tasks)
    else:
        least, most = wilson_interval(place, place * (1 - place) * scale**2 / variance, student_t(tasks - 1))
    return low + scale * least, low + scale * most


def _share_interval(table: Mapping[str, Array], share: Share) -> tuple[float, float]:
    top, bottom = share.top_and_bottom(table)
    has_counts = bottom > 0
    top, bottom = top[has_counts], bottom[has_counts]
    value = float(top.sum() / bottom.sum())
    tasks = len(top)
    single = bool(np.all(bottom == 1) and np.all((top == 0) | (top == 1)))  # one yes or no a task: nothing is clustered
    variance = None if single else _jackknife_variance({"top": top, "bottom": bottom}, Share("top", "bottom"))
    if variance is None:
        return wilson_interval(value, tasks)
    observations = min(float(bottom.sum()), value * (1 - value) / variance)  # never more than there are
    return wilson_interval(value, observations, student_t(tasks - 1))


def _jackknife_variance(table: Mapping[str, Array], statistic: Callable[[Sums], Array]) -> float | None:
    """The variance by the jackknife over tasks; None without a spread to estimate it from, or where the statistic is
    undefined without one of the tasks."""
    tasks = _task_count(table)
    if tasks < 2:
        return None
    left = statistic({name: column.sum() - column for name, column in table.items()})  # [N], each without one task
    spread = float(((left - left.mean()) ** 2).sum()) * (tasks - 1) / tasks
    return spread if spread > NOTHING else None  # NaN is not


def _task_count(table: Mapping[str, Array]) -> int:
    return len(next(iter(table.values())))


def _count_columns(counts: Counts, tasks: Sequence[int], names: Sequence[str] | None = None) -> dict[str, Array]:
    """Counts by name, each [N] over ``tasks``; a task that is not there counts nothing."""
    if names is None:
        names = list(next(iter(counts.values())))
    nothing = dict.fromkeys(names, 0.0)
    rows = [counts.get(task, nothing) for task in tasks]

    columns = {}
    for name in names:
        column = [row[name] for row in rows]
        columns[name] = np.asarray(column, dtype=np.float64)
    return columns


def _column_sums(table: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(column.sum()) for name, column in table.items()}


# -- changes


def counts_json(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    """The counts of every figure by task, to be kept for ``paired_changes``; figures with the same counts share
    them."""
    tables: list[Counts] = []
    which: dict[str, int] = {}
    for key, estimate in estimates.items():
        if isinstance(estimate, Figure):
            place = next((i for i, counts in enumerate(tables) if counts is estimate.counts), len(tables))
            if place == len(tables):
                tables.append(estimate.counts)
            which[key] = place

    saved = []
    for counts in tables:
        names = list(next(iter(counts.values())))
        rows = {}
        for task, row in counts.items():
            rows[task] = [_whole_if_equal(row[name]) for name in names]
        saved.append({"names": names, "tasks": rows})
    return {"tables": saved, "figures": which}


def _whole_if_equal(count: float) -> int | float:
    whole = int(count)
    return whole if whole == count else count


def paired_changes(after: Mapping[str, Estimate], before: Mapping[str, Any]) -> dict[str, Estimate]:
    """After minus before for every figure that both have. ``before``: as ``counts_json`` wrote it."""
    tables: list[dict[int, dict[str, float]]] = []
    for table in before["tables"]:
        counts = {}
        for task, row in table["tasks"].items():
            counts[int(task)] = dict(zip(table["names"], row, strict=True))
        tables.append(counts)

    changes = {}
    for key, figure in after.items():
        if not isinstance(figure, Figure) or key not in before["figures"]:
            continue
        change = _paired_change(figure, tables[before["figures"][key]])
        if change is not None:
            changes[key] = change
    return changes


def _paired_change(after: Figure, before: Counts) -> Estimate | None:
    """Each task is left out of both sides at once. A task that only one side has counts nothing on the other."""
    names = list(after.statistic.names)
    counted = {*_counted_tasks(after.counts, after.statistic), *_counted_tasks(before, after.statistic)}
    tasks = sorted(counted)
    low, high = after.statistic.bounds
    start = make_figure(before, after.statistic, after.n)
    if start is None:
        return None
    value = after.value - start.value

    # One table with the counts of both sides, so that a task is left out of both.
    both = {}
    for name, column in _count_columns(before, tasks, names).items():
        both[f"before {name}"] = column
    for name, column in _count_columns(after.counts, tasks, names).items():
        both[f"after {name}"] = column

    def change_of(sums: Sums) -> Array:
        sums_before = {name: sums[f"before {name}"] for name in names}
        sums_after = {name: sums[f"after {name}"] for name in names}
        return np.asarray(after.statistic(sums_after) - after.statistic(sums_before))

    variance = _jackknife_variance(both, change_of)
    if variance is not None:
        half = student_t(len(tasks) - 1) * math.sqrt(variance)
    elif _hangs_on_one(both, change_of):
        return independent_difference(after, start).clip_to(low - high, high - low)
    else:
        _, most = wilson_interval(0.0, len(tasks))
        half = (high - low) * most
    estimate = Estimate(value=value, low=value - half, high=value + half, n=after.n)
    return estimate.clip_to(low - high, high - low)


def _hangs_on_one(table: Mapping[str, Array], statistic: Callable[[Sums], Array]) -> bool:
    """Whether the statistic is undefined without one of the tasks."""
    left = statistic({name: column.sum() - column for name, column in table.items()})
    return bool(np.isnan(left).any())
