"""Estimates with 95 % intervals, and the few formulas that make them.

Every number in a report is an ``Estimate``: value, interval, sample size. The interval is that of

- Student's t for a mean over seeds; where each seed has problems of its own, ``over_seeds_and_problems``;
- "square and add" (Zou & Donner 2008) for a difference of two estimates;
- Wilson for a share;
- ``metrics/clusters.py`` for figures of one run on held-out problems, as samples of one problem are a cluster.

The interval of a figure that has bounds stays within them (``Estimate.clip_to``). Fewer than ``LEAST`` seeds have no
interval, and nothing follows from them.

An undefined value is NaN, an unknown bound is infinite, and both become ``null`` in JSON. So a comparison with an
unknown bound never finds a difference.

A difference counts as significant only where p is well below 0.05 (``smallest_significant``, ``significance_level``):
who compares often gets intervals that just leave out zero by luck.

Left out: corrections for many comparisons, other levels than 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

Z = 1.959963984540054  # 97.5 % point of the normal distribution
FEW_TESTED = 20  # test problems: with fewer, a change from before to after is hardly ever seen
LEAST = 3  # seeds: with fewer there is no interval and no verdict
# A significant difference is larger than (t at 97.5 % + t at this share) standard errors: as in the planning of a study
# with a power of 80 %.
POWER = 0.8


_POWER_MASS = 2 * POWER - 1  # of the distribution between −t and t, for the t at ``POWER``


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
        """The estimate of a figure that lies between ``low`` and ``high``: its bounds are moved between them, and
        unknown ones stay unknown."""
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
    """Wilson's score interval of a share among ``n`` independent observations (Wilson 1927): all p for which ``share``
    lies within ``quantile`` standard errors √(p(1 − p) / n) of p. It stays in [0, 1] and has a width also where the
    share is 0 or 1. ``n``, an effective number, need not be whole."""
    if not (0.0 <= share <= 1.0 and n > 0.0):
        raise ValueError(f"wilson needs a share in [0, 1] and n > 0, found share={share}, n={n}")
    z2_over_n = quantile * quantile / n
    middle = (share + z2_over_n / 2) / (1 + z2_over_n)
    half_width = math.sqrt(z2_over_n * share * (1 - share) + z2_over_n * z2_over_n / 4) / (1 + z2_over_n)
    # At 0 and 1 the formula gives exactly that bound, but for rounding.
    low = 0.0 if share == 0.0 else max(0.0, middle - half_width)
    high = 1.0 if share == 1.0 else min(1.0, middle + half_width)
    return low, high


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean over independent runs (seeds) with Student's t interval; fewer than ``LEAST`` have unknown bounds."""
    return over_seeds_and_problems([(value, ()) for value in values])


def over_seeds_and_problems(runs: Sequence[tuple[float, Sequence[float]]]) -> Estimate:
    """Mean over seeds of a figure, or of a difference of two arms, where each seed has test problems of its own.

    Both seeds and problems are drawn at random: a seed's figure has the variance σ² + v/N, for seeds that differ by σ²
    and N problems of variance v. The sample variance s² of the seeds' figures estimates this sum already. Seeds that
    agree by luck have too small an s², so it is at least the mean of v/N over seeds. The interval is the mean ±
    Student's t with n − 1 degrees of freedom times √(max(s², v/N) / n).

    (A bootstrap that resamples seeds and then problems counts the problems twice, s² + v/N: in simulations its 95 %
    interval holds the mean in 99.9 % of cases where seeds hardly differ. Nested sampling: Davison & Hinkley 1997,
    section 3.8.)

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
    within = math.fsum(_sample_variance(values) / len(values) for _, values in runs if values) / n
    half_width = student_t(n - 1) * math.sqrt(max(between, within) / n)
    return Estimate(value=mean, low=mean - half_width, high=mean + half_width, n=n)


def _sample_variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values) / max(1, len(values) - 1)


def smallest_significant(change: Estimate) -> float:
    """The smallest value of this difference that would be significant, given the width of its interval: (t at 97.5 % +
    t at 80 %) standard errors, which is where p is ``significance_level``. The standard error comes from the same data,
    so this is no power analysis of the design. Infinite where the interval is unknown."""
    if change.n < LEAST or not math.isfinite(change.high - change.low):
        return math.inf
    half_width = (change.high - change.low) / 2  # t at 97.5 %, times the standard error
    df = change.n - 1
    return half_width * (1.0 + student_t(df, _POWER_MASS) / student_t(df))


def significance_level(n: int) -> float:
    """The two-sided p below which a difference over ``n >= LEAST`` seeds is significant: 0.021 for five, 0.012 for
    ten."""
    df = n - 1
    return 1.0 - _central_mass(student_t(df) + student_t(df, _POWER_MASS), df)


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
    """The t for which Student's t distribution with ``df >= 1`` degrees of freedom has ``mass`` between −t and t: 0.95
    gives the 97.5 % point. Found by bisection of ``_central_mass``; from 200 degrees on by the expansion around the
    normal distribution (Abramowitz & Stegun 26.7.5)."""
    if df < 1:
        raise ValueError(f"student_t needs df >= 1, found {df}")
    if df >= 200:
        z = NormalDist().inv_cdf((1 + mass) / 2)
        return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df * df)
    low = 0.0
    high = 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if _central_mass(middle, df) < mass:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _central_mass(t: float, df: int) -> float:
    """P(−t < T < t) of Student's t, by the finite sums for odd and even whole degrees of freedom (Abramowitz & Stegun
    26.7.3–4)."""
    angle = math.atan(t / math.sqrt(df))
    sine = math.sin(angle)
    cosine = math.cos(angle)
    if df == 1:
        return 2 * angle / math.pi
    is_odd = df % 2 == 1
    term = cosine if is_odd else 1.0
    total = term
    for j in range(3 if is_odd else 2, df - 1, 2):
        term *= cosine * cosine * (j - 1) / j
        total += term
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
