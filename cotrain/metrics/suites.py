"""Scores of benchmark suites from per-sample rows, as papers give them. A file of rows gives its scores without any
model.

::

    solver        greedy     the greedy answer is right
                  avg@k      mean over k samples               pass@k, maj@k, best@k, weighted@k: as in ``answers``
                  tournament@k     the sample that wins the comparisons of pairs (``rollout/tournament.py``) is right
    programs      greedy, best@k, tournament@k as above, and pass@j for j = 1, 10, 100 and k
    processbench  error_accuracy, correct_accuracy, f1 by split: as in ``processes``; ``average/f1`` is the mean over
    splits
    prmbench      f1, negative_f1, prmscore by kind of error and overall, where there are both kinds of steps
                  step_accuracy     share of the steps judged as they are

What could not be read, graded or asked counts as wrong, and is counted too as ``answered``, ``graded`` and ``parsed``.
Ties go to the first sample. Intervals: ``clusters``, by problem; of solvers by template (``templates``), where a set
has one text many times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.metrics.clusters import Mean, Share, Statistic, defined_figures, make_figure
from cotrain.metrics.heldout import sum_counts
from cotrain.metrics.templates import question_templates
from cotrain.metrics.verdicts import (
    best_is_right,
    confusion_counts,
    correct_accuracy,
    error_accuracy,
    first_error_counts,
    pass_at_k,
    prmscore,
    processbench_f1,
    step_f1s,
    vote_is_right,
)

SampleRow = Mapping[str, Any]
GREEDY_SAMPLE = -1  # as ``sample``: the greedy answer
ANSWERED = Share("answered", "rows")
GRADED = Share("graded", "rows")
PARSED = Share("parsed", "all")


def solver_scores(rows: Sequence[SampleRow], k: int, *, key: Callable[[str], str]) -> dict[str, Estimate]:
    """Figures of a solver, from rows with ``id``, ``sample`` (0 … k − 1, or ``GREEDY_SAMPLE``), ``answer`` (None: none
    was found), ``correct`` (None: not graded), ``score`` (of the verifier, in [0, 1]; None: there is none) and, where
    pairs were compared, ``rating`` (None: it was not among them).

    ``key``: what an answer is counted under in a vote. ``best@k`` and ``weighted@k`` are there where any row has a
    score. Raises ValueError where a problem has not k samples.
    """
    counts: dict[int, dict[str, float]] = {}
    for i, problem_rows in enumerate(_by_problem(rows)):
        sampled = _samples_of(problem_rows, k)
        right = [bool(row["correct"]) for row in sampled]
        scores = [row["score"] or 0.0 for row in sampled]
        votes = []
        for row in sampled:
            votes.append(None if row["answer"] is None else key(row["answer"]))
        counts[i] = _common_counts(problem_rows) | {
            "right": float(sum(right)),
            "samples": float(k),
            "any": pass_at_k(k, sum(right), k) if k else 0.0,
            "vote": float(vote_is_right(votes, right)),
            "best": float(best_is_right(scores, right)),
            "weighted": float(vote_is_right(votes, right, scores)),
            "won": _winner_is_right(sampled, right),
            "asked": float(k > 0),
        }

    named = {"greedy": Share("greedy_right", "greedy")}
    if k:
        named |= {
            f"avg@{k}": Share("right", "samples"),
            f"pass@{k}": Share("any", "asked"),
            f"maj@{k}": Share("vote", "asked"),
        }

    if any(row["score"] is not None for row in rows):
        named |= {f"best@{k}": Share("best", "asked"), f"weighted@{k}": Share("weighted", "asked")}
    if any("rating" in row for row in rows):
        named[f"tournament@{k}"] = Share("won", "asked")
    return _make_figures(_sum_templates(counts, rows), {**named, "answered": ANSWERED, "graded": GRADED}, len(counts))


def _sum_templates(
    counts: Mapping[int, Mapping[str, float]], rows: Sequence[SampleRow]
) -> dict[int, Mapping[str, float]]:
    """The counts of problems that share a template, summed: one observation."""
    questions = list({row["id"]: row.get("problem", row["id"]) for row in rows}.values())
    by_template: dict[str, list[Mapping[str, float]]] = {}
    for template, mine in zip(question_templates(questions), counts.values(), strict=True):
        by_template.setdefault(template, []).append(mine)
    return {i: sum_counts(mine) for i, mine in enumerate(by_template.values())}


def program_scores(rows: Sequence[SampleRow], k: int) -> dict[str, Estimate]:
    """Figures of a solver of programming problems, from rows as of ``solver_scores``. Programs are not voted on."""
    of = sorted({1, *(j for j in (10, 100) if j < k), k}) if k else []
    counts: dict[int, dict[str, float]] = {}
    for i, problem_rows in enumerate(_by_problem(rows)):
        sampled = _samples_of(problem_rows, k)
        right = [bool(row["correct"]) for row in sampled]
        best = best_is_right([row["score"] or 0.0 for row in sampled], right)
        passed = {f"pass{j}": pass_at_k(k, sum(right), j) for j in of}
        chosen = {"best": float(best), "won": _winner_is_right(sampled, right), "asked": float(k > 0)}
        counts[i] = _common_counts(problem_rows) | {**chosen, **passed}

    named = {"greedy": Share("greedy_right", "greedy")} | {f"pass@{j}": Share(f"pass{j}", "asked") for j in of}
    if any(row["score"] is not None for row in rows):
        named[f"best@{k}"] = Share("best", "asked")
    if any("rating" in row for row in rows):
        named[f"tournament@{k}"] = Share("won", "asked")
    return _make_figures(counts, {**named, "answered": ANSWERED, "graded": GRADED}, len(counts))


def _winner_is_right(rows: Sequence[SampleRow], right: Sequence[bool]) -> float:
    """1 if the sample with the highest rating is right, else 0. Samples that were not compared come last."""
    ratings = []
    for row in rows:
        rating = row.get("rating")
        ratings.append(-1.0 if rating is None else rating)
    return float(best_is_right(ratings, right))


def _common_counts(rows: Sequence[SampleRow]) -> dict[str, float]:
    """The counts that every solver's problem has."""
    greedy = [bool(row["correct"]) for row in rows if row["sample"] == GREEDY_SAMPLE]
    return {
        "greedy_right": float(sum(greedy)),
        "greedy": float(len(greedy)),
        "answered": float(sum(row["answer"] is not None for row in rows)),
        "graded": float(sum(row["correct"] is not None for row in rows)),
        "rows": float(len(rows)),
    }


def _by_problem(rows: Sequence[SampleRow]) -> list[list[SampleRow]]:
    problems: dict[str, list[SampleRow]] = {}
    for row in rows:
        problems.setdefault(row["id"], []).append(row)
    return list(problems.values())


def _samples_of(rows: Sequence[SampleRow], k: int) -> list[SampleRow]:
    """The samples of a problem, in order."""
    sampled = sorted((row for row in rows if row["sample"] != GREEDY_SAMPLE), key=lambda row: row["sample"])
    if len(sampled) != k:
        raise ValueError(f"problem {rows[0]['id']} has {len(sampled)} samples, expected {k}")
    return sampled


def processbench_scores(rows: Sequence[SampleRow]) -> dict[str, Estimate]:
    """Figures of a verifier, from rows with ``split``, ``problem``, ``label`` and ``prediction``: the 0-based index of
    the first wrong step, −1 for none; a prediction of None is no judgement."""
    splits = dict.fromkeys(row["split"] for row in rows)
    at = {split: f"{i}/" for i, split in enumerate(splits)}
    nothing = {name: 0.0 for mark in at.values() for name in first_error_counts(None, False, mark)}
    counts: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        wrong = row["label"] if row["label"] >= 0 else None
        row_counts = first_error_counts(wrong, row["prediction"] == row["label"], at[row["split"]])
        row_counts |= {"parsed": float(row["prediction"] is not None), "all": 1.0}
        place = row["split"], row["problem"]
        counts[place] = sum_counts([counts.get(place, nothing), row_counts])

    named: dict[str, Statistic] = {}
    for split, mark in at.items():
        named[f"{split}/error_accuracy"] = error_accuracy(mark)
        named[f"{split}/correct_accuracy"] = correct_accuracy(mark)
        named[f"{split}/f1"] = processbench_f1(mark)

    named["average/f1"] = Mean([processbench_f1(mark) for mark in at.values()])
    named["parsed"] = PARSED
    total = sum_counts(counts.values())
    parts: dict[str, float] = {}
    for name, statistic in named.items():
        if name not in ("parsed", "average/f1"):
            problems = [total[count] for count in statistic.names if count.endswith(("/errors", "/clean"))]
            parts[name] = sum(problems)
    return _make_figures(dict(enumerate(counts.values())), named, len(rows), parts)


def prmbench_scores(rows: Sequence[SampleRow]) -> dict[str, Estimate]:
    """Figures of a verifier, from rows with ``split``, ``problem``, ``wrong`` (0-based indices of the wrong steps),
    ``count`` (of all steps) and ``steps`` (a verdict for each; None is no judgement, and as if each verdict were the
    opposite of true).

    A kind of error whose solutions hold no wrong step has ``step_accuracy`` alone.
    """
    splits = dict.fromkeys(row["split"] for row in rows)
    at = {split: f"{i}/" for i, split in enumerate([*splits, "overall"])}
    nothing = {name: 0.0 for mark in at.values() for name in confusion_counts([], mark)}
    counts: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        verdicts = [None] * row["count"] if row["steps"] is None else [bool(verdict) for verdict in row["steps"]]
        pairs = [(i not in row["wrong"], verdicts[i]) for i in range(row["count"])]
        row_counts = confusion_counts(pairs, at[row["split"]]) | confusion_counts(pairs, at["overall"])
        row_counts |= {"parsed": float(row["steps"] is not None), "all": 1.0}
        place = row["split"], row["problem"]
        counts[place] = sum_counts([counts.get(place, nothing), row_counts])

    total = sum_counts(counts.values())
    named = dict[str, Statistic]()
    parts = dict[str, float]()
    for split, mark in at.items():
        tp, fn, tn, fp = (f"{mark}{cell}" for cell in ("tp", "fn", "tn", "fp"))
        if total[tn] + total[fp]:
            named[f"{split}/f1"], named[f"{split}/negative_f1"] = step_f1s(mark)
            named[f"{split}/prmscore"] = prmscore(mark)
        named[f"{split}/step_accuracy"] = Share(f"{tp} {tn}", f"{tp} {fn} {tn} {fp}")
        for name in ("f1", "negative_f1", "prmscore", "step_accuracy"):
            parts[f"{split}/{name}"] = sum(split in (row["split"], "overall") for row in rows)

    named["parsed"] = PARSED
    return _make_figures(dict(enumerate(counts.values())), named, len(rows), parts)


def _make_figures(
    counts: Mapping[int, Mapping[str, float]],
    named: Mapping[str, Statistic],
    n: int,
    parts: Mapping[str, float] | None = None,
) -> dict[str, Estimate]:
    """``n``: rows that a figure is about, where ``parts`` (by name) does not say it."""
    parts = parts or {}
    return defined_figures(
        {name: make_figure(counts, statistic, parts.get(name, n)) for name, statistic in named.items()}
    )
