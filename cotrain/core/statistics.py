"""Estimates with 95 % intervals, and the few formulas that make them.

Every number in a report is an ``Estimate``: value, interval, sample size. Which interval: a mean over seeds has
Student's t, with problems that differ from seed to seed that of ``over_seeds_and_problems``; a sum or difference of two
estimates "square and add" of their intervals (Zou & Donner 2008); a share Wilson's; figures of one run on held-out
problems, where samples come in clusters, those of ``metrics/clusters.py``. What is bounded has a bounded interval:
``Estimate.clip_to``. Fewer than ``LEAST`` seeds have no interval, and nothing follows from them.

What is not known is said so: an undefined value is NaN, an unknown bound is infinite, and both become ``null`` in
JSON. A comparison with an unknown bound therefore never finds a difference.

A difference is significant only where p is well below 0.05 (``smallest_significant``, ``significance_level``): an
interval that just leaves out zero is what luck gives to those who try often.

Left out: corrections for many comparisons, other levels than 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

Z = 1.959963984540054  # 97.5 % point of the normal distribution
FEW_TESTED = 20  # test problems; with fewer, a change from before to after is hardly ever seen
LEAST = 3  # seeds, below which there is no interval and no verdict
MARGIN = 0.8  # a significant difference lies beyond zero by this point of Student's t, and by the 97.5 % point


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number, its 95 % interval, and how many observations it rests on."""

    value: float  # NaN when undefined
    low: float  # -inf when unknown
    high: float  # +inf when unknown
    n: int  # how many observations, counted singly even when they come in clusters

    def includes(self, value: float) -> bool:
        """Whether the interval contains ``value``. An unknown bound contains everything on its side."""
        return self.low <= value <= self.high

    def clip_to(self, low: float, high: float) -> Estimate:
        """The same with its bounds cut to what the measure can be; unknown ones stay unknown."""
        return replace(
            self,
            low=self.low if math.isinf(self.low) else min(max(self.low, low), high),
            high=self.high if math.isinf(self.high) else max(min(self.high, high), low),
        )

    def to_json(self) -> dict[str, float | int | None]:
        """``{"value", "low", "high", "n"}``; NaN and infinities become null."""
        return {
            "value": _finite_or_none(self.value),
            "low": _finite_or_none(self.low),
            "high": _finite_or_none(self.high),
            "n": self.n,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, float | int | None]) -> Estimate:
        """The inverse of ``to_json``. Raises KeyError on a missing field."""
        value = saved["value"]
        low = saved["low"]
        high = saved["high"]
        n = saved["n"]
        return cls(
            value=math.nan if value is None else float(value),
            low=-math.inf if low is None else float(low),
            high=math.inf if high is None else float(high),
            n=int(n or 0),
        )


def _finite_or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None


def wilson_interval(share: float, n: float, quantile: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a share among ``n`` independent observations, which need not be a whole number (Wilson
    1927): the p for which ``share`` lies within ``quantile`` standard errors √(p(1 − p) / n). It stays in [0, 1] and
    has a width also where the share is 0 or 1."""
    if not (0.0 <= share <= 1.0 and n > 0.0):
        raise ValueError(f"wilson needs a share in [0, 1] and n > 0, found share={share}, n={n}")
    spread = quantile * quantile / n
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread * spread / 4) / (1 + spread)
    return (0.0 if share == 0.0 else max(0.0, middle - half)), (1.0 if share == 1.0 else min(1.0, middle + half))


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean over independent runs (seeds) with Student's t interval; fewer than ``LEAST`` have unknown bounds."""
    return over_seeds_and_problems([(value, ()) for value in values])


def over_seeds_and_problems(runs: Sequence[tuple[float, Sequence[float]]]) -> Estimate:
    """Mean over n seeds of a figure, or of a difference of two arms, each with what its own problems say of it.

    Seeds are drawn, and problems within each: the variance of a seed's figure is σ² + v/N for N problems, of which the
    seeds' s² is an estimate already, since each has problems of its own. It is held from below by the mean of v/N, so
    that seeds which agree by luck do not make an interval that their problems cannot bear: max(s², v/N)/n, and ±
    Student's t with n − 1 degrees of freedom. (A bootstrap that resamples seeds and then problems counts the problems
    twice, s² + v/N: in simulations its 95 % hold 99.9 % where seeds hardly differ. Nested sampling: Davison & Hinkley
    1997, section 3.8.)

    Args:
        runs: for each seed the figure and its problems' values (``runs/figures.py``), () where they are not known.
    """
    n = len(runs)
    if n == 0:
        return Estimate(value=math.nan, low=-math.inf, high=math.inf, n=0)
    mean = math.fsum(value for value, _ in runs) / n
    if n < LEAST:
        return Estimate(value=mean, low=-math.inf, high=math.inf, n=n)
    between = math.fsum((value - mean) ** 2 for value, _ in runs) / (n - 1)
    within = math.fsum(_sample_variance(said) / len(said) for _, said in runs if said) / n
    half = student_t(n - 1) * math.sqrt(max(between, within) / n)
    return Estimate(value=mean, low=mean - half, high=mean + half, n=n)


def _sample_variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values) / max(1, len(values) - 1)


def smallest_significant(change: Estimate) -> float:
    """The smallest difference that is significant next to this interval: (t of 97.5 % + t of 80 %) standard errors, so
    that p < ``significance_level``. The standard error comes from the same data, so this says nothing of what a design
    could have found beforehand. Infinite where the interval is unknown."""
    if change.n < LEAST or not math.isfinite(change.high - change.low):
        return math.inf
    half = (change.high - change.low) / 2
    df = change.n - 1
    return half * (1.0 + student_t(df, 2 * MARGIN - 1) / student_t(df))


def significance_level(n: int) -> float:
    """The two-sided p below which a difference over ``n >= LEAST`` seeds is significant: 0.021 for five, 0.012 for
    ten."""
    return 1.0 - _central_mass(student_t(n - 1) + student_t(n - 1, 2 * MARGIN - 1), n - 1)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Mean of ``a[i] − b[i]`` over pairs (the same seed in two recipes), as ``mean_interval``."""
    return mean_interval([x - y for x, y in zip(a, b, strict=True)])


def independent_difference(a: Estimate, b: Estimate) -> Estimate:
    """``a − b`` for two separately estimated numbers, by square-and-add of their intervals. Treats them as
    independent, which is wider than the truth when both were measured on the same tasks."""
    return Estimate(
        value=a.value - b.value,
        low=a.value - b.value - math.hypot(a.value - a.low, b.high - b.value),
        high=a.value - b.value + math.hypot(a.high - a.value, b.value - b.low),
        n=min(a.n, b.n),
    )


def student_t(df: int, mass: float = 0.95) -> float:
    """The point t for which −t to t holds ``mass`` of Student's t with ``df >= 1`` degrees of freedom (0.95: the 97.5 %
    point): bisection of the finite sum for whole degrees (Abramowitz & Stegun 26.7.3–4), and from 200 on the expansion
    around the normal (26.7.5)."""
    if df < 1:
        raise ValueError(f"student_t needs df >= 1, found {df}")
    if df >= 200:
        z = NormalDist().inv_cdf((1 + mass) / 2)
        return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df * df)
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_mass(middle, df) < mass else (low, middle)
    return (low + high) / 2


def _central_mass(t: float, df: int) -> float:
    """P(−t < T < t)."""
    angle = math.atan(t / math.sqrt(df))
    sine = math.sin(angle)
    cosine = math.cos(angle)
    if df == 1:
        return 2 * angle / math.pi
    odd = df % 2
    term = total = cosine if odd else 1.0
    for j in range(3 if odd else 2, df - 1, 2):
        term *= cosine * cosine * (j - 1) / j
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
