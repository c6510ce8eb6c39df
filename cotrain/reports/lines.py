"""Geometry of line charts: interpolation between points, and round numbers for an axis."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

Points = Sequence[tuple[float, float]]  # (x, y), x ascending


def value_at(points: Points, x: float) -> float:
    """The line's height at ``x`` by linear interpolation; ``x`` must lie in its range."""
    i = bisect.bisect_left(points, x, key=lambda p: p[0])
    if points[i][0] == x:
        return points[i][1]
    x0, y0 = points[i - 1]
    x1, y1 = points[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def axis_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers inside [low, high], about ``count`` of them."""
    if not high > low:
        return [low]
    exact_step = (high - low) / count
    power = 10.0 ** math.floor(math.log10(exact_step))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= exact_step * 0.999)
    # The tolerances (0.999, 1e-9, 12 digits) keep a round number that rounding put just beside itself.
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]
