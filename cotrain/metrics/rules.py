"""The rules of alarms: pure functions that tell from the rows so far whether a metric has left its healthy range.

A rule reads windows of rows (a row counts where it has all metrics of the band) and returns the value that is out, or
None. ``alarms`` says which rule watches what, and takes the limits from the table of metrics.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

# -- Alarms: rules for known ways in which a run goes wrong.


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A band that was left."""

    band: str
    key: str  # the first metric of the series
    step: int  # at which it first fired
    last: int  # at which it fired last
    value: float  # read at the first
    reading: str  # the same in words
    healthy: str
    advice: str
    examples: tuple[str, ...] = ()  # addresses of rollouts in the ledger

    def line(self) -> str:
        """One plain line; steps are counted from 1, as the other lines of a run do."""
        shown = f" See rollouts {', '.join(self.examples)} (addresses count from 0)." if self.examples else ""
        read = f"{self.band} ({self.key}: {self.reading}; healthy: {self.healthy})"
        return f"alarm after step {self.step + 1}: {read}. {self.advice}{shown}"

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "examples": list(self.examples)}


LEAST = 0.05  # verdicts at an end must be off the base rate by this
REACH = 3  # windows that a rule may look back
ONE_SIDED = 1.645  # standard errors: chance alone goes beyond them in one of twenty windows
SURE = 2.5  # standard errors by which a fall must exceed what the rows' own scatter makes


@dataclass(slots=True)
class PastWindows:
    """The full windows from the first row on, the last of them left out: what the rules ask of them, and no list."""

    first: tuple[float, ...]  # means of the first window
    best: tuple[float, ...]  # means of the window in which the last metric was highest, the earliest of equal ones
    low: float  # lowest mean of the first metric
    high: float

    def add_window(self, means: tuple[float, ...]) -> None:
        if means[-1] > self.best[-1]:
            self.best = means
        self.low = min(self.low, means[0])
        self.high = max(self.high, means[0])


@dataclass(slots=True)
class MetricSeries:
    """The metrics of one band and one role or policy so far: the last rows, and a summary of what was before. It does
    not grow with the run."""

    window: int
    rows: int = 0  # so far
    step: int = -1  # step of the last row
    columns: list[deque[float]] = field(default_factory=list)  # one for each of the band's keys: its last values
    past: PastWindows | None = None  # None before the second full window
    # Means of the last full window. It enters ``past`` when the next one is full, so that ``past`` never overlaps the
    # rows that are compared with it.
    _last_means: tuple[float, ...] = ()

    def add_row(self, step: int, values: Sequence[float]) -> None:
        if not self.columns:
            self.columns = [deque(maxlen=REACH * self.window) for _ in values]
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        self.rows += 1
        self.step = step
        is_full_window = self.rows % self.window == 0
        if is_full_window:
            means = self._last_means
            if self.past is not None:
                self.past.add_window(means)
            elif means:
                self.past = PastWindows(first=means, best=means, low=means[0], high=means[0])
            self._last_means = tuple(mean(self.last_window(column)) for column in range(len(self.columns)))

    def last_window(self, column: int) -> list[float]:
        """The last window's values; fewer while there are."""
        return list(self.columns[column])[-self.window :]

    def window_means(self, column: int, count: int) -> list[float] | None:
        """Means of the last ``count`` windows, at most ``REACH``, which end at the last row; None while there are
        fewer."""
        values = list(self.columns[column])
        n = self.window
        first_start = len(values) - count * n
        if first_start < 0:
            return None
        return [mean(values[start : start + n]) for start in range(first_start, len(values), n)]

    def scatter_error(self, column: int) -> float:
        """Standard error of the difference of two windows' means, by the scatter of the last rows about their
        neighbours (von Neumann 1941: half of the mean square of successive differences), which no trend adds to."""
        values = self.columns[column]
        steps = [(b - a) ** 2 for a, b in pairwise(values)]
        return math.sqrt(mean(steps) / self.window) if steps else 0.0


class Rule(Protocol):
    """One way to leave a band."""

    def __call__(self, series: MetricSeries) -> float | None: ...

    def healthy_text(self, window: int) -> str:
        """The range in words."""
        ...


@dataclass(frozen=True, slots=True)
class AlwaysAbove:
    """Every row of the window above the limit."""

    limit: float

    def __call__(self, series: MetricSeries) -> float | None:
        recent = series.last_window(0)
        is_full = len(recent) == series.window
        return mean(recent) if is_full and min(recent) > self.limit else None

    def healthy_text(self, window: int) -> str:
        return f"at most {self.limit:g} at one step of {window}"


@dataclass(frozen=True, slots=True)
class AboveFromTheStart:
    """The first row above the limit, or every row of the window."""

    limit: float

    def __call__(self, series: MetricSeries) -> float | None:
        recent = series.last_window(0)
        is_first_or_full = series.rows == 1 or len(recent) == series.window
        return mean(recent) if is_first_or_full and min(recent) > self.limit else None

    def healthy_text(self, window: int) -> str:
        return f"at most {self.limit:g} at the first step, and at one of {window} later"


@dataclass(frozen=True, slots=True)
class MeanAbove:
    """The window's mean above the limit."""

    limit: float

    def __call__(self, series: MetricSeries) -> float | None:
        recent = series.window_means(0, 1)
        return recent[0] if recent and recent[0] > self.limit else None

    def healthy_text(self, window: int) -> str:
        return f"at most {self.limit:g}"


@dataclass(frozen=True, slots=True)
class FarFromBase:
    """The share called right (first key) too far from the share that is right (second), or at an end where that is not,
    and then off by ``LEAST``. It must be off by more than what the window's own scatter makes of few problems a step:
    counted is the distance less ``ONE_SIDED`` standard errors."""

    distance: float
    low: float
    high: float

    def __call__(self, series: MetricSeries) -> float | None:
        called = series.window_means(0, 1)
        true = series.window_means(1, 1)
        if not called or not true:
            return None
        # ``scatter_error`` is of the difference of two windows; one window has 1/√2 of it.
        error = math.hypot(series.scatter_error(0), series.scatter_error(1)) / math.sqrt(2)
        off = abs(called[0] - true[0]) - ONE_SIDED * error
        is_low_alone = called[0] < self.low <= true[0]
        is_high_alone = called[0] > self.high >= true[0]
        is_at_an_end = (is_low_alone or is_high_alone) and off > LEAST
        return called[0] if off > self.distance or is_at_an_end else None

    def healthy_text(self, window: int) -> str:
        return f"within {self.distance:g} of the base rate, and {self.low:g} to {self.high:g} where that is"


@dataclass(frozen=True, slots=True)
class Rising:
    """Three windows, each above the one before, by ``rise`` in all and to ``level`` or more."""

    rise: float
    level: float

    def __call__(self, series: MetricSeries) -> float | None:
        means = series.window_means(0, 3)
        if not means or not means[0] < means[1] < means[2]:
            return None
        has_risen = means[2] - means[0] >= self.rise
        return means[2] if has_risen and means[2] >= self.level else None

    def healthy_text(self, window: int) -> str:
        return f"below {self.level:g}, or not rising by {self.rise:g} over 3 windows of {window} steps"


@dataclass(frozen=True, slots=True)
class DriftFromStart:
    """The window's mean, as a multiple of the first window's, outside of the limits. Reads that multiple."""

    low: float
    high: float
    what: str = "steps"

    def __call__(self, series: MetricSeries) -> float | None:
        recent = series.window_means(0, 1)
        if not recent or series.past is None or not series.past.first[0] > 0.0:
            return None
        ratio = recent[0] / series.past.first[0]
        return None if self.low <= ratio <= self.high else ratio

    def healthy_text(self, window: int) -> str:
        reach = f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"
        return f"{reach} times the first {window} {self.what}'"


@dataclass(frozen=True, slots=True)
class RiseAndFall:
    """The first metric has risen while the second fell, since the window in which the second was best. Reads the
    second's change. A rise must also be a tenth of the first metric's own range, whose scale may be anything; a fall
    more than what few problems a step make of it by chance."""

    rise: float
    fall: float
    what: str
    while_: str

    def __call__(self, series: MetricSeries) -> float | None:
        moved = changes_since_best(series)
        if moved is None or series.past is None:
            return None
        up = moved[0]
        down = -moved[1]
        least_fall = max(self.fall, SURE * series.scatter_error(1))
        if down < least_fall or up < self.rise:
            return None
        now = series.past.best[0] + up
        own_range = max(series.past.high, now) - min(series.past.low, now)
        return -down if up >= 0.1 * own_range else None

    def healthy_text(self, window: int) -> str:
        return f"{self.what} within {self.fall:g} of its best while {self.while_}"


@dataclass(frozen=True, slots=True)
class GrowingDistance:
    """The first metric minus the second has grown by ``apart``, and the second has fallen by ``fall``, since the window
    in which the second was best. Reads the second's change. The first need not rise. The distance must also grow by
    more than the noise of the rows explains."""

    apart: float
    fall: float
    what: str
    from_what: str

    def __call__(self, series: MetricSeries) -> float | None:
        moved = changes_since_best(series)
        if moved is None:
            return None
        up = moved[0]
        down = -moved[1]
        has_grown = up + down >= max(self.apart, SURE * series.scatter_error(1))
        return -down if has_grown and down >= self.fall else None

    def healthy_text(self, window: int) -> str:
        return (
            f"{self.what} within {self.fall:g} of its best, or its distance from {self.from_what} within {self.apart:g}"
        )


@dataclass(frozen=True, slots=True)
class RisesAlone:
    """The first metric has risen by ``rise`` since the first window, and the second, measured on the same answers, by
    less than ``follow`` times as much, even if the rows' own scatter had hidden ``SURE`` standard errors of its rise.
    Reads by how much more the first has risen.

    A verifier that is little better than chance sees only a part of what a policy learns: with true and false positive
    rates t and f it rises by t − f times the truth. ``follow`` is the least t − f of an auditor that does not take true
    learning for fooling.
    """

    rise: float
    follow: float
    what: str
    than_what: str

    def __call__(self, series: MetricSeries) -> float | None:
        first = series.window_means(0, 1)
        second = series.window_means(1, 1)
        if not first or not second or series.past is None:
            return None
        first_rise = first[0] - series.past.first[0]
        second_rise = second[0] - series.past.first[1]
        noise = math.hypot(series.scatter_error(1), self.follow * series.scatter_error(0))
        does_not_follow = second_rise + SURE * noise < self.follow * first_rise
        return first_rise - second_rise if first_rise >= self.rise and does_not_follow else None

    def healthy_text(self, window: int) -> str:
        return (
            f"{self.what} up by less than {self.rise:g} since the first {window} steps, or {self.than_what} by at "
            f"least {self.follow:g} times as much"
        )


def changes_since_best(series: MetricSeries) -> tuple[float, float] | None:
    """By how much the last window's means of both metrics differ from those of the earlier window, not overlapping it,
    in which the second was best. None before the second full window."""
    first, second = series.window_means(0, 1), series.window_means(1, 1)
    if not first or not second or series.past is None:
        return None
    return first[0] - series.past.best[0], second[0] - series.past.best[1]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
