"""When a series has left its band: pure rules on the rows so far, each with its limits in words.

A rule reads windows of rows (a row counts where it has all metrics of the band) and returns the value that is out, or
None. ``alarms`` says which rule watches what, and takes the limits from the table of metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

LEAST = 0.05  # verdicts at an end must be off the base rate by this


@dataclass(slots=True)
class Series:
    """The metrics of one band and one role or policy so far."""

    window: int
    steps: list[int] = field(default_factory=list)
    columns: list[list[float]] = field(default_factory=list)  # one for each of the band's keys
    closed: list[list[float]] = field(default_factory=list)  # of each column: means of its full windows from the start

    def add(self, step: int, values: Sequence[float]) -> None:
        self.steps.append(step)
        if not self.columns:
            self.columns, self.closed = [[] for _ in values], [[] for _ in values]
        for column, means, value in zip(self.columns, self.closed, values, strict=True):
            column.append(value)
            if len(column) % self.window == 0:
                means.append(mean(column[-self.window :]))

    def windows(self, column: int, count: int) -> list[float] | None:
        """Means of the last ``count`` windows, which end at the last row; None while there are fewer."""
        values, n = self.columns[column], self.window
        starts = range(len(values) - count * n, len(values), n)
        return [mean(values[start : start + n]) for start in starts] if starts[0] >= 0 else None


class Rule(Protocol):
    """One way to leave a band."""

    def __call__(self, series: Series) -> float | None: ...

    def healthy(self, window: int) -> str:
        """The range in words."""
        ...


@dataclass(frozen=True, slots=True)
class AlwaysAbove:
    """Every row of the window above the limit."""

    limit: float

    def __call__(self, series: Series) -> float | None:
        recent = series.columns[0][-series.window :]
        return mean(recent) if len(recent) == series.window and min(recent) > self.limit else None

    def healthy(self, window: int) -> str:
        return f"at most {self.limit:g} at one step of {window}"


@dataclass(frozen=True, slots=True)
class MeanAbove:
    """The window's mean above the limit."""

    limit: float

    def __call__(self, series: Series) -> float | None:
        recent = series.windows(0, 1)
        return recent[0] if recent and recent[0] > self.limit else None

    def healthy(self, window: int) -> str:
        return f"at most {self.limit:g}"


@dataclass(frozen=True, slots=True)
class FarFromBase:
    """The share called right (first key) too far from the share that is right (second), or at an end where that is not,
    and then off by ``LEAST``."""

    distance: float
    low: float
    high: float

    def __call__(self, series: Series) -> float | None:
        said, true = series.windows(0, 1), series.windows(1, 1)
        if not said or not true:
            return None
        off = abs(said[0] - true[0])
        one_sided = (said[0] < self.low <= true[0] or said[0] > self.high >= true[0]) and off > LEAST
        return said[0] if off > self.distance or one_sided else None

    def healthy(self, window: int) -> str:
        return f"within {self.distance:g} of the base rate, and {self.low:g} to {self.high:g} where that is"


@dataclass(frozen=True, slots=True)
class Rising:
    """Three windows, each above the one before, by ``rise`` in all and to ``level`` or more."""

    rise: float
    level: float

    def __call__(self, series: Series) -> float | None:
        means = series.windows(0, 3)
        if not means or not means[0] < means[1] < means[2]:
            return None
        return means[2] if means[2] - means[0] >= self.rise and means[2] >= self.level else None

    def healthy(self, window: int) -> str:
        return f"below {self.level:g}, or not rising by {self.rise:g} over 3 windows of {window} steps"


@dataclass(frozen=True, slots=True)
class Drifted:
    """The window's mean, as a multiple of the first window's, outside of the limits. Reads that multiple."""

    low: float
    high: float
    what: str = "steps"

    def __call__(self, series: Series) -> float | None:
        recent = series.windows(0, 1)
        if not recent or len(series.steps) < 2 * series.window or not series.closed[0][0] > 0.0:
            return None
        ratio = recent[0] / series.closed[0][0]
        return None if self.low <= ratio <= self.high else ratio

    def healthy(self, window: int) -> str:
        reach = f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"
        return f"{reach} times the first {window} {self.what}'"


@dataclass(frozen=True, slots=True)
class Parted:
    """The first metric has risen while the second fell, since the window in which the second was best. Reads the
    second's change. A rise must also be a tenth of the first metric's own range, whose scale may be anything."""

    rise: float
    fall: float
    what: str
    while_: str

    def __call__(self, series: Series) -> float | None:
        now = series.windows(0, 1), series.windows(1, 1)
        earlier = (len(series.steps) - series.window) // series.window  # full windows that do not overlap the last
        if not now[0] or not now[1] or earlier < 1:
            return None
        paid, true = series.closed[0][:earlier], series.closed[1][:earlier]
        best = true.index(max(true))
        up, down = now[0][0] - paid[best], true[best] - now[1][0]
        if down < self.fall or up < self.rise:
            return None
        spread = max(*paid, now[0][0]) - min(*paid, now[0][0])
        return -down if up >= 0.1 * spread else None

    def healthy(self, window: int) -> str:
        return f"{self.what} within {self.fall:g} of its best while {self.while_}"


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
