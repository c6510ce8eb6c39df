"""Metrics of step verdicts: does a judge find the step at which a solution goes wrong?

::

    ProcessBench (arXiv 2412.06559)   of solutions with a wrong step: the first one was found      error accuracy
                                      of the others: no step was blamed                            correct accuracy
                                      their harmonic mean                                          F1
    PRMBench (arXiv 2501.03124)       F1 of the steps that are right, of those that are wrong; their mean is the
                                      PRMScore

Steps are counted from 0; None stands for no wrong step.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotrain.metrics.clusters import Harmonic, Mean, Share


def first_wrong(steps: Sequence[bool]) -> int | None:
    """The first step that is, or is called, wrong."""
    return next((i for i, ok in enumerate(steps) if not ok), None)


def first_error_counts(truth: int | None, hit: bool, prefix: str = "") -> dict[str, float]:
    """Counts of one solution whose first wrong step is ``truth``: was that found, or no step blamed?"""
    counts = {f"{prefix}{name}": 0.0 for name in ("error_hit", "errors", "clean_hit", "clean")}
    all_of, hits = ("clean", "clean_hit") if truth is None else ("errors", "error_hit")
    counts[f"{prefix}{all_of}"], counts[f"{prefix}{hits}"] = 1.0, float(hit)
    return counts


def error_accuracy(prefix: str = "") -> Share:
    return Share(f"{prefix}error_hit", f"{prefix}errors")


def correct_accuracy(prefix: str = "") -> Share:
    return Share(f"{prefix}clean_hit", f"{prefix}clean")


def processbench_f1(prefix: str = "") -> Harmonic:
    return Harmonic((error_accuracy(prefix), correct_accuracy(prefix)))


def step_f1s(prefix: str = "") -> tuple[Share, Share]:
    """F1 of the right steps and of the wrong ones, from counts as of ``verdicts.confusion_counts``: 2 hits / (2 hits +
    misses + false alarms)."""
    tp, fn, tn, fp = (f"{prefix}{cell}" for cell in ("tp", "fn", "tn", "fp"))
    return Share(f"{tp} {tp}", f"{tp} {tp} {fn} {fp}"), Share(f"{tn} {tn}", f"{tn} {tn} {fp} {fn}")


def prmscore(prefix: str = "") -> Mean:
    return Mean(step_f1s(prefix))
