"""Estimates with 95 % intervals, and the scores this field reports.

Every number in a report is an ``Estimate``: value, interval, sample size. Which interval:

- a share of independent trials: Wilson 1927, closed form, honest near 0 and 1;
- samples that belong together (several solutions of one task): percentile bootstrap over *clusters* (Field & Welsh
  2007), drawn from addressed randomness, so the same inputs give the same interval on every machine;
- a mean over seeds: Student's t;
- a sum or difference of two estimates: "square and add" of their intervals (Zou & Donner 2008).

What is not known is said so: an undefined value is NaN, an unknown bound is infinite, and both become ``null`` in
JSON. A comparison with an unknown bound therefore never finds a difference. Verdicts are three-valued: ``None``
(unreadable) counts as wrong whatever the truth was, so that a verifier cannot gain by falling silent.

Left out: tests and p-values (an interval says more), corrections for many comparisons, other levels than 95 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cotrain.core.address import seed_of

Z = 1.959963984540054  # 97.5 % point of the normal distribution
RESAMPLES = 2000
CHUNK = 500_000  # resampled cluster indices held in memory at once

Verdicts = Sequence[tuple[bool | None, bool]]  # (what was said, what is true); None is an unreadable verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number, its 95 % interval, and how many observations it rests on."""

    value: float  # NaN when undefined
    low: float  # -inf when unknown
    high: float  # +inf when unknown
    n: int  # how many observations, counted singly even when they come in clusters

    def includes(self, value: float) -> bool:
        """Does the interval contain ``value``? An unknown bound contains everything on its side."""
        return self.low <= value <= self.high

    def json(self) -> dict[str, float | int | None]:
        """``{"value", "low", "high", "n"}``; NaN and infinities become null."""
        numbers: dict[str, float | int | None] = {
            name: x if math.isfinite(x) else None
            for name, x in (("value", self.value), ("low", self.low), ("high", self.high))
        }
        return {**numbers, "n": self.n}

    @classmethod
    def of_json(cls, saved: Mapping[str, float | int | None]) -> Estimate:
        """The inverse of ``json``. Raises KeyError on a missing field."""
        value, low, high, n = saved["value"], saved["low"], saved["high"], saved["n"]
        return cls(
            value=math.nan if value is None else float(value),
            low=-math.inf if low is None else float(low),
            high=math.inf if high is None else float(high),
            n=int(n or 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """How well one class is found: F1 is the harmonic mean of the other two."""

    precision: Estimate  # of what was said to be this class, the share that is
    recall: Estimate  # of what is this class, the share that was said to be
    f1: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Localisation:
    """Finding the first wrong step, in the manner of ProcessBench (Zheng et al. 2024, arXiv 2412.06559)."""

    erroneous: Estimate  # of solutions with an error, share whose first wrong step was named exactly
    correct: Estimate  # of solutions without error, share that was said to have none
    f1: Estimate  # harmonic mean of the two


def wilson(successes: int, n: int) -> Estimate:
    """A share of ``n`` independent trials, with Wilson's score interval. ``n = 0`` is undefined in [0, 1]."""
    if not 0 <= successes <= n:
        raise ValueError(f"wilson needs 0 <= successes <= n, found successes={successes}, n={n}")
    if n == 0:
        return Estimate(value=math.nan, low=0.0, high=1.0, n=0)
    p, z2 = successes / n, Z * Z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Estimate(value=p, low=low, high=high, n=n)


def bootstrap_mean(values: Sequence[float], seed: int, clusters: Sequence[Hashable] | None = None) -> Estimate:
    """Mean of ``values`` ``[n]`` with a percentile bootstrap interval; with ``clusters`` ``[n]`` (the task of each
    value) whole clusters are resampled. One cluster alone says nothing about spread: its bounds are unknown. Values
    that are all the same give an interval of no width, which for a rare event claims too much."""
    rows = np.asarray([(v, 1.0) for v in values], dtype=np.float64).reshape(len(values), 2)
    return _bootstrap(rows, lambda s: _ratio(s[:, 0], s[:, 1]), seed=seed, clusters=clusters)


def balanced_accuracy(pairs: Verdicts, *, seed: int = 0, clusters: Sequence[Hashable] | None = None) -> Estimate:
    """Mean of the true positive and the true negative rate; 0.5 is chance whatever the base rate.

    Undefined when a class does not occur. Interval: square-and-add of the two Wilson intervals, or a bootstrap over
    ``clusters`` ``[n]`` when they are given.
    """
    rows = _counts(pairs, positive=True)
    if clusters is not None:
        return _bootstrap(
            rows, lambda s: (_ratio(s[:, 0], s[:, 1]) + _ratio(s[:, 2], s[:, 3])) / 2, seed=seed, clusters=clusters
        )
    hits, positives, rejections, negatives = (int(x) for x in rows.sum(axis=0)[:4])
    if not positives or not negatives:
        return Estimate(value=math.nan, low=0.0, high=1.0, n=len(pairs))
    a, b = wilson(hits, positives), wilson(rejections, negatives)
    return Estimate(
        value=(a.value + b.value) / 2,
        low=(a.value + b.value - math.hypot(a.value - a.low, b.value - b.low)) / 2,
        high=(a.value + b.value + math.hypot(a.high - a.value, b.high - b.value)) / 2,
        n=len(pairs),
    )


def detection(
    pairs: Verdicts, *, positive: bool, seed: int = 0, clusters: Sequence[Hashable] | None = None
) -> Detection:
    """Precision, recall and F1 of the class ``positive``: True for "correct", False for "erroneous".

    Without ``clusters`` precision and recall have Wilson intervals. F1 depends on the base rate: print it beside.
    """
    rows = _counts(pairs, positive=positive)
    f1 = _bootstrap(rows, lambda s: _ratio(2 * s[:, 0], s[:, 1] + s[:, 4]), seed=seed, clusters=clusters)
    if clusters is not None:
        precision = _bootstrap(rows, lambda s: _ratio(s[:, 0], s[:, 4]), seed=seed, clusters=clusters)
        recall = _bootstrap(rows, lambda s: _ratio(s[:, 0], s[:, 1]), seed=seed, clusters=clusters)
        return Detection(precision=precision, recall=recall, f1=f1)
    hits, occurs, _, _, said = (int(x) for x in rows.sum(axis=0))
    return Detection(precision=wilson(hits, said), recall=wilson(hits, occurs), f1=f1)


def processbench_f1(
    pairs: Sequence[tuple[int | None, int]], *, seed: int = 0, clusters: Sequence[Hashable] | None = None
) -> Localisation:
    """Score claims about the first wrong step: pairs (claimed, true), 0-based, −1 for "no step is wrong", a claim of
    None for an unreadable review."""
    rows = np.zeros((len(pairs), 4))
    for row, (claimed, true) in zip(rows, pairs, strict=True):
        row[0 if true >= 0 else 2] = claimed == true
        row[1 if true >= 0 else 3] = 1

    def harmonic(s: np.ndarray) -> np.ndarray:
        a, b = _ratio(s[:, 0], s[:, 1]), _ratio(s[:, 2], s[:, 3])
        return np.where(a + b == 0, 0.0 * (a + b), _ratio(2 * a * b, a + b))

    f1 = _bootstrap(rows, harmonic, seed=seed, clusters=clusters)
    if clusters is not None:
        erroneous = _bootstrap(rows, lambda s: _ratio(s[:, 0], s[:, 1]), seed=seed, clusters=clusters)
        correct = _bootstrap(rows, lambda s: _ratio(s[:, 2], s[:, 3]), seed=seed, clusters=clusters)
        return Localisation(erroneous=erroneous, correct=correct, f1=f1)
    found, wrong, cleared, right = (int(x) for x in rows.sum(axis=0))
    return Localisation(erroneous=wilson(found, wrong), correct=wilson(cleared, right), f1=f1)


def brier(forecasts: Sequence[tuple[float, bool]]) -> float:
    """Mean squared error of probabilities (p, outcome); 0 is perfect, 0.25 is always saying one half."""
    return math.nan if not forecasts else math.fsum((p - y) ** 2 for p, y in forecasts) / len(forecasts)


def calibration_error(forecasts: Sequence[tuple[float, bool]], bins: int = 10) -> float:
    """Expected calibration error: mean |outcome − probability| over equal-width bins, weighted by their counts
    (Naeini et al. 2015). A bin holds ``[i/bins, (i+1)/bins)``, the last one also 1."""
    if not forecasts:
        return math.nan
    sums = [[0.0, 0.0] for _ in range(bins)]
    for p, y in forecasts:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"calibration_error needs probabilities in [0, 1], found {p}")
        cell = sums[min(int(p * bins), bins - 1)]
        cell[0] += p
        cell[1] += y
    return math.fsum(abs(y - p) for p, y in sums) / len(forecasts)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of ``k`` samples is right, unbiased from ``c`` right ones among ``n``:
    1 − C(n−c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374)."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k needs 0 <= c <= n and 1 <= k <= n, found n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority_at_k(answers: Sequence[tuple[str | None, bool]], k: int) -> float:
    """Is the most frequent of the first ``k`` answers right? Pairs (answer, right); None has no vote; tied answers
    share the credit; without a single vote 0. Returns a number in [0, 1]."""
    if not 1 <= k <= len(answers):
        raise ValueError(f"majority_at_k needs 1 <= k <= {len(answers)} answers, found k={k}")
    votes = Counter(answer for answer, _ in answers[:k] if answer is not None)
    if not votes:
        return 0.0
    top = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == top]
    right = {answer for answer, ok in answers[:k] if ok}
    return sum(answer in right for answer in tied) / len(tied)


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean over independent runs (seeds) with Student's t interval; one value alone has unknown bounds."""
    n = len(values)
    if n == 0:
        return Estimate(value=math.nan, low=-math.inf, high=math.inf, n=0)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(value=mean, low=-math.inf, high=math.inf, n=1)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = student_t(n - 1) * deviation / math.sqrt(n)
    return Estimate(value=mean, low=mean - half, high=mean + half, n=n)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Mean of ``a[i] − b[i]`` over pairs (the same seed in two recipes), with Student's t interval."""
    return mean_interval([x - y for x, y in zip(a, b, strict=True)])


def difference(a: Estimate, b: Estimate) -> Estimate:
    """``a − b`` for two separately estimated numbers, by square-and-add of their intervals. Treats them as
    independent, which is wider than the truth when both were measured on the same tasks."""
    return Estimate(
        value=a.value - b.value,
        low=a.value - b.value - math.hypot(a.value - a.low, b.high - b.value),
        high=a.value - b.value + math.hypot(a.high - a.value, b.value - b.low),
        n=min(a.n, b.n),
    )


def student_t(df: int) -> float:
    """97.5 % point of Student's t with ``df >= 1`` degrees of freedom: bisection of the finite sum for whole degrees
    (Abramowitz & Stegun 26.7.3–4), and from 200 on the expansion around the normal (26.7.5)."""
    if df < 1:
        raise ValueError(f"student_t needs df >= 1, found {df}")
    if df >= 200:
        return Z + (Z**3 + Z) / (4 * df) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * df * df)
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_mass(middle, df) < 0.95 else (low, middle)
    return (low + high) / 2


def _central_mass(t: float, df: int) -> float:
    """P(−t < T < t)."""
    angle = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    if df == 1:
        return 2 * angle / math.pi
    odd = df % 2
    term = total = cosine if odd else 1.0
    for j in range(3 if odd else 2, df - 1, 2):
        term *= cosine * cosine * (j - 1) / j
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _counts(pairs: Verdicts, *, positive: bool) -> np.ndarray:
    """``[n, 5]``: hit, is positive, rejected rightly, is negative, was said to be positive."""
    rows = []
    for said, true in pairs:
        is_it, accepted, rejected = true is positive, said is positive, said is (not positive)
        rows.append((is_it and accepted, is_it, not is_it and rejected, not is_it, accepted))
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), 5)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Elementwise quotient, NaN where the denominator is 0."""
    return np.divide(above, below, out=np.full_like(above, math.nan, dtype=np.float64), where=below != 0)


def _bootstrap(
    rows: np.ndarray,  # [n, m] what each observation adds to the sums
    statistic: Callable[[np.ndarray], np.ndarray],  # [R, m] sums -> [R]
    *,
    seed: int,
    clusters: Sequence[Hashable] | None,
) -> Estimate:
    """Percentile bootstrap of a function of column sums. Resamples where it is undefined are left out."""
    if clusters is not None and len(clusters) != len(rows):
        raise ValueError(f"one cluster per value: found {len(rows)} values and {len(clusters)} clusters")
    n = len(rows)
    if n == 0:
        return Estimate(value=math.nan, low=-math.inf, high=math.inf, n=0)
    value = float(statistic(rows.sum(axis=0, keepdims=True))[0])
    if clusters is not None:
        place = {key: i for i, key in enumerate(dict.fromkeys(clusters))}
        sums = np.zeros((len(place), rows.shape[1]))
        np.add.at(sums, [place[key] for key in clusters], rows)
    else:
        sums = rows
    units = len(sums)
    if units == 1 or math.isnan(value):
        return Estimate(value=value, low=-math.inf, high=math.inf, n=n)
    generator = np.random.Generator(np.random.PCG64(seed_of("bootstrap", seed, n, units)))
    drawn: list[np.ndarray] = []
    done, chunk = 0, max(1, min(RESAMPLES, CHUNK // units))
    while done < RESAMPLES:
        size = min(chunk, RESAMPLES - done)
        picks = generator.integers(0, units, size=(size, units))
        drawn.append(statistic(sums[picks].sum(axis=1)))
        done += size
    resampled = np.concatenate(drawn)
    low, high = np.quantile(resampled[np.isfinite(resampled)], (0.025, 0.975))
    return Estimate(value=value, low=float(min(low, value)), high=float(max(high, value)), n=n)
