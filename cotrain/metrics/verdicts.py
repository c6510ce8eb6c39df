"""Metrics of answers, verdicts and step verdicts, as functions of counts: accuracies, pass@k and votes, a verifier's
errors, ProcessBench's F1.

Right is the positive class: a false positive (fp) is a wrong solution called right. Figures that begin with ``error_``
take wrong as the positive class.

::

                    said CORRECT   said INCORRECT, or nothing readable
    right           tp             fn
    wrong           fp             tn                                     (nothing readable: fp)

    true positive rate  tp/(tp+fn)      true negative rate  tn/(tn+fp)      balanced accuracy  their mean
    error_precision  tn/(tn+fn)     error_recall  tn/(tn+fp)        error_f1  2tn/(2tn+fn+fp)
    Matthews correlation (MCC)  (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)), in [−1, 1]

The MCC is undefined where one class, or one verdict, is missing; that is counted (``mcc_undefined``), and never a 0.

A judgement that cannot be read is a wrong one of either class, as in ProcessBench (arXiv 2412.06559): who says nothing
has judged nothing. Counts of any kind have a ``prefix``, so that answers and steps can be counted in one row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from cotrain.core.late import np
from cotrain.metrics.clusters import Array, Bounded, Harmonic, Mean, Share, Sums, ratio

BINS = 10  # bins of the calibration error


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
    accepted = Share(tp, f"{tp} {fn}")
    rejected = Share(tn, f"{tn} {fp}")
    return {
        f"{prefix}balanced_accuracy": Mean((accepted, rejected)),
        f"{prefix}true_positive_rate": accepted,
        f"{prefix}true_negative_rate": rejected,
        f"{prefix}error_precision": Share(tn, f"{tn} {fn}"),
        f"{prefix}error_recall": rejected,
        f"{prefix}error_f1": Share(f"{tn} {tn}", f"{tn} {tn} {fn} {fp}"),
    }


def matthews_correlation(sums: Sums) -> Array:
    """Matthews correlation of verdict and truth (Matthews 1975), NaN where it is undefined; sums of any one shape."""
    tp, fn, tn, fp = (sums[cell] for cell in ("tp", "fn", "tn", "fp"))
    correlation = ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))
    return np.clip(correlation, -1.0, 1.0)  # rounding may leave the range


def mcc_undefined(sums: Sums) -> Array:
    """1 where the Matthews correlation of some verdicts is undefined, else 0; NaN where there are none."""
    seen = np.sum([sums[cell] for cell in ("tp", "fn", "tn", "fp")], axis=0)
    return np.where(seen > 0, np.isnan(matthews_correlation(sums)), np.nan)


CELLS = frozenset(("tp", "fn", "tn", "fp"))
MCC = Bounded(matthews_correlation, -1.0, 1.0, CELLS)
MCC_UNDEFINED = Bounded(mcc_undefined, 0.0, 1.0, CELLS)


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
    """The gap: verdicts CORRECT minus solutions that are right, over readable reviews; positive where a verifier is too
    kind."""
    return ratio(sums["said"] - sums["believable"], sums["parsed"])


def unanimous_share(verdicts: Sequence[Sequence[bool]]) -> float | None:
    """The share of solutions with two or more verdicts whose verdicts all agree; None without any."""
    several = [len(set(said)) == 1 for said in verdicts if len(said) > 1]
    return sum(several) / len(several) if several else None


# -- The family of answers: how often a solver is right, alone, among k, by vote, and when a verifier chooses.


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
    """Whether the elected answer is right."""
    winner = elected_index(answers, weights)
    return winner is not None and right[winner]


def best_is_right(scores: Sequence[float], right: Sequence[bool]) -> bool:
    """Whether the sample with the highest score is right. False without samples."""
    best = max(range(len(scores)), key=lambda i: (scores[i], -i), default=None)
    return best is not None and right[best]


def answer_agreement(answers: Sequence[str]) -> tuple[int, float]:
    """The number of different answers, and the share of all answers that is the most frequent one."""
    votes = Counter(answers)
    return len(votes), max(votes.values()) / len(answers)


# -- The family of processes: does a verifier find the step at which a solution goes wrong?


def first_wrong(steps: Sequence[bool]) -> int | None:
    """The first step that is, or is called, wrong."""
    return next((i for i, ok in enumerate(steps) if not ok), None)


def first_error_counts(truth: int | None, hit: bool, prefix: str = "") -> dict[str, float]:
    """Counts of one solution whose first wrong step is ``truth``: was that found, or no step blamed?"""
    counts = {f"{prefix}{name}": 0.0 for name in ("error_hit", "errors", "clean_hit", "clean")}
    all_of, hits = ("clean", "clean_hit") if truth is None else ("errors", "error_hit")
    counts[f"{prefix}{all_of}"] = 1.0
    counts[f"{prefix}{hits}"] = float(hit)
    return counts


def error_accuracy(prefix: str = "") -> Share:
    return Share(f"{prefix}error_hit", f"{prefix}errors")


def correct_accuracy(prefix: str = "") -> Share:
    return Share(f"{prefix}clean_hit", f"{prefix}clean")


def processbench_f1(prefix: str = "") -> Harmonic:
    return Harmonic((error_accuracy(prefix), correct_accuracy(prefix)))


def step_f1s(prefix: str = "") -> tuple[Share, Share]:
    """F1 of the right steps and of the wrong ones, from counts as of ``verdicts.confusion``: 2 hits / (2 hits + misses
    + false alarms)."""
    tp, fn, tn, fp = (f"{prefix}{cell}" for cell in ("tp", "fn", "tn", "fp"))
    return Share(f"{tp} {tp}", f"{tp} {tp} {fn} {fp}"), Share(f"{tn} {tn}", f"{tn} {tn} {fp} {fn}")


def prmscore(prefix: str = "") -> Mean:
    return Mean(step_f1s(prefix))
