"""Metrics of a judge's verdicts against the truth: accuracies, rates of errors, and the gap to it.

Right is the positive class: a false positive (fp) is a wrong solution called right.

::

                    said CORRECT   said INCORRECT, or nothing readable
    right           tp             fn
    wrong           fp             tn                                     (nothing readable: fp)

    true positive rate  tp/(tp+fn)      true negative rate  tn/(tn+fp)      balanced accuracy  their mean
    of the class "wrong":  precision  tn/(tn+fn)    recall  tn/(tn+fp)    F1  2tn/(2tn+fn+fp)
    Matthews correlation (MCC)  (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)), in [−1, 1]

The MCC is undefined where one class, or one verdict, is missing; that is counted (``mcc_undefined``), and never a 0.

A judgement that cannot be read is a wrong one of either class, as in ProcessBench (arXiv 2412.06559): who says nothing
has judged nothing. Counts of any kind have a ``prefix``, so that answers and steps can be counted in one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cotrain.metrics.clusters import Array, Bounded, Mean, Share, Sums, ratio

BINS = 10  # of the calibration error


def confusion_counts(pairs: Sequence[tuple[bool, bool | None]], prefix: str = "") -> dict[str, float]:
    """Counts of (is it right, what was said of it); None: nothing readable."""
    counts = {f"{prefix}{cell}": 0.0 for cell in ("tp", "fn", "tn", "fp")}
    for right, said in pairs:
        if right:
            cell = "tp" if said is True else "fn"
        else:
            cell = "tn" if said is False else "fp"
        counts[f"{prefix}{cell}"] += 1.0
    return counts


def rate_statistics(prefix: str = "") -> dict[str, Share | Mean]:
    """The statistics of such counts, by name."""
    tp, fn, tn, fp = (f"{prefix}{cell}" for cell in ("tp", "fn", "tn", "fp"))
    accepted, rejected = Share(tp, f"{tp} {fn}"), Share(tn, f"{tn} {fp}")
    return {
        f"{prefix}balanced_accuracy": Mean((accepted, rejected)),
        f"{prefix}true_positive_rate": accepted,
        f"{prefix}true_negative_rate": rejected,
        f"{prefix}precision": Share(tn, f"{tn} {fn}"),
        f"{prefix}recall": rejected,
        f"{prefix}f1": Share(f"{tn} {tn}", f"{tn} {tn} {fn} {fp}"),
    }


def matthews_correlation(sums: Sums) -> Array:
    """Matthews correlation of verdict and truth (Matthews 1975), NaN where it is undefined; sums of any one shape."""
    tp, fn, tn, fp = (sums[cell] for cell in ("tp", "fn", "tn", "fp"))
    found = ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))
    return np.clip(found, -1.0, 1.0)  # of rounding


def mcc_undefined(sums: Sums) -> Array:
    """1 where the Matthews correlation of some verdicts is undefined, else 0; NaN where there are none."""
    seen = np.sum([sums[cell] for cell in ("tp", "fn", "tn", "fp")], axis=0)
    return np.where(seen > 0, np.isnan(matthews_correlation(sums)), np.nan)


CELLS = frozenset(("tp", "fn", "tn", "fp"))
MCC, MCC_UNDEFINED = Bounded(matthews_correlation, -1.0, 1.0, CELLS), Bounded(mcc_undefined, 0.0, 1.0, CELLS)


def calibration_counts(pairs: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Counts of (probability of CORRECT, is it right) by bin: how many, their probabilities, how many are right."""
    counts = {f"bin{i}_{what}": 0.0 for i in range(BINS) for what in ("all", "said", "right")}
    for score, right in pairs:
        i = min(int(score * BINS), BINS - 1)
        counts[f"bin{i}_all"] += 1.0
        counts[f"bin{i}_said"] += score
        counts[f"bin{i}_right"] += float(right)
    return counts


def calibration_error(sums: Sums) -> Array:
    """Expected calibration error (Guo et al. 2017): Σ over bins of |Σ probabilities − right ones|, over all."""
    wrong = [np.abs(sums[f"bin{i}_said"] - sums[f"bin{i}_right"]) for i in range(BINS)]
    return ratio(np.sum(wrong, axis=0), np.sum([sums[f"bin{i}_all"] for i in range(BINS)], axis=0))


def belief_gap(sums: Sums) -> Array:
    """The gap: verdicts CORRECT minus solutions that are right, over readable reviews; positive where a judge is too
    kind."""
    return ratio(sums["said"] - sums["believable"], sums["parsed"])


def unanimous_share(verdicts: Sequence[Sequence[bool]]) -> float | None:
    """Of the solutions with two or more verdicts the share whose verdicts all agree; None where there is none."""
    several = [len(set(said)) == 1 for said in verdicts if len(said) > 1]
    return sum(several) / len(several) if several else None
