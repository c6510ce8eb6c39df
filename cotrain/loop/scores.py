"""Scores of benchmark suites from per-sample rows, as papers give them. A file of rows gives its scores without any model.

::

    solver        greedy     the greedy answer is right
                  avg@k      mean over k samples               pass@k   any of them is right (unbiased, arXiv 2107.03374)
                  maj@k      the most frequent answer is right (arXiv 2203.11171)
                  best@k     the sample that the verifier scores highest is right
                  weighted@k the answer with the largest sum of scores is right (arXiv 2206.02336)
    programs   greedy, best@k as above, and
                  pass@j     chance that one of j samples is right, unbiased (arXiv 2107.03374), for j = 1, 10, 100 and k
    processbench  error_accuracy    of the solutions with a wrong step, those whose first one was found
                  correct_accuracy  of the others, those in which no step was blamed
                  f1                harmonic mean of the two (arXiv 2412.06559); ``average/f1`` is the mean over splits
    prmbench      f1, negative_f1   of single steps: of those that are right, and of those that are wrong
                  prmscore          mean of the two (arXiv 2501.03124); by kind of error and overall, where there are both
                  step_accuracy     share of the steps judged as they are

What could not be read, graded or asked counts as wrong and stands beside as ``answered``, ``graded`` and ``parsed``. Ties go
to the first sample. Intervals are cluster bootstraps over problems (``measures.clustered``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotrain.core.statistics import Estimate, pass_at_k
from cotrain.loop.measures import Counts, Statistic, clustered
from cotrain.tasks.grading import vote_key

SampleRow = Mapping[str, Any]
GREEDY = -1  # as ``sample``: the greedy answer


def solver_scores(rows: Sequence[SampleRow], k: int) -> dict[str, Estimate]:
    """Figures of a solver, from rows with ``id``, ``sample`` (0 … k − 1, or ``GREEDY``), ``answer`` (None: none was found),
    ``correct`` (None: not graded) and ``score`` (of the verifier, in [0, 1]; None: there is none).

    ``best@k`` and ``weighted@k`` are there where any row has a score. Raises ValueError where a problem has not k samples.
    """
    problems: dict[str, list[SampleRow]] = {}
    for row in rows:
        problems.setdefault(row["id"], []).append(row)
    counts = {i: _solver_counts(mine, k) for i, mine in enumerate(problems.values())}
    named: dict[str, tuple[int, int]] = {"greedy": (0, 1)}
    if k:
        named |= {f"avg@{k}": (2, 3), f"pass@{k}": (4, 8), f"maj@{k}": (5, 8)}
    if any(row["score"] is not None for row in rows):
        named |= {f"best@{k}": (6, 8), f"weighted@{k}": (7, 8)}
    named |= {"answered": (9, 11), "graded": (10, 11)}
    return _figures(counts, {name: _share(top, bottom) for name, (top, bottom) in named.items()}, len(problems))


def _solver_counts(rows: Sequence[SampleRow], k: int) -> list[float]:
    sampled = _sampled(rows, k)
    greedy, right = [row for row in rows if row["sample"] == GREEDY], [bool(row["correct"]) for row in sampled]
    scores = [row["score"] or 0.0 for row in sampled]
    best = max(range(k), key=lambda i: (scores[i], -i), default=None)
    return [
        *(float(sum(bool(row["correct"]) for row in greedy)), float(len(greedy))),
        *(float(sum(right)), float(k)),
        pass_at_k(k, sum(right), k) if k else 0.0,
        float(_elected(sampled, [1.0] * k)),
        float(best is not None and right[best]),
        float(_elected(sampled, scores)),
        float(k > 0),
        float(sum(row["answer"] is not None for row in rows)),
        float(sum(row["correct"] is not None for row in rows)),
        float(len(rows)),
    ]


def program_scores(rows: Sequence[SampleRow], k: int) -> dict[str, Estimate]:
    """Figures of a solver of programming problems, from rows as of ``solver_scores``. Programs are not voted on."""
    problems: dict[str, list[SampleRow]] = {}
    for row in rows:
        problems.setdefault(row["id"], []).append(row)
    of = sorted({1, *(j for j in (10, 100) if j < k), k}) if k else []
    counts = {i: _program_counts(mine, k, of) for i, mine in enumerate(problems.values())}
    named = {"greedy": (0, 1)} | {f"pass@{j}": (6 + i, 5) for i, j in enumerate(of)}
    if any(row["score"] is not None for row in rows):
        named |= {f"best@{k}": (2, 5)}
    named |= {"answered": (3, -1), "graded": (4, -1)}
    return _figures(counts, {name: _share(top, bottom) for name, (top, bottom) in named.items()}, len(problems))


def _program_counts(rows: Sequence[SampleRow], k: int, of: Sequence[int]) -> list[float]:
    sampled, greedy = _sampled(rows, k), [row for row in rows if row["sample"] == GREEDY]
    right = sum(bool(row["correct"]) for row in sampled)
    best = max(sampled, key=lambda row: (row["score"] or 0.0, -row["sample"]), default=None)
    return [
        *(float(sum(bool(row["correct"]) for row in greedy)), float(len(greedy))),
        float(best is not None and bool(best["correct"])),
        float(sum(row["answer"] is not None for row in rows)),
        float(sum(row["correct"] is not None for row in rows)),
        float(k > 0),
        *(pass_at_k(k, right, j) for j in of),
        float(len(rows)),
    ]


def _sampled(rows: Sequence[SampleRow], k: int) -> list[SampleRow]:
    """The samples of a problem, in order."""
    sampled = sorted((row for row in rows if row["sample"] != GREEDY), key=lambda row: row["sample"])
    if len(sampled) != k:
        raise ValueError(f"problem {rows[0]['id']} has {len(sampled)} samples, expected {k}")
    return sampled


def _elected(rows: Sequence[SampleRow], weights: Sequence[float]) -> bool:
    """Is the answer with the largest sum of weights right?"""
    votes: dict[str, float] = {}
    first: dict[str, SampleRow] = {}
    for row, weight in zip(rows, weights, strict=True):
        if row["answer"] is not None:
            key = vote_key(row["answer"])
            votes[key] = votes.get(key, 0.0) + weight
            first.setdefault(key, row)
    return bool(votes) and bool(first[max(votes, key=lambda key: votes[key])]["correct"])


def processbench_scores(rows: Sequence[SampleRow]) -> dict[str, Estimate]:
    """Figures of a verifier, from rows with ``split``, ``problem``, ``label`` and ``prediction``: the 0-based index of the
    first wrong step, −1 for none; a prediction of None is no judgement."""
    splits = list(dict.fromkeys(row["split"] for row in rows))
    counts: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        mine = counts.setdefault((row["split"], row["problem"]), [0.0] * (4 * len(splits) + 2))
        at = 4 * splits.index(row["split"]) + (0 if row["label"] >= 0 else 2)
        mine[at] += float(row["prediction"] == row["label"])
        mine[at + 1] += 1.0
        mine[-2] += float(row["prediction"] is not None)
        mine[-1] += 1.0
    statistics: dict[str, Statistic] = {}
    parts: dict[str, int] = {}
    for i, split in enumerate(splits):
        statistics[f"{split}/error_accuracy"] = _share(4 * i, 4 * i + 1)
        statistics[f"{split}/correct_accuracy"] = _share(4 * i + 2, 4 * i + 3)
        statistics[f"{split}/f1"] = _f1(4 * i)
        total = np.sum(list(counts.values()), axis=0)[4 * i : 4 * i + 4]
        parts |= {f"{split}/error_accuracy": int(total[1]), f"{split}/correct_accuracy": int(total[3])}
        parts[f"{split}/f1"] = int(total[1] + total[3])
    f1s = [_f1(4 * i) for i in range(len(splits))]
    statistics["average/f1"] = lambda c: np.mean([f1(c) for f1 in f1s], axis=0)
    statistics["parsed"] = _share(-2, -1)
    return _figures(dict(enumerate(counts.values())), statistics, len(rows), parts)


def prmbench_scores(rows: Sequence[SampleRow]) -> dict[str, Estimate]:
    """Figures of a verifier, from rows with ``split``, ``problem``, ``wrong`` (0-based indices of the wrong steps), ``count``
    (of all steps) and ``steps`` (a verdict for each; None is no judgement, and as if each verdict were the opposite of true).

    A kind of error whose solutions hold no wrong step has ``step_accuracy`` alone.
    """
    splits = [*dict.fromkeys(row["split"] for row in rows), "overall"]
    counts: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        mine = counts.setdefault((row["split"], row["problem"]), [0.0] * (4 * len(splits) + 2))
        for i in range(row["count"]):
            right = i not in row["wrong"]
            called = (not right) if row["steps"] is None else bool(row["steps"][i])
            cell = 2 * (not right) + (called != right)  # right: found, missed; wrong: found, missed
            mine[4 * splits.index(row["split"]) + cell] += 1.0
            mine[4 * (len(splits) - 1) + cell] += 1.0
        mine[-2] += float(row["steps"] is not None)
        mine[-1] += 1.0
    parts: dict[str, int] = {}
    statistics: dict[str, Statistic] = {}
    for i, split in enumerate(splits):
        if any(mine[4 * i + 2] + mine[4 * i + 3] for mine in counts.values()):
            positive, negative = _found(4 * i, 4 * i + 1, 4 * i + 3), _found(4 * i + 2, 4 * i + 3, 4 * i + 1)
            statistics[f"{split}/f1"], statistics[f"{split}/negative_f1"] = positive, negative
            statistics[f"{split}/prmscore"] = _mean_of(positive, negative)
        statistics[f"{split}/step_accuracy"] = _correct(4 * i)
        for name in ("f1", "negative_f1", "prmscore", "step_accuracy"):
            parts[f"{split}/{name}"] = sum(split in (row["split"], "overall") for row in rows)
    statistics["parsed"] = _share(-2, -1)
    return _figures(dict(enumerate(counts.values())), statistics, len(rows), parts)


def _found(hits: int, misses: int, false: int) -> Statistic:
    """2 hits / (2 hits + misses + false alarms): the F1 of one class."""

    def f1(c: Counts) -> Counts:
        with np.errstate(invalid="ignore", divide="ignore"):
            total = 2 * c[..., hits] + c[..., misses] + c[..., false]
            return np.where(total > 0, 2 * c[..., hits] / total, np.nan)

    return f1


def _mean_of(one: Statistic, other: Statistic) -> Statistic:
    return lambda c: (one(c) + other(c)) / 2


def _correct(at: int) -> Statistic:
    def share(c: Counts) -> Counts:
        with np.errstate(invalid="ignore", divide="ignore"):
            total = c[..., at : at + 4].sum(axis=-1)
            return np.where(total > 0, (c[..., at] + c[..., at + 2]) / total, np.nan)

    return share


def _figures(
    rows: dict[int, list[float]], statistics: Mapping[str, Statistic], n: int, parts: Mapping[str, int] | None = None
) -> dict[str, Estimate]:
    """``n``: rows that a figure is about, where ``parts`` (by name) does not say it."""
    parts = parts or {}
    found = {name: clustered(rows, statistic, name, parts.get(name, n)) for name, statistic in statistics.items()}
    return {name: figure for name, figure in found.items() if figure is not None}


def _share(top: int, bottom: int) -> Statistic:
    def share(c: Counts) -> Counts:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(c[..., bottom] > 0, c[..., top] / c[..., bottom], np.nan)

    return share


def _f1(at: int) -> Statistic:
    def f1(c: Counts) -> Counts:
        wrong, right = _share(at, at + 1)(c), _share(at + 2, at + 3)(c)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(wrong + right == 0, 0.0, 2 * wrong * right / (wrong + right))

    return f1
