"""What only co-training has to watch: rewards against the truth, collapse of answers, drift of judges.

Every function takes the traces of one role in one step and returns flat keys, ``{role}/…``; what is undefined is left
out. Nothing depends on the clock. Ground truth is read here and in ``measures``, and by no algorithm. ``docs/metrics.md``
has one line for each key. Left out: calibration and the time series themselves (``health`` reads those).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from cotrain.core.types import Trace

Figures = dict[str, float]
KNOWN = frozenset({"correct", "step_ok", "step_reasons", "first_wrong", "gold"})  # notes with metrics of their own
STEP_REASONS = frozenset({"step count", "no steps", "bad step verdict", "unclosed step"})  # of ``text.parsers``
QUANTILES = (10, 50, 90)  # per cent
AT_MAX = 1e-3  # a reward this near to the largest of its step is at the maximum


def comments(traces: Sequence[Trace]) -> bool:
    """Does this role speak about other traces? A refinement has a parent too, but it shows an answer of its own."""
    about = any(t.parent is not None or t.score is not None for t in traces)
    return about and not any("answer" in t.parsed for t in traces)


def judges(traces: Sequence[Trace]) -> bool:
    """Does it give verdicts on them?"""
    return comments(traces) and any("final" in t.parsed or "failure" in t.parsed for t in traces)


def truth_notes(role: str, traces: Sequence[Trace]) -> Figures:
    """``truth/{name}``: mean of every number or boolean that the protocol noted beside the known ones, over the traces
    that have it; ``label_right`` is the accuracy of a pseudo-label."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        for name, value in trace.truth.items():
            if name not in KNOWN and isinstance(value, bool | int | float):
                found.setdefault(name, []).append(float(value))
    return {f"{role}/truth/{name}": _mean(values) for name, values in sorted(found.items())}


def rewards(role: str, traces: Sequence[Trace]) -> Figures:
    """Of each signal for whole traces: ``reward/{name}/right`` and ``…/wrong``, its mean where the answer (of a judge:
    the answer it judges) is truly right or wrong, and ``…/at_max``, the share of values at the step's largest."""
    figures: Figures = {}
    whole: dict[str, list[tuple[float, Trace]]] = {}
    for trace in traces:
        for signal in trace.signals:
            if signal.tokens is None:
                whole.setdefault(signal.name, []).append((signal.value, trace))
    for name, values in sorted(whole.items()):
        top = max(value for value, _ in values) - AT_MAX
        figures[f"{role}/reward/{name}/at_max"] = _mean([value >= top for value, _ in values])
        figures |= _by_truth(f"{role}/reward/{name}", values)
    return figures


def lengths(role: str, traces: Sequence[Trace]) -> Figures:
    """Sampled tokens: ``length/p10``, ``p50``, ``p90`` (interpolated), ``length/right`` and ``length/wrong``."""
    counts = [(float(trace.sampled), trace) for trace in traces]
    cuts = np.percentile([count for count, _ in counts], QUANTILES)
    figures = {f"{role}/length/p{q}": float(cut) for q, cut in zip(QUANTILES, cuts, strict=True)}
    return figures | _by_truth(f"{role}/length", counts)


def reviews(role: str, traces: Sequence[Trace]) -> Figures:
    """``aligned``: share of reviews with one verdict for each step, as far as their steps go (what else makes a review
    unreadable does not count). ``unanimous``: share of solutions whose readable reviews, two or more, say the same; at 1
    the reviews of a solution teach nothing."""
    figures: Figures = {}
    reasons = [trace.parsed.get("failure") for trace in traces]
    if any(trace.parsed.get("steps") for trace in traces) or STEP_REASONS.intersection(filter(None, reasons)):
        figures[f"{role}/aligned"] = _mean([reason not in STEP_REASONS for reason in reasons])
    said: dict[str, list[bool]] = {}
    for trace in traces:
        if trace.parent is not None and trace.parsed.get("final") is not None:
            said.setdefault(trace.parent, []).append(bool(trace.parsed["final"]))
    several = [verdicts for verdicts in said.values() if len(verdicts) > 1]
    if several:
        figures[f"{role}/unanimous"] = _mean([len(set(verdicts)) == 1 for verdicts in several])
    return figures


def scores(role: str, traces: Sequence[Trace]) -> Figures:
    """``score``: mean of what a scoring policy says (a logit), all in all and where the answer is right or wrong."""
    said = [(trace.score, trace) for trace in traces if trace.score is not None]
    return {f"{role}/score": _mean([score for score, _ in said]), **_by_truth(f"{role}/score", said)} if said else {}


def answers(role: str, traces: Sequence[Trace]) -> Figures:
    """Over the problems with two or more readable answers: ``distinct_answers`` (mean number, compared as text),
    ``majority_share`` (of the answers that say the most frequent; the first of equals), the same where the majority is
    right and where it is wrong, and ``majority_accuracy`` (share of problems where it is right)."""
    tasks: dict[int, list[Trace]] = {}
    for trace in traces:
        if trace.parsed.get("answer") is not None:
            tasks.setdefault(trace.address.task, []).append(trace)
    found = [_majority(spoken) for spoken in tasks.values() if len(spoken) > 1]
    if not found:
        return {}
    figures = {
        f"{role}/distinct_answers": _mean([distinct for distinct, _, _ in found]),
        f"{role}/majority_share": _mean([share for _, share, _ in found]),
    }
    for name, wanted in (("right", True), ("wrong", False)):
        if shares := [share for _, share, right in found if right is wanted]:
            figures[f"{role}/majority_share/{name}"] = _mean(shares)
    if known := [right for _, _, right in found if right is not None]:
        figures[f"{role}/majority_accuracy"] = _mean(known)
    return figures


def _majority(traces: Sequence[Trace]) -> tuple[int, float, bool | None]:
    """Number of distinct answers, share of the most frequent one, and whether that is right, where it is known."""
    votes = Counter(str(trace.parsed["answer"]) for trace in traces)
    winner, count = votes.most_common(1)[0]  # of equals the one that came first
    known = [t.truth["correct"] for t in traces if str(t.parsed["answer"]) == winner and _known(t)]
    return len(votes), count / len(traces), any(known) if known else None


def _by_truth(key: str, values: Sequence[tuple[float, Trace]]) -> Figures:
    """Means apart by whether the answer is truly right."""
    sides: dict[str, list[float]] = {"right": [], "wrong": []}
    for value, trace in values:
        if _known(trace):
            sides["right" if trace.truth["correct"] else "wrong"].append(value)
    return {f"{key}/{side}": _mean(mine) for side, mine in sides.items() if mine}


def _known(trace: Trace) -> bool:
    return trace.truth.get("correct") is not None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
