"""Counts over a step's rollouts: right and wrong verdicts of every verifier, and how judges, the grader and the vote
agree.

::

    judges    role → tp, fn, tn, fp, unread; the same of steps; the first wrong step found or not; calibration in ten
              bins
    errors    role → kind of the first error → reviews that called the solution right, that called it wrong, unread
    pairs     "a|b" → both right, only a, only b, both wrong: who calls what right
    best      role → n → groups, then what the verifier says of the best of n, how often it is right, how often any is
    apart     role → "few-many" → groups of at least ``many``, how often the choice among few is right and how often
              that among many, the sum of the differences and that of their squares
    rates     nine bins of the share of right solutions in a group

"Right" is the positive class: a false positive is wrong and called right. *rule* is the truth by the grader; *vote*
calls those solutions right that give the group's most frequent answer, and nothing where two are; *reviews* is what
most readable reviews say, *one review* and *another* are the first two of a solution. The best of n is an expectation
over the subsets of a group, in closed form; a tie is broken by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Any

from cotrain.core.notes import CORRECT, FINAL, FIRST_WRONG, SCORE, STEP_OK, STEP_REASONS, VERDICTS

COUNTS = ("tp", "fn", "tn", "fp", "unread", "step_tp", "step_fn", "step_tn", "step_fp", "first_found", "first_missed")
BINS = 10
SIZES = (1, 2, 4, 8, 16, 32, 64)  # n of best-of-n
RATES = 8  # bins of the solve rate below 1
MOST_KINDS = 40  # most kinds of errors, by judge
NO_STEP = "no step is wrong"
Json = Mapping[str, Any]
Key = tuple[str, ...]


class RolloutCounts:
    """Sums of one step."""

    def __init__(self) -> None:
        self.sums: dict[Key, list[float]] = {}

    def add_values(self, key: Key, values: Sequence[float]) -> None:
        sums = self.sums.setdefault(key, [0.0] * len(values))
        for place, value in enumerate(values):
            sums[place] += value

    def count_review(self, speech: Json, review: Json, kind: str | None) -> None:
        """One review of a solution whose truth is known; ``kind``: of the solution's first error."""
        right = bool_or_none(CORRECT.name, speech["metadata"])
        final = bool_or_none(FINAL.name, review["findings"])
        if right is None:
            return
        role = str(review["role"])
        review_counts = [0.0] * (len(COUNTS) + 3 * BINS)
        review_counts[COUNTS.index("unread" if final is None else confusion_cell(right, final))] += 1
        for ok, verdict in step_verdict_pairs(speech, review):
            review_counts[COUNTS.index("step_" + confusion_cell(ok, verdict))] += 1
        first_error_found = finds_first_error(speech, review)
        if first_error_found is not None:
            review_counts[COUNTS.index("first_found" if first_error_found else "first_missed")] += 1
        score = review_probability(review)
        if score is not None:
            offset = len(COUNTS) + 3 * min(BINS - 1, int(score * BINS))
            review_counts[offset : offset + 3] = [1, score, right]
        self.add_values(("judges", role), review_counts)
        if not right:
            kinds_known = sum(key[:2] == ("errors", role) for key in self.sums)
            error_key: Key = ("errors", role, kind or NO_STEP)
            if kinds_known >= MOST_KINDS and error_key not in self.sums:
                error_key = ("errors", role, "others")
            self.add_values(error_key, [final is True, final is False, final is None])

    def count_pair(self, one: str, other: str, a: bool | None, b: bool | None) -> None:
        if a is not None and b is not None:
            self.add_values(("pairs", f"{one}|{other}"), [a and b, a and not b, b and not a, not a and not b])

    def count_group(self, role: str, scored: Sequence[tuple[float | None, bool | None]]) -> None:
        """One group of solutions: (what its verifier says, is it right)."""
        graded = [right for _, right in scored if right is not None]
        if len(graded) > 1:
            place = int(RATES * sum(graded) / len(graded))
            self.add_values(("rates", role), [float(at == place) for at in range(RATES + 1)])
        readable = [(said, right) for said, right in scored if said is not None and right is not None]
        if len(readable) > 1:
            best = {n: best_of_n(readable, n) for n in SIZES if n <= len(readable)}
            for n, best_values in best.items():
                self.add_values(("best", role, str(n)), [1.0, *best_values])
            for few, many in combinations(best, 2):
                one, other = best[few][1], best[many][1]
                self.add_values(("apart", role, f"{few}-{many}"), [1.0, one, other, other - one, (other - one) ** 2])


def sum_rollout_counts(parts: Sequence[RolloutCounts]) -> dict[str, Any]:
    """All but the verifiers' own counts, as one JSON object."""
    total = RolloutCounts()
    for counts in parts:
        for key, values in counts.sums.items():
            if key[0] != "judges":
                total.add_values(key, values)
    result: dict[str, Any] = {"errors": {}, "pairs": {}, "best": {}, "apart": {}, "rates": {}}
    for (what, name, *rest), values in sorted(total.sums.items()):
        if rest:
            result[what].setdefault(name, {})[rest[0]] = values
        else:
            result[what][name] = values
    return result


def best_of_n(scored: Sequence[tuple[float, bool]], n: int) -> tuple[float, float, float]:
    """Figures of the best of ``n`` drawn from a group: what its verifier says, the chance that it is right, and that
    any of the n is."""
    order = sorted(scored, key=lambda one: -one[0])
    size = len(order)
    subsets = comb(len(order), n)
    mean_score = right_chance = 0.0
    start = 0
    while start < size:
        tied = [right for score, right in order if score == order[start][0]]
        chance = (comb(size - start, n) - comb(size - start - len(tied), n)) / subsets
        mean_score += chance * order[start][0]
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


def step_verdict_pairs(speech: Json, review: Json) -> list[tuple[bool, bool]]:
    """(truth, verdict) of each step that both know; [] where they count differently."""
    true = speech["metadata"].get(STEP_OK.name)
    verdicts = review["findings"].get(VERDICTS.name)
    if not isinstance(true, list) or not isinstance(verdicts, list) or len(true) != len(verdicts):
        return []
    return [(ok, v) for ok, v in zip(true, verdicts, strict=True) if isinstance(ok, bool) and isinstance(v, bool)]


def finds_first_error(speech: Json, review: Json) -> bool | None:
    """Whether the first step that a review calls wrong is the first wrong one. None where there is none."""
    true = speech["metadata"].get(STEP_OK.name)
    verdicts = review["findings"].get(VERDICTS.name)
    if not isinstance(true, list) or False not in true or not isinstance(verdicts, list) or len(true) != len(verdicts):
        return None
    return False in verdicts and verdicts.index(False) == true.index(False)


def first_error_reason(speech: Json) -> str | None:
    """The reason of the first wrong step; None where none is known."""
    reasons = speech["metadata"].get(STEP_REASONS.name)
    first = speech["metadata"].get(FIRST_WRONG.name)
    true = speech["metadata"].get(STEP_OK.name)
    if first is None and isinstance(true, list) and False in true:
        first = true.index(False)
    if not isinstance(first, int) or isinstance(first, bool):
        return None
    reason = reasons[first] if isinstance(reasons, list) and 0 <= first < len(reasons) else None
    return str(reason)[:60] if reason else "a wrong step"


def review_probability(review: Json) -> float | None:
    """Return what a review says that the solution is right; None where it gave no probability."""
    score = review["findings"].get(SCORE.name)
    fits = isinstance(score, int | float) and not isinstance(score, bool) and 0.0 <= score <= 1.0
    return float(score) if fits else None


def bool_or_none(name: str, of: Json) -> bool | None:
    value = of.get(name)
    return value if isinstance(value, bool) else None


def confusion_cell(right: bool, said: bool) -> str:
    if right:
        return "tp" if said else "fn"
    return "fp" if said else "tn"
