"""Metrics of a solver's answers: accuracy alone, best of k, by vote, and chosen by a judge.

::

    pass@1      mean over all samples            pass@k      any of k is right, unbiased (arXiv 2107.03374)
    majority@k  the most frequent answer         weighted@k  the answer with the largest sum of scores (arXiv
                                                             2206.02336)
    best@k      the sample with the highest score

What could not be read votes for nothing and is wrong. Of equals the one that came first wins.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of ``k`` samples is right, unbiased from ``c`` right ones among ``n``:
    1 − C(n−c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374)."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k needs 0 <= c <= n and 1 <= k <= n, found n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def elected_index(answers: Sequence[str | None], weights: Sequence[float] | None = None) -> int | None:
    """The first sample that gives the answer with the most votes, or with the largest sum of weights; None where nobody
    gave one. It stands for its answer: where the first could not be graded, the vote is not right."""
    votes: dict[str, float] = {}
    for answer, weight in zip(answers, [1.0] * len(answers) if weights is None else weights, strict=True):
        if answer is not None:
            votes[answer] = votes.get(answer, 0.0) + weight
    return answers.index(max(votes, key=lambda answer: votes[answer])) if votes else None


def vote_is_right(answers: Sequence[str | None], right: Sequence[bool], weights: Sequence[float] | None = None) -> bool:
    """Is the elected answer right?"""
    winner = elected_index(answers, weights)
    return winner is not None and right[winner]


def best_is_right(scores: Sequence[float], right: Sequence[bool]) -> bool:
    """Is the sample with the highest score right? False where there is none."""
    best = max(range(len(scores)), key=lambda i: (scores[i], -i), default=None)
    return best is not None and right[best]


def answer_agreement(answers: Sequence[str]) -> tuple[int, float]:
    """How many answers differ, and the share of them that is the most frequent one."""
    votes = Counter(answers)
    return len(votes), max(votes.values()) / len(answers)
