"""What a comparison may say: amounts with their units, and differences in words.

A difference is called "better" or "worse" only when its 95 % interval leaves out zero and it is at least as large as
the smallest that a comparison with these variances finds with a chance of 80 % (``statistics.smallest_seen``); the
words say how large that is. With fewer than three seeds nothing is called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotrain.core.statistics import LEAST, POWER, Estimate, smallest_seen
from cotrain.metrics.table import meaning
from cotrain.pages.guide import between, number, points

AXES = ("batches", "tokens", "flops", "seconds")  # costs: what can be made equal, and what a curve can be read over
EQUAL = (*AXES, "updates")  # "updates": the leading policy of each arm has as many batches to learn from
UNITS = {"batches": "batches", "tokens": "tokens", "flops": "FLOPs", "seconds": "seconds"}
AT = {axis: f"after {{}} {unit}" for axis, unit in UNITS.items()} | {"end": "at the end of each run"}


def slug_of(label: str) -> str:
    """The directory of an arm, beside ``compare.json``."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label)


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Label → the same without the parameters that all arms have: ``tango:lr=1,alpha=0.5`` and ``tango:lr=1,alpha=1``
    are ``tango:alpha=0.5`` and ``tango:alpha=1``. Labels that would become alike stay as they are."""
    parts = {label: (label.partition(":")[0], label.partition(":")[2].split(",")) for label in labels}
    common = set.intersection(*(set(given) for _, given in parts.values())) if parts else set()
    found = {}
    for label, (recipe, given) in parts.items():
        own = ",".join(pair for pair in given if pair not in common)
        found[label] = f"{recipe}:{own}" if own else recipe
    return found if len(set(found.values())) == len(labels) else {label: label for label in labels}


def amount(value: float, axis: str) -> str:
    """``1.23e15`` of operations, else a whole number with thin spaces."""
    if not math.isfinite(value):
        return "unknown"
    if axis != "flops" or abs(value) < 1e6:
        return number(round(value), share=False)
    return f"{value:.2e}".replace("e+", "e").replace("e0", "e")


def budget_in_words(at: str, budgets: object) -> str:
    """``"after 60 batches"``; ``budgets`` maps axes to amounts."""
    held = budgets.get(at, math.nan) if isinstance(budgets, dict) else math.nan
    return AT[at].format(amount(held, at))


def difference_in_words(change: Estimate, metric: str, *, verdict: bool = True) -> str:
    """What a paired difference allows one to say. Without ``verdict`` only how large it is: what is read off a curve at
    many places is never called."""
    read = meaning(metric, [0.5])
    unit = " points" if read.share else ""
    if change.n == 0:
        return "no seed was measured in both"
    size = points(change.value, share=read.share) + unit
    if change.n >= LEAST and not verdict:
        return f"{size} (95\u202f% interval {between(change, share=read.share)}, {change.n} seeds)"
    if change.n == 1:
        return f"{size}; one seed: an anecdote"
    if change.n < LEAST:
        return f"{size}; {change.n} seeds: no verdict"
    seen = smallest_seen(change)
    if seen < 1e-9:
        return f"{size}; the same in every seed and problem, so no verdict"
    least = points(seen, share=read.share).lstrip("+") + unit
    range_ = f"95\u202f% interval {between(change, share=read.share)}, {change.n} seeds"
    power = f"with {100 * POWER:.0f}\u202f% power"
    if change.includes(0.0):
        return f"no difference is shown ({size}; {range_}); {least} or more would have been seen {power}"
    if abs(change.value) < seen:
        return f"not called: {size} ({range_}) is less than the {least} that could have been seen {power}"
    good, bad = ("better", "worse") if read.better > 0 else ("worse", "better") if read.better else ("higher", "lower")
    word = good if change.value > 0 else bad
    return f"{word} by {size.lstrip('+−')} ({range_}; {least} or more would have been seen {power})"
