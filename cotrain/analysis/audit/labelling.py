r"""Which answers to label, so that the judge's error is known within a given width; and what their labels say of it.

Answers are parted into *strata* by what is known of all of them: a third of the run, the judge's verdict, and whether
cheap judges (the file's other scores, and the vote of the answers to one problem) mostly differ from it. In each
stratum h of N\ :sub:`h` answers n\ :sub:`h` are drawn without replacement, all equally likely, so an answer is labelled
with the *inclusion probability* π = n\ :sub:`h` / N\ :sub:`h`.

The estimator is Horvitz and Thompson's (1952): every labelled answer stands for 1/π answers of the file. Of the answers
that the judge accepts the share that is wrong is then a stratified mean, unbiased whatever the strata are worth::

    ê  = Σ W_h p_h                                   W_h = N_h / N, p_h the labelled answers' share
    V  = Σ W_h² (1 − n_h/N_h) s_h² / n_h             (Cochran 1977, section 5.3)
    s_h² of p̃ = (errors + ½) / (n_h + 1)             so that a stratum without an error is not taken for sure

and the interval is Wilson's on ê(1 − ê)/V observations. False positives among the wrong answers, FP / (FP + TN), are a
ratio of two such totals, which are independent; its variance is that of its linearisation (Särndal, Swensson & Wretman
1992, section 5.5). All of it is about the answers in the file: nothing is said of answers that are not.

How many: Neyman's allocation, n_h ∝ W_h s_h (Cochran, section 5.5), for each verdict apart, so many that the interval
of what is wrong among the accepted, and of what is right among the rejected, is at most as wide as asked. Before there
are labels half of the answers are taken for errors, which no share of errors asks more labels than; with labels their
own shares. In each stratum answers have an order by random numbers of their own (permanent random numbers, Ohlsson
1995), so a larger sample contains the smaller one: label some, ask again, label the rest.

Left out: the labeller's own errors.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.analysis.audit.judge_error import cut_steps
from cotrain.core.errors import DataError, UserError
from cotrain.core.seeding import seed_of
from cotrain.core.statistics import Estimate, Z, independent_difference, wilson_interval
from cotrain.core.verbosity import count_of
from cotrain.data.row_files import lines_of, object_of
from cotrain.formats.answers import answer_in
from cotrain.runs.foreign_files import ForeignRollout, ForeignRun, truth_of
from cotrain.storage.file_ops import replace_file
from cotrain.storage.kept_work import claim_place

PARTS = 3  # parts of the run, by which answers are divided
LEAST = 2  # fewest labels of a stratum from which its variance can be estimated
UNKNOWN_ERROR = 0.5  # share of errors that is reckoned with before there are labels
DENSE = 0.8  # share of the first answers of a stratum that must be labelled for them to count as drawn
FIRST_LABELS = 40  # with so many a second plan is nearer
Labels = Mapping[str, bool]  # address → is it right?


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Answers that are drawn from together, in the order in which they are drawn."""

    part: int  # part of the run
    first: int  # steps of that part
    last: int
    verdict: bool
    doubted: bool  # do cheap judges mostly differ from the judge?
    rollouts: tuple[ForeignRollout, ...]

    @property
    def title(self) -> str:
        """``steps 1 to 14, accepted, doubted by cheap judges``."""
        said = "accepted" if self.verdict else "rejected"
        doubt = ", doubted by cheap judges" if self.doubted else ""
        return f"steps {self.first} to {self.last}, {said}{doubt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPlan:
    """How many answers of each stratum to label."""

    strata: tuple[Stratum, ...]
    counts: tuple[int, ...]  # answers of each stratum, labelled ones included
    known: int  # labels that there are
    width: float | None  # that was asked for; None where a number was
    expected: tuple[float, ...]  # the share of errors that is reckoned with in each stratum

    @property
    def total(self) -> int:
        return sum(self.counts)

    def answers_to_label(self) -> list[tuple[ForeignRollout, float]]:
        """The answers to label, each with its inclusion probability."""
        answers = []
        for stratum, count in zip(self.strata, self.counts, strict=True):
            probability = count / len(stratum.rollouts)
            for rollout in stratum.rollouts[:count]:
                answers.append((rollout, probability))
        return answers

    def lines(self) -> list[str]:
        aim = f" for intervals of at most {100 * self.width:g} points" if self.width is not None else ""
        known = f", {self.known} of them labelled already" if self.known else ""
        lines = [f"to label{aim}: {count_of(self.total, 'answer')}{known}"]
        for stratum, count in zip(self.strata, self.counts, strict=True):
            lines.append(f"    {count:5d} of {len(stratum.rollouts):6d}  {stratum.title}")
        if self.width is not None and not self.known and self.total > FIRST_LABELS:
            lines.append(
                f"    before there are labels half of all are taken for errors: label some (--label {FIRST_LABELS}), "
                "give them as --labels, and ask again; it will be fewer"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "width": self.width,
            "answers": self.total,
            "labelled": self.known,
            "strata": [
                {"stratum": stratum.title, "answers": len(stratum.rollouts), "label": count, "expected error": error}
                for stratum, count, error in zip(self.strata, self.counts, self.expected, strict=True)
            ],
        }


# -- strata


def strata_of(run: ForeignRun, seed: int = 0) -> list[Stratum]:
    """The strata of all answers with a verdict; each in the order in which its answers are drawn."""
    judged = [rollout for rollout in run.rollouts if rollout.verdict is not None]
    if not judged:
        raise DataError(
            f"{run.paths[0]}: no answer has a verdict, so there is nothing to label; name --judge",
            code="E_NO_VERDICT_TO_LABEL",
        )
    doubts = _doubted_addresses(run, judged)
    strata = []
    for part, steps in enumerate(cut_steps(sorted({rollout.step for rollout in judged}), PARTS)):
        inside = [rollout for rollout in judged if steps[0] <= rollout.step <= steps[-1]]
        for verdict in (True, False):
            for doubted in (True, False):
                mine = [one for one in inside if one.verdict is verdict and (one.address in doubts) is doubted]
                mine.sort(key=lambda one: (seed_of("label", seed, one.problem, one.response, one.address), one.address))
                if mine:
                    strata.append(
                        Stratum(
                            part=part,
                            first=steps[0],
                            last=steps[-1],
                            verdict=verdict,
                            doubted=doubted,
                            rollouts=tuple(mine),
                        )
                    )
    return strata


def _doubted_addresses(run: ForeignRun, judged: Sequence[ForeignRollout]) -> set[str]:
    """Answers of which at least half of the cheap judges say something else than the judge."""
    halves = {name: _middle_of(run, name) for name in run.columns.others}
    voted = _votes(judged)
    doubted = set()
    for rollout in judged:
        says = [rollout.scores[name] >= half for name, half in halves.items() if name in rollout.scores]
        if rollout.address in voted:
            says.append(voted[rollout.address])
        differ = sum(say is not rollout.verdict for say in says)
        if says and 2 * differ >= len(says):
            doubted.add(rollout.address)
    return doubted


def _middle_of(run: ForeignRun, score: str) -> float:
    """The middle of a score's range, from which on a cheap judge counts as accepting."""
    values = [rollout.scores[score] for rollout in run.rollouts if score in rollout.scores]
    return (min(values) + max(values)) / 2 if values else 0.0


def _votes(judged: Sequence[ForeignRollout]) -> dict[str, bool]:
    """Address → does the answer agree with most of those to its problem in its step? Problems whose first place is
    shared, or with fewer than three answers that can be read, have no vote."""
    groups: dict[tuple[int, str], list[tuple[ForeignRollout, str | None]]] = {}
    for rollout in judged:
        groups.setdefault((rollout.step, rollout.problem), []).append((rollout, answer_in(rollout.response)))
    votes: dict[str, bool] = {}
    for group in groups.values():
        counts = Counter(answer for _, answer in group if answer is not None)
        top = counts.most_common(2)
        if sum(counts.values()) < 3 or (len(top) == 2 and top[0][1] == top[1][1]):
            continue
        votes |= {rollout.address: answer == top[0][0] for rollout, answer in group}
    return votes


# -- how many


def plan_labels(
    strata: Sequence[Stratum], labels: Labels, *, width: float | None = None, total: int | None = None
) -> LabelPlan:
    """How many answers of each stratum to label: for intervals of a ``width``, or ``total`` answers in all."""
    expected = tuple(_expected_error(stratum, labels) for stratum in strata)
    counts = [0] * len(strata)
    for verdict in (True, False):
        places = [place for place, stratum in enumerate(strata) if stratum.verdict is verdict]
        sizes = [len(strata[place].rollouts) for place in places]
        spreads = [math.sqrt(expected[place] * (1 - expected[place])) for place in places]
        wanted = _needed_for(sizes, spreads, width) if width is not None else (total or 0) / 2
        for place, count in zip(places, _allocate(sizes, spreads, wanted), strict=True):
            counts[place] = max(count, _labelled_prefix(strata[place], labels))
    n_labelled = sum(_labelled_prefix(stratum, labels) for stratum in strata)
    return LabelPlan(strata=tuple(strata), counts=tuple(counts), known=n_labelled, width=width, expected=expected)


def _expected_error(stratum: Stratum, labels: Labels) -> float:
    """The share of errors to reckon with: Laplace's of the labels where there are any."""
    wrong, count = _errors_in(stratum, labels)
    if count:
        return (wrong + 1) / (count + 2)
    return UNKNOWN_ERROR


def _needed_for(sizes: Sequence[int], spreads: Sequence[float], width: float) -> float:
    """Labels with which the interval of a stratified share is at most ``width`` wide (Cochran, 5.47)."""
    everything = sum(sizes)
    if not everything:
        return 0.0
    weights = [size / everything for size in sizes]
    mean_spread = sum(weight * spread for weight, spread in zip(weights, spreads, strict=True))
    finite = sum(weight * spread**2 for weight, spread in zip(weights, spreads, strict=True)) / everything
    return math.ceil(mean_spread**2 / ((width / (2 * Z)) ** 2 + finite))


def _allocate(sizes: Sequence[int], spreads: Sequence[float], wanted: float) -> list[int]:
    """``wanted`` labels over strata by Neyman, at least ``LEAST`` of each and never more than there are."""
    total = sum(size * spread for size, spread in zip(sizes, spreads, strict=True))
    counts = []
    for size, spread in zip(sizes, spreads, strict=True):
        share = wanted * size * spread / total if total else 0.0
        counts.append(min(size, max(LEAST, math.ceil(share))))
    return counts


# -- the file of labels


def check_label_file(path: Path) -> None:
    """Raise UserError for a file that is there already, and where none can be written."""
    if path.exists():
        raise UserError(f"{path} is there already, and may hold labels; name another file", code="E_LABEL_FILE_EXISTS")
    claim_place(path.absolute().parent)


def write_label_file(path: Path, plan: LabelPlan, labels: Labels) -> None:
    """Write the answers to label as JSON lines, in an order that tells nothing. The judge's verdict is not in it: who
    labels should not see it. Raises UserError."""
    drawn = sorted(plan.answers_to_label(), key=lambda pair: seed_of("order", pair[0].response, pair[0].address))
    rows = [
        {
            "id": rollout.address,
            "text": _digest(rollout),
            "inclusion": round(probability, 6),
            "prompt": rollout.prompt,
            "response": rollout.response,
            "reference": rollout.gold,
            "right": labels.get(rollout.address),
        }
        for rollout, probability in drawn
    ]
    check_label_file(path)  # again: another command may have written it since
    replace_file(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def _digest(rollout: ForeignRollout) -> str:
    """Tells whether a label is of this very text."""
    return hashlib.blake2b(f"{rollout.problem}\n{rollout.response}".encode(), digest_size=6).hexdigest()


def read_labels(path: Path, run: ForeignRun) -> tuple[dict[str, bool], int]:
    """Address → is it right, of a file of labels; and how many of its rows have none. Raises DataError for a label of
    an answer that is not there, or of another text."""
    by_address = {rollout.address: rollout for rollout in run.rollouts}
    labels: dict[str, bool] = {}
    empty = 0
    for number, line in lines_of(path):
        where = f"{path}, row {number}"
        row = object_of(line, where)
        address = str(row.get("id"))
        right = row.get("right")
        if address not in by_address:
            raise DataError(
                f"{where}: id is {address!r:.40}, which these rollouts do not have; give the same files",
                code="E_LABEL_OF_OTHER_ROLLOUT",
            )
        if row.get("text", _digest(by_address[address])) != _digest(by_address[address]):
            raise DataError(
                f"{where}: {address} is another text in these rollouts; give the files that it is from",
                code="E_LABEL_OF_OTHER_ROLLOUT",
            )
        if right is None or right == "":
            empty += 1
            continue
        truth = truth_of(right)
        if truth is None:
            raise DataError(
                f"{where}: right is {right!r:.40}, expected true or false, or null for no label",
                code="E_FIELD_NOT_BOOLEAN",
            )
        if labels.get(address, truth) is not truth:
            raise DataError(f"{where}: {address} has two labels that differ; keep one", code="E_LABELS_CONTRADICT")
        labels[address] = truth

    if not labels:
        raise DataError(f'{path}: no row has a label; set "right" to true or false', code="E_NO_LABEL")
    return labels, empty


# -- what the labels say


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelEstimate:
    """The judge's error by labels of a sample."""

    labelled: int
    passed_over: int  # labels of answers that were not drawn
    rates: Mapping[str, Estimate]
    by_part: Mapping[str, Mapping[str, Estimate]]  # "steps 1 to 14" → its rates
    change: Estimate | None  # change of "fooled", from the first part of the run to the last

    def lines(self) -> list[str]:
        lines = [
            f"how the judge fares, by {count_of(self.labelled, 'label')} of a stratified sample (Horvitz and Thompson; "
            "95 % intervals, of the answers in these files)"
        ]
        if self.passed_over:
            lines.append(f"    {self.passed_over} labels are of answers that were not drawn, and are not counted")
        for name in ("false positive rate", "false negative rate", "wrong among accepted", "right among rejected"):
            if name in self.rates:
                lines.append(f"    {name:22s} {_percent(self.rates[name])}")
        for part, rates in self.by_part.items():
            fooled = rates.get("fooled")
            if fooled is not None:
                lines.append(f"    {part}: accepted and wrong {_percent(fooled)} of all answers")

        if self.change is not None:
            moving = "YES" if self.change.low > 0 else "Not shown"
            lines.append(
                f"is the policy moving to where the judge errs? {moving}: {100 * self.change.value:+.0f} points "
                f"[{100 * self.change.low:+.0f}, {100 * self.change.high:+.0f}] from the first part to the last"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "labels": self.labelled,
            "passed_over": self.passed_over,
            "rates": rates_json(self.rates),
            "by_part": {part: rates_json(rates) for part, rates in self.by_part.items()},
            "change": None if self.change is None else self.change.to_json(),
        }


def rates_json(rates: Mapping[str, Estimate]) -> dict[str, Any]:
    """Estimates by name, as JSON."""
    return {name: rate.to_json() for name, rate in rates.items()}


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.1f} % [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def estimate_by_labels(strata: Sequence[Stratum], labels: Labels) -> LabelEstimate:
    """The judge's error by the labels of drawn answers."""
    used = sum(_errors_in(stratum, labels)[1] for stratum in strata)
    by_part = {}
    for part in sorted({stratum.part for stratum in strata}):
        inside = [stratum for stratum in strata if stratum.part == part]
        title = f"steps {inside[0].first} to {inside[0].last}"
        by_part[title] = stratified_rates(inside, labels)

    fooled = [rates["fooled"] for rates in by_part.values() if "fooled" in rates]
    change = independent_difference(fooled[-1], fooled[0]).clip_to(-1.0, 1.0) if len(fooled) > 1 else None
    return LabelEstimate(
        labelled=used,
        passed_over=len(labels) - used,
        rates=stratified_rates(strata, labels),
        by_part=by_part,
        change=change,
    )


def stratified_rates(strata: Sequence[Stratum], labels: Labels) -> dict[str, Estimate]:
    """The rates of ``judge_error.RATES`` that the labels tell, with their intervals."""
    errors: dict[bool, _StratifiedShare] = {}
    sizes = {True: 0, False: 0}
    for verdict in (True, False):
        mine = [stratum for stratum in strata if stratum.verdict is verdict]
        sizes[verdict] = sum(len(stratum.rollouts) for stratum in mine)
        share = _stratified_share(mine, labels)
        if share is not None:
            errors[verdict] = share

    rates = {}
    if True in errors:
        rates["wrong among accepted"] = errors[True].estimate()
        if sizes[False] == 0 or False in errors:
            rates["fooled"] = errors[True].as_share_of_whole(sizes[True] / (sizes[True] + sizes[False]))
    if False in errors:
        rates["right among rejected"] = errors[False].estimate()
    if True in errors and False in errors:
        rates["false positive rate"] = _ratio_rate(errors[True], sizes[True], errors[False], sizes[False])
        rates["false negative rate"] = _ratio_rate(errors[False], sizes[False], errors[True], sizes[True])
    return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class _StratifiedShare:
    """A stratified mean of yes and no."""

    value: float
    smooth: float  # the same of shares that are held off 0 and 1
    variance: float
    labels: int

    def estimate(self) -> Estimate:
        low, high = _wilson(self.value, self.smooth, self.variance, self.labels)
        return Estimate(value=self.value, low=low, high=high, n=self.labels)

    def as_share_of_whole(self, part: float) -> Estimate:
        """The estimate as a share of a whole, where the mean is over a known ``part`` of it."""
        of_part = self.estimate()
        return Estimate(value=part * of_part.value, low=part * of_part.low, high=part * of_part.high, n=of_part.n)


def _wilson(value: float, smooth: float, variance: float, labels: int) -> tuple[float, float]:
    """Wilson's interval on as many observations as the variance stands for; of a census the value itself."""
    if variance <= 0.0:
        return value, value
    observations = smooth * (1 - smooth) / variance
    return wilson_interval(min(max(value, 0.0), 1.0), max(observations, 1e-6))


def _stratified_share(strata: Sequence[Stratum], labels: Labels) -> _StratifiedShare | None:
    """The share of errors among the answers of these strata. Strata without a label are taken together with one that
    has some (collapsed strata; Cochran, section 5A.12). None where none has a label."""
    counted = [(len(stratum.rollouts), *_errors_in(stratum, labels)) for stratum in strata]
    without = sum(size for size, _, count in counted if not count)
    counted = [entry for entry in counted if entry[2]]
    if not counted:
        return None
    largest = max(range(len(counted)), key=lambda place: counted[place][0])
    size, wrong, count = counted[largest]
    counted[largest] = (size + without, wrong, count)
    everything = sum(size for size, _, _ in counted)
    value = smooth = variance = 0.0
    for size, wrong, count in counted:
        weight = size / everything
        near = (wrong + 0.5) / (count + 1)
        value += weight * wrong / count
        smooth += weight * near
        variance += weight**2 * (1 - count / size) * near * (1 - near) / count
    return _StratifiedShare(value=value, smooth=smooth, variance=variance, labels=sum(count for _, _, count in counted))


def _ratio_rate(top: _StratifiedShare, top_size: int, other: _StratifiedShare, other_size: int) -> Estimate:
    """``top``'s errors as a share of the answers of their class: FP / (FP + TN), where TN are the rejected answers that
    are no errors."""
    errors = top_size * top.value
    rest = other_size * (1 - other.value)
    if errors + rest <= 0.0:
        return Estimate(value=math.nan, low=-math.inf, high=math.inf, n=top.labels + other.labels)
    value = errors / (errors + rest)
    soft_errors = top_size * top.smooth
    soft_rest = other_size * (1 - other.smooth)
    whole = soft_errors + soft_rest
    spread = (soft_rest * top_size) ** 2 * top.variance + (soft_errors * other_size) ** 2 * other.variance
    low, high = _wilson(value, soft_errors / whole, spread / whole**4, top.labels + other.labels)
    return Estimate(value=value, low=low, high=high, n=top.labels + other.labels)


def _errors_in(stratum: Stratum, labels: Labels) -> tuple[int, int]:
    """Errors of the judge among the labelled answers that were drawn, and how many these are."""
    drawn = stratum.rollouts[: _labelled_prefix(stratum, labels)]
    truths = [labels[rollout.address] for rollout in drawn if rollout.address in labels]
    return sum(truth is not stratum.verdict for truth in truths), len(truths)


def _labelled_prefix(stratum: Stratum, labels: Labels) -> int:
    """How many of the first answers of a stratum count as drawn: the most of which ``DENSE`` are labelled. A label
    behind them is of an answer that somebody picked, and picked answers say nothing of the others."""
    reach = seen = 0
    for place, rollout in enumerate(stratum.rollouts, start=1):
        if rollout.address in labels:
            seen += 1
            if seen >= DENSE * place:
                reach = place
    return reach
