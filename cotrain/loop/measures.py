"""What is measured on played episodes: accuracy of a solver, quality of a verifier, and what one does for the other.

Every figure is a function of counts summed over tasks, so one routine gives all intervals: the tasks are resampled
with replacement (cluster bootstrap; the G solutions of one task are not independent) and the function is taken again.
A change is measured on the same tasks before and after, so both are taken again on the same resampled tasks: what a
task is worth to both cancels, and the interval is that of the per-task difference.
An unparsed review counts as a wrong judgement of either class, as ProcessBench does (arXiv 2412.06559): a verifier
that says nothing has judged nothing. How often that happens stands beside it as ``parsed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotrain.core.address import seed_of
from cotrain.core.statistics import Estimate, pass_at_k
from cotrain.core.types import Episode, Trace

Counts = NDArray[np.float64]
Rows = Mapping[int, Sequence[float]]  # task → its counts, [C]
Statistic = Callable[[Counts], Counts]  # [..., C] → [...], NaN where undefined
Measure = Callable[[Sequence[Episode]], dict[str, Estimate]]
RESAMPLES = 1000
BINS = 10  # of the calibration error


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Estimate):
    """An estimate that remembers what it was made from, so that a later one can be paired with it."""

    rows: Rows = field(repr=False, compare=False)
    statistic: Statistic = field(repr=False, compare=False)


def clustered(rows: Rows, statistic: Statistic, name: str, n: int) -> Figure | None:
    """A statistic of counts summed over tasks with its 95 % cluster-bootstrap interval; n: what it is out of.

    None when the statistic is undefined on the whole (for instance no wrong solution to recognise).
    """
    table = np.asarray(list(rows.values()), dtype=np.float64)  # [N, C]
    value = float(statistic(table.sum(axis=0))) if table.size else math.nan
    if math.isnan(value):
        return None
    low, high = np.nanpercentile(statistic(_weights(name, len(table)) @ table), [2.5, 97.5])
    return Figure(value=value, low=float(low), high=float(high), n=n, rows=rows, statistic=statistic)


def _weights(name: str, tasks: int) -> Counts:
    """How often each task is drawn in each resample, [RESAMPLES, N]."""
    draws = np.random.default_rng(seed_of("bootstrap", name, tasks))
    return draws.multinomial(tasks, np.full(tasks, 1.0 / tasks), size=RESAMPLES).astype(np.float64)


def counts_json(figures: Mapping[str, Estimate]) -> dict[str, Any]:
    """The counts of every figure by task, to be kept for ``paired_changes``; figures with the same rows share them."""
    tables: list[Rows] = []
    which: dict[str, int] = {}
    for key, figure in figures.items():
        if isinstance(figure, Figure):
            place = next((i for i, rows in enumerate(tables) if rows is figure.rows), len(tables))
            tables += [figure.rows] if place == len(tables) else []
            which[key] = place
    whole = [{task: [int(c) if c == int(c) else c for c in row] for task, row in rows.items()} for rows in tables]
    return {"tables": whole, "figures": which}


def paired_changes(after: Mapping[str, Estimate], before: Mapping[str, Any]) -> dict[str, Estimate]:
    """After minus before for every figure that both have. ``before``: as ``counts_json`` wrote it."""
    tables = [{int(task): row for task, row in rows.items()} for rows in before["tables"]]
    found = {
        key: _paired(figure, tables[before["figures"][key]], key)
        for key, figure in after.items()
        if isinstance(figure, Figure) and key in before["figures"]
    }
    return _present(found)


def _paired(after: Figure, before: Rows, name: str) -> Estimate | None:
    """One resampling of tasks for both sides. A task that only one side has counts nothing on the other."""
    tasks = sorted({*after.rows, *before})
    nothing = [0.0] * len(next(iter(after.rows.values())))
    tables = np.asarray([[side.get(task, nothing) for task in tasks] for side in (after.rows, before)], np.float64)
    now, then = after.statistic(tables.sum(axis=1))
    resampled = after.statistic(_weights(name, len(tasks)) @ tables)  # [2, RESAMPLES]
    low, high = np.nanpercentile(resampled[0] - resampled[1], [2.5, 97.5])
    return Estimate(value=float(now - then), low=float(low), high=float(high), n=after.n)


def _ratio(top: Counts, bottom: Counts) -> Counts:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)


def by_task(episodes: Sequence[Episode], role: str) -> dict[int, list[Trace]]:
    """The traces of a role by task, in address order; tasks without any are left out."""
    tasks: dict[int, list[Trace]] = {}
    for episode in episodes:
        tasks.setdefault(episode.task, []).extend(t for t in episode.traces if t.role == role)
    return {task: traces for task, traces in sorted(tasks.items()) if traces}


def solving(role: str, k: int) -> Measure:
    """``pass@1``, ``pass@k``, ``majority@k`` and ``step_accuracy`` of a solver at its own temperature."""

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        tasks = by_task(episodes, role)
        rows = {task: _solver_counts(traces, k) for task, traces in tasks.items()}
        n = sum(len(traces) for traces in tasks.values())
        named = {
            f"{role}/pass@1": clustered(rows, lambda c: _ratio(c[..., 0], c[..., 1]), "pass@1", n),
            f"{role}/step_accuracy": clustered(
                rows, lambda c: _ratio(c[..., 2], c[..., 3]), "steps", int(sum(r[3] for r in rows.values()))
            ),
            f"{role}/parsed": clustered(rows, lambda c: _ratio(c[..., 4], c[..., 1]), "parsed", n),
        }
        if k > 1:
            named[f"{role}/pass@{k}"] = clustered(rows, lambda c: _ratio(c[..., 5], c[..., 7]), f"pass@{k}", len(tasks))
            named[f"{role}/majority@{k}"] = clustered(
                rows, lambda c: _ratio(c[..., 6], c[..., 7]), f"majority@{k}", len(tasks)
            )
        return _present(named)

    return measure


def _solver_counts(traces: Sequence[Trace], k: int) -> list[float]:
    correct = [bool(t.truth.get("correct")) for t in traces]
    steps = [ok for t in traces for ok in t.truth.get("step_ok") or ()]
    enough = len(traces) >= k
    votes: dict[str, float] = {}
    for trace in traces[:k]:
        if trace.parsed.get("answer") is not None:
            votes[trace.parsed["answer"]] = votes.get(trace.parsed["answer"], 0.0) + 1.0
    return [
        sum(correct),
        len(traces),
        sum(steps),
        len(steps),
        sum("answer" in t.parsed for t in traces),
        pass_at_k(len(traces), sum(correct), k) if enough else 0.0,
        float(_winner_is_right(votes, traces[:k])) if enough else 0.0,
        float(enough),
    ]


def _winner_is_right(votes: Mapping[str, float], traces: Sequence[Trace]) -> bool:
    """Is the answer with most votes right? Among equals the one that came first in address order wins."""
    if not votes:
        return False
    winner = max(votes, key=lambda a: votes[a])  # dictionaries keep insertion order, and max the first of equals
    return any(t.parsed.get("answer") == winner and bool(t.truth.get("correct")) for t in traces)


def selecting(role: str, judge: str, k: int) -> Measure:
    """``best@k`` (the solution the judge scores highest) and ``weighted@k`` (answers weighed by the judge's scores)."""

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        rows: dict[int, list[float]] = {}
        reviews = _reviews(episodes, judge)
        for task, traces in by_task(episodes, role).items():
            if len(traces) < k:
                continue
            scores = [_score(reviews.get(str(t.address), ())) for t in traces[:k]]
            best = max(range(k), key=lambda i: (scores[i], -i))
            votes: dict[str, float] = {}
            for trace, score in zip(traces[:k], scores, strict=True):
                if trace.parsed.get("answer") is not None:
                    votes[trace.parsed["answer"]] = votes.get(trace.parsed["answer"], 0.0) + score
            rows[task] = [
                float(bool(traces[best].truth.get("correct"))),
                float(_winner_is_right(votes, traces[:k])),
                1.0,
            ]
        return _present(
            {
                f"{role}/best@{k}": clustered(rows, lambda c: _ratio(c[..., 0], c[..., 2]), f"best@{k}", len(rows)),
                f"{role}/weighted@{k}": clustered(
                    rows, lambda c: _ratio(c[..., 1], c[..., 2]), f"weighted@{k}", len(rows)
                ),
            }
        )

    return measure


def _reviews(episodes: Sequence[Episode], judge: str) -> dict[str, list[Trace]]:
    """Reviews by the address of the trace that they judge."""
    found: dict[str, list[Trace]] = {}
    for episode in episodes:
        for trace in episode.traces:
            if trace.role == judge and trace.parent is not None:
                found.setdefault(trace.parent, []).append(trace)
    return found


def _score(reviews: Sequence[Trace]) -> float:
    """Mean probability of CORRECT over the reviews of one solution; an unparsed review says one half, none says 0."""
    scores = [float(r.parsed.get("score", 0.5)) for r in reviews]
    return sum(scores) / len(scores) if scores else 0.0


# What one review contributes, by column.
_TP, _FN, _TN, _FP, _STEP_TP, _STEP_FN, _STEP_TN, _STEP_FP, _FIRST_HIT, _FIRST_ALL, _CLEAN_HIT, _CLEAN_ALL = range(12)
_RIGHT_VERDICT, _WRONG_REASON, _PARSED, _ALL, _SAID, _CORRECT, _BELIEVABLE = range(12, 19)  # last: parsed and correct
_BINS = 19  # from here on, for each calibration bin: reviews, summed score, summed truth
_WIDTH = _BINS + 3 * BINS


def verifying(judge: str) -> Measure:
    """Quality of a verifier, against ground truth, on whatever solutions it was shown.

    At answer level: balanced accuracy, precision, recall and F1 of finding WRONG solutions, true positive and negative
    rate, base rate, calibration error. At step level: balanced accuracy and the ProcessBench F1 of locating the first
    wrong step. ``right_verdict_wrong_step``: among reviews with the right final verdict on a wrong solution, the share
    whose first wrong step is not the true one. ``gap``: how much more often it says CORRECT than is true, over parsed reviews.
    """

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        rows = {
            task: np.sum([_review_counts(t) for t in traces], axis=0).tolist()
            for task, traces in by_task(episodes, judge).items()
        }
        if not rows:
            return {}
        total = np.sum(list(rows.values()), axis=0)

        def take(name: str, statistic: Statistic, *columns: int) -> tuple[str, Estimate | None]:
            return name, clustered(rows, statistic, name, int(sum(total[c] for c in columns)))

        answers, steps = (_TP, _FN, _TN, _FP), (_STEP_TP, _STEP_FN, _STEP_TN, _STEP_FP)
        figures = dict(
            [
                take("balanced_accuracy", lambda c: _balanced(c, *answers), *answers),
                take("true_positive_rate", lambda c: _ratio(c[..., _TP], c[..., _TP] + c[..., _FN]), _TP, _FN),
                take("true_negative_rate", lambda c: _ratio(c[..., _TN], c[..., _TN] + c[..., _FP]), _TN, _FP),
                take("precision", lambda c: _ratio(c[..., _TN], c[..., _TN] + c[..., _FN]), _TN, _FN),
                take("recall", lambda c: _ratio(c[..., _TN], c[..., _TN] + c[..., _FP]), _TN, _FP),
                take("f1", lambda c: _f1(c[..., _TN], c[..., _FN], c[..., _FP]), *answers),
                take("base_rate", lambda c: _ratio(c[..., _CORRECT], c[..., _ALL]), _ALL),
                take("predicted_positive", lambda c: _ratio(c[..., _SAID], c[..., _PARSED]), _PARSED),
                take("calibration_error", _calibration, _PARSED),
                take("step_balanced_accuracy", lambda c: _balanced(c, *steps), *steps),
                take("step_f1", lambda c: _f1(c[..., _STEP_TN], c[..., _STEP_FN], c[..., _STEP_FP]), *steps),
                take("first_error_accuracy", lambda c: _ratio(c[..., _FIRST_HIT], c[..., _FIRST_ALL]), _FIRST_ALL),
                take("processbench_f1", _processbench, _FIRST_ALL, _CLEAN_ALL),
                take(
                    "right_verdict_wrong_step",
                    lambda c: _ratio(c[..., _WRONG_REASON], c[..., _RIGHT_VERDICT]),
                    _RIGHT_VERDICT,
                ),
                take("parsed", lambda c: _ratio(c[..., _PARSED], c[..., _ALL]), _ALL),
            ]
        )
        gap = clustered(
            rows,
            lambda c: _ratio(c[..., _SAID] - c[..., _BELIEVABLE], c[..., _PARSED]),
            "gap",
            int(total[_ALL]),
        )
        return _present({**{f"{judge}/{name}": value for name, value in figures.items()}, "gap": gap})

    return measure


def _review_counts(trace: Trace) -> list[float]:
    row = [0.0] * _WIDTH
    if trace.truth.get("correct") is None:
        return row  # nobody knows whether it is right to judge so
    truth, said = bool(trace.truth.get("correct")), trace.parsed.get("final")
    row[_ALL], row[_CORRECT] = 1.0, float(truth)
    hit = said is not None and bool(said) == truth
    row[(_TP if hit else _FN) if truth else (_TN if hit else _FP)] = 1.0
    if said is not None:
        score = float(trace.parsed.get("score", float(said)))
        column = _BINS + 3 * min(int(score * BINS), BINS - 1)
        row[_PARSED], row[_SAID], row[_BELIEVABLE] = 1.0, float(said), float(truth)
        row[column], row[column + 1], row[column + 2] = 1.0, score, float(truth)
    step_truth, verdicts = trace.truth.get("step_ok"), trace.parsed.get("steps")
    if not step_truth:
        return row
    if (verdicts is None and said is not None) or len(verdicts or step_truth) != len(step_truth):
        return row  # a format without steps, or with other ones (``aligned`` counts them)
    if verdicts is None:
        verdicts = [not ok for ok in step_truth]  # unparsed: wrong about every step
    for ok, verdict in zip(step_truth, verdicts, strict=True):
        row[(_STEP_TP if verdict else _STEP_FN) if ok else (_STEP_FP if verdict else _STEP_TN)] += 1.0
    first_true, first_said = _first_wrong(step_truth), _first_wrong(verdicts)
    column = _CLEAN_ALL if first_true is None else _FIRST_ALL
    row[column] = 1.0
    row[column - 1] = float(first_true == first_said and said is not None)
    if not truth and said is False and first_true is not None:
        row[_RIGHT_VERDICT], row[_WRONG_REASON] = 1.0, float(first_true != first_said)
    return row


def _first_wrong(steps: Sequence[bool]) -> int | None:
    return next((i for i, ok in enumerate(steps) if not ok), None)


def _balanced(c: Counts, tp: int, fn: int, tn: int, fp: int) -> Counts:
    return (_ratio(c[..., tp], c[..., tp] + c[..., fn]) + _ratio(c[..., tn], c[..., tn] + c[..., fp])) / 2


def _f1(hits: Counts, false_alarms: Counts, misses: Counts) -> Counts:
    """F1 of finding what is wrong: hits are true negatives of the verdict CORRECT."""
    return _ratio(2 * hits, 2 * hits + false_alarms + misses)


def _processbench(c: Counts) -> Counts:
    """Harmonic mean of the accuracy on wrong solutions (first wrong step found) and on right ones (no step blamed)."""
    wrong, right = _ratio(c[..., _FIRST_HIT], c[..., _FIRST_ALL]), _ratio(c[..., _CLEAN_HIT], c[..., _CLEAN_ALL])
    return np.where(wrong + right == 0, 0.0, _ratio(2 * wrong * right, wrong + right))


def _calibration(c: Counts) -> Counts:
    """Expected calibration error (Guo et al. 2017) over ten bins of the probability of CORRECT."""
    bins = c[..., _BINS:].reshape(*c.shape[:-1], BINS, 3)
    return _ratio(np.abs(bins[..., 1] - bins[..., 2]).sum(axis=-1), bins[..., 0].sum(axis=-1))


def verdict_rates(judge: str, traces: Sequence[Trace]) -> dict[str, float]:
    """The verifier's figures of one training step, without intervals; undefined ones are left out."""
    if not traces:
        return {}
    total = np.sum([_review_counts(t) for t in traces], axis=0)
    rates = {
        "balanced_accuracy": _balanced(total, _TP, _FN, _TN, _FP),
        "true_positive_rate": _ratio(total[_TP], total[_TP] + total[_FN]),
        "true_negative_rate": _ratio(total[_TN], total[_TN] + total[_FP]),
        "step_balanced_accuracy": _balanced(total, _STEP_TP, _STEP_FN, _STEP_TN, _STEP_FP),
        "predicted_positive": _ratio(total[_SAID], total[_PARSED]),
        "base_rate": _ratio(total[_CORRECT], total[_ALL]),
        "right_verdict_wrong_step": _ratio(total[_WRONG_REASON], total[_RIGHT_VERDICT]),
    }
    return {f"{judge}/{name}": float(value) for name, value in rates.items() if not math.isnan(float(value))}


def _present(named: Mapping[str, Estimate | None]) -> dict[str, Estimate]:
    return {name: value for name, value in named.items() if value is not None}
