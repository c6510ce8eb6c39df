"""Counts over a step's rollouts: right and wrong verdicts of every verifier, and how judges, the grader and the vote
agree.

::

    judges    role → sums of the counts of its reviews, see ``_review_counts``
    errors    role → kind of the first error → reviews that called the solution right, that called it wrong, unread
    pairs     "a|b" → solutions that both call right, only a, only b, neither
    best      role → n → groups, then sums of the verifier's score of the best of n, of the chance that this one is
              right, and of the chance that any of the n is
    apart     role → "few-many" → groups of at least ``many``, then sums: right of few, right of many, gain, gain²
    rates     bins of the share of right solutions in a group

"Right" is the positive class: a false positive is wrong and called right. *rule* is the truth by the grader. *vote*
calls those solutions right that give the group's most frequent answer, and judges nothing where two answers are equally
frequent. *reviews* is what most readable reviews say; *one review* and *another* are the first two of a solution. *Few*
and *many* are two sizes of best of n, and the gain is that of many over few. The best of n is an expectation over the
subsets of a group, in closed form; a tie is broken by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from math import comb
from typing import Any

from cotrain.core.notes import CORRECT, FINAL, FIRST_WRONG, SCORE, STEP_OK, STEP_REASONS, VERDICTS

COUNTS = ("tp", "fn", "tn", "fp", "unread", "step_tp", "step_fn", "step_tn", "step_fp", "first_found", "first_missed")
BINS = 10  # bins of the probability that a review gives
SIZES = (1, 2, 4, 8, 16, 32, 64)  # n of best-of-n
RATE_BINS = 9  # bins of the share of right solutions in a group: eight below 1, and 1 itself
MOST_KINDS = 40  # most kinds of errors that are counted for one judge; the rest are "others"
LONGEST_REASON = 60  # characters
NO_STEP = "no step is wrong"
Json = Mapping[str, Any]
Key = tuple[str, ...]  # path in the table above, such as ("errors", role, kind)


class RolloutCounts:
    """The counts of one step."""

    def __init__(self) -> None:
        self.sums: dict[Key, list[float]] = {}

    def add_values(self, key: Key, values: Sequence[float]) -> None:
        """Add to the sums of ``key``, which are 0 at first."""
        sums = self.sums.setdefault(key, [0.0] * len(values))
        for place, value in enumerate(values):
            sums[place] += value

    def count_review(self, solution: Json, review: Json, kind: str | None) -> None:
        """Count one review. Nothing is counted if the truth of the solution is unknown. ``kind``: the kind of the first
        error in the solution, None if no step is wrong."""
        right = bool_or_none(CORRECT.name, solution["metadata"])
        if right is None:
            return
        role = str(review["role"])
        final = bool_or_none(FINAL.name, review["findings"])
        self.add_values(("judges", role), _review_counts(solution, review, right, final))
        if not right:
            self._count_error(role, kind or NO_STEP, final)

    def _count_error(self, role: str, kind: str, final: bool | None) -> None:
        """A review's verdict on a wrong solution, by the kind of its first error."""
        key: Key = ("errors", role, kind)
        kinds_known = sum(other[:2] == ("errors", role) for other in self.sums)
        if kinds_known >= MOST_KINDS and key not in self.sums:
            key = ("errors", role, "others")
        self.add_values(key, [final is True, final is False, final is None])

    def count_pair(self, one: str, other: str, a: bool | None, b: bool | None) -> None:
        """Count one solution on which two judges said ``a`` and ``b``; a solution on which one says nothing (None) is
        left out."""
        if a is None or b is None:
            return
        both = a and b
        only_a = a and not b
        only_b = b and not a
        neither = not a and not b
        self.add_values(("pairs", f"{one}|{other}"), [both, only_a, only_b, neither])

    def count_group(self, role: str, scored: Sequence[tuple[float | None, bool | None]]) -> None:
        """Count one group. ``scored``: (the verifier's score, whether it is right) of each solution; None: unknown."""
        graded = [right for _, right in scored if right is not None]
        if len(graded) > 1:
            bin_of_rate = int((RATE_BINS - 1) * sum(graded) / len(graded))
            one_hot = [float(index == bin_of_rate) for index in range(RATE_BINS)]
            self.add_values(("rates", role), one_hot)

        readable = [(score, right) for score, right in scored if score is not None and right is not None]
        if len(readable) < 2:
            return
        best = {n: best_of_n(readable, n) for n in SIZES if n <= len(readable)}
        for n, best_values in best.items():
            self.add_values(("best", role, str(n)), [1.0, *best_values])
        for few, many in combinations(best, 2):
            _, right_of_few, _ = best[few]
            _, right_of_many, _ = best[many]
            gain = right_of_many - right_of_few
            self.add_values(("apart", role, f"{few}-{many}"), [1.0, right_of_few, right_of_many, gain, gain**2])


def _review_counts(solution: Json, review: Json, right: bool, final: bool | None) -> list[float]:
    """The counts of one review: ``COUNTS``, then three for each bin of the probability that it gives: reviews in the
    bin, their probabilities, and those of right solutions."""
    counts = dict.fromkeys(COUNTS, 0.0)
    counts["unread" if final is None else confusion_cell(right, final)] += 1
    for ok, verdict in step_verdict_pairs(solution, review):
        counts[f"step_{confusion_cell(ok, verdict)}"] += 1
    found_first = finds_first_error(solution, review)
    if found_first is not None:
        counts["first_found" if found_first else "first_missed"] += 1

    calibration = [[0.0, 0.0, 0.0] for _ in range(BINS)]
    probability = review_probability(review)
    if probability is not None:
        bin_of_probability = min(BINS - 1, int(probability * BINS))
        calibration[bin_of_probability] = [1, probability, right]
    return [*counts.values(), *chain.from_iterable(calibration)]


def sum_rollout_counts(parts: Sequence[RolloutCounts]) -> dict[str, Any]:
    """The sums over all steps as one JSON object, without ``judges``, whose counts are kept step by step."""
    total = RolloutCounts()
    for counts in parts:
        for key, values in counts.sums.items():
            if key[0] != "judges":
                total.add_values(key, values)
    result: dict[str, Any] = {"errors": {}, "pairs": {}, "best": {}, "apart": {}, "rates": {}}
    for key, values in sorted(total.sums.items()):
        if len(key) == 2:  # pairs, rates
            kind, name = key
            result[kind][name] = values
        else:
            kind, role, part = key
            result[kind].setdefault(role, {})[part] = values
    return result


def best_of_n(scored: Sequence[tuple[float, bool]], n: int) -> tuple[float, float, float]:
    """Of ``n`` solutions drawn from a group: the expected score of the best one, the chance that this one is right, and
    the chance that any of them is."""
    order = sorted(scored, key=lambda solution: -solution[0])  # the best score first
    size = len(order)
    subsets = comb(size, n)
    mean_score = 0.0
    right_chance = 0.0
    start = 0
    while start < size:
        best_score, _ = order[start]
        tied = [right for score, right in order if score == best_score]
        n_no_better = size - start  # ``tied``, and those that score less
        # The chance that one of ``tied`` is the best of n: the subsets without a better one, minus those without any of
        # ``tied``.
        chance = (comb(n_no_better, n) - comb(n_no_better - len(tied), n)) / subsets
        mean_score += chance * best_score
        right_chance += chance * sum(tied) / len(tied)
        start += len(tied)
    wrong = sum(not right for _, right in order)
    return mean_score, right_chance, 1 - comb(wrong, n) / subsets


def vote_agreement(answers: Sequence[str | None]) -> list[bool | None]:
    """Whether each answer agrees with the most frequent one. None for no answer, and for all where two are as
    frequent."""
    counts = Counter(answer for answer in answers if answer is not None)
    most = max(counts.values(), default=0)
    most_frequent = [answer for answer, count in counts.items() if count == most]
    if len(answers) < 2 or len(most_frequent) != 1:
        return [None] * len(answers)
    agreements: list[bool | None] = []
    for answer in answers:
        agreements.append(None if answer is None else answer == most_frequent[0])
    return agreements


def step_verdict_pairs(solution: Json, review: Json) -> list[tuple[bool, bool]]:
    """(truth, verdict) of each step that both know; [] where they count differently."""
    truths, verdicts = _aligned_steps(solution, review)
    pairs = zip(truths, verdicts, strict=True)
    return [(ok, verdict) for ok, verdict in pairs if isinstance(ok, bool) and isinstance(verdict, bool)]


def _aligned_steps(solution: Json, review: Json) -> tuple[list[Any], list[Any]]:
    """The truth of each step of a solution and the review's verdict on it; two empty lists if these are not known, or
    differ in number."""
    truths = solution["metadata"].get(STEP_OK.name)
    verdicts = review["findings"].get(VERDICTS.name)
    if not isinstance(truths, list) or not isinstance(verdicts, list) or len(truths) != len(verdicts):
        return [], []
    return truths, verdicts


def finds_first_error(solution: Json, review: Json) -> bool | None:
    """Whether the first step that a review calls wrong is the first wrong one. None where no step is
    wrong, and where the verdicts cannot be aligned with the steps."""
    truths, verdicts = _aligned_steps(solution, review)
    if False not in truths:
        return None
    return False in verdicts and verdicts.index(False) == truths.index(False)


def first_error_reason(solution: Json) -> str | None:
    """The reason why the first wrong step is wrong; "a wrong step" if it is unknown; None without a wrong step."""
    reasons = solution["metadata"].get(STEP_REASONS.name)
    first = solution["metadata"].get(FIRST_WRONG.name)
    truths = solution["metadata"].get(STEP_OK.name)
    if first is None and isinstance(truths, list) and False in truths:
        first = truths.index(False)
    if not isinstance(first, int) or isinstance(first, bool):
        return None
    has_reason = isinstance(reasons, list) and 0 <= first < len(reasons)
    reason = reasons[first] if has_reason else None
    return str(reason)[:LONGEST_REASON] if reason else "a wrong step"


def review_probability(review: Json) -> float | None:
    """The probability of a right solution that a review gives; None where it gives none."""
    score = review["findings"].get(SCORE.name)
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return float(score) if is_number and 0.0 <= score <= 1.0 else None


def bool_or_none(name: str, values: Json) -> bool | None:
    """The value of this name, if it is a bool; files may hold anything."""
    value = values.get(name)
    return value if isinstance(value, bool) else None


def confusion_cell(right: bool, said: bool) -> str:
    if right:
        return "tp" if said else "fn"
    return "fp" if said else "tn"
