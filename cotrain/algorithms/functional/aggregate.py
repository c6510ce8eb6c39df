"""Aggregation: several verdicts → one number, and pairwise outcomes → advantages. Plain Python, no tensors.

::

    mean, majority            over K judgements of one solution      GenRM, GenPRM's Maj@K
    minimum, product          over its steps                         process reward models
    sum                       over judgements                        DeepSeek-GRM (arXiv 2504.02495)
    keep_top, then any        the m judgements that a meta score ranks highest, DeepSeek-GRM's meta RM
    pairwise_advantages       d_ij → A_i                             Think-RM (arXiv 2505.16265)

Callers leave out verdicts that could not be parsed. The aggregate of no verdicts is None, never a number. Values are
floats or bools; sums are exact (``fsum``), so the order of verdicts does not matter.

Left out: weighting verifiers by their past accuracy, and Elo or Bradley-Terry fits to pairwise outcomes (row sums are
what Think-RM uses, and are the least-squares fit when every pair was compared).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from cotrain.core.errors import UnknownName

T = TypeVar("T")
Aggregation = Callable[[Sequence[float]], float | None]

# -- several verdicts on one thing


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; of P(Yes) over rationales it is GenRM's score."""
    return math.fsum(values) / len(values) if values else None


def majority(values: Sequence[float]) -> float | None:
    """1.0 when more values lie above ½ than below, 0.0 when fewer do, None for a tie. A value of ½ abstains."""
    balance = sum((value > 0.5) - (value < 0.5) for value in values)
    return None if balance == 0 else float(balance > 0)


def total(values: Sequence[float]) -> float | None:
    """The sum: voting with scores, which widens their range from 1 … 10 to K … 10 K."""
    return math.fsum(values) if values else None


def minimum(values: Sequence[float]) -> float | None:
    """The least: a solution is as good as its worst step."""
    return float(min(values)) if values else None


def product(values: Sequence[float]) -> float | None:
    """The product: all steps are right, were they independent. Underflows to 0 rather than raising."""
    return math.prod(map(float, values)) if values else None


Combine = Literal["mean", "majority", "sum", "minimum", "product"]
AGGREGATIONS: dict[str, Aggregation] = {
    "mean": mean,
    "majority": majority,
    "sum": total,
    "minimum": minimum,
    "product": product,
}


def aggregate(
    name: str, values: Sequence[float], *, meta: Sequence[float] | None = None, top: int | None = None
) -> float | None:
    """One of ``AGGREGATIONS`` by name, of all values or of the ``top`` that ``meta`` ranks highest.

    Args:
        values: [K] verdicts as numbers.
        meta: [K] meta score of each verdict; goes with ``top``.

    Raises UnknownName for another name; ValueError for a value that is not finite, for one of ``meta`` and ``top``
    without the other, and as ``keep_top`` does.
    """
    if name not in AGGREGATIONS:
        raise UnknownName("aggregation", name, AGGREGATIONS)
    if (meta is None) != (top is None):
        raise ValueError("meta scores and the number to keep, top, go together: give both or neither")
    if meta is not None and top is not None:
        values = keep_top(values, meta, top)
    if not all(map(math.isfinite, values)):
        raise ValueError(f"the {name} of verdicts needs finite numbers, not {list(values)}")
    return AGGREGATIONS[name](values)


def keep_top(values: Sequence[T], meta: Sequence[float], top: int) -> tuple[T, ...]:
    """The ``top`` values with the highest meta scores, in their original order; of equal scores the earlier ones
    (DeepSeek-GRM keeps half). All of them if there are fewer than ``top``.

    Raises ValueError when the lengths differ, ``top`` is below 1, or a meta score is nan.
    """
    if len(values) != len(meta) or top < 1 or any(map(math.isnan, meta)):
        raise ValueError(
            f"to keep the top {top} of {len(values)} values takes a number from 1 and as many meta scores that can be"
            f" ordered, not {list(meta)}"
        )
    ranked = sorted(range(len(values)), key=lambda k: -meta[k])[:top]  # stable
    return tuple(values[k] for k in sorted(ranked))


# -- all pairs of one group


def skew_matrix(size: int, outcomes: Mapping[tuple[int, int], float]) -> tuple[tuple[float, ...], ...]:
    """Outcomes of comparisons as a matrix [N, N] with d_ij = −d_ji and d_ii = 0.

    Args:
        size: N responses.
        outcomes: (i, j) → r_i − r_j, such as ``Preference.margin`` with i shown first. A pair that was compared in both
            orders gets the mean; one without a verdict is 0, as in Think-RM's code.

    Raises ValueError for a pair that is none of this group, and for an outcome that is not finite.
    """
    d = [[0.0] * size for _ in range(size)]
    for (i, j), outcome in outcomes.items():
        if i == j or not (0 <= i < size and 0 <= j < size) or not math.isfinite(outcome):
            raise ValueError(f"the outcome {outcome} of the pair {(i, j)} does not fit a group of {size}")
        reverse = outcomes.get((j, i))
        d[i][j] = outcome if reverse is None else (outcome - reverse) / 2
        d[j][i] = -d[i][j]
    return tuple(map(tuple, d))


def pairwise_advantages(
    matrix: Sequence[Sequence[float]], *, scale: bool = True, eps: float = 1e-6
) -> tuple[float, ...]:
    """A_i = (1/N) Σ_j d_ij / √(Σ_ij d_ij² / (2N(N−1)) + ε), [N] (Think-RM, ``compute_grpo_difference_advantage``).

    Row sums of a skew-symmetric matrix add up to 0, so these advantages have mean 0. If d_ij = r_i − r_j for some
    rewards r, the numerator is r_i − mean r and the root is the sample standard deviation of r: this is GRPO's
    advantage, computed without the rewards themselves.

    Args:
        matrix: [N, N], skew-symmetric.
        scale: divide by the root; otherwise only by N.

    Raises ValueError for a matrix that is not square or not skew-symmetric.
    """
    n = len(matrix)
    if not _is_skew_symmetric(matrix):
        raise ValueError("pairwise outcomes must be a square matrix with d_ij = -d_ji; make it with skew_matrix")
    root = 1.0
    if scale and n > 1:
        square = math.fsum(d * d for row in matrix for d in row)
        root = math.sqrt(square / (2 * n * (n - 1)) + eps)
    return tuple(math.fsum(row) / n / root for row in matrix)


def _is_skew_symmetric(matrix: Sequence[Sequence[float]]) -> bool:
    n = len(matrix)
    if any(len(row) != n for row in matrix):
        return False
    for i in range(n):
        for j in range(n):
            if matrix[i][j] != -matrix[j][i]:
                return False
    return True
