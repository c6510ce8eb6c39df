"""The words of a comparison's page: amounts with their units, and differences with their intervals.

A difference is "better" or "worse" only when its p is below ``statistics.significance_level``, which is stricter than
an interval of 95 % that leaves out zero; the words say how large that is. With fewer than three seeds nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotrain.core.statistics import LEAST, Estimate, significance_level, smallest_significant
from cotrain.core.verbosity import count_of
from cotrain.metrics.table import labelled_metric
from cotrain.reports.guide import difference_interval, number_text, points_text

AXES = ("batches", "tokens", "flops", "seconds")  # costs: what can be made equal, and what a curve can be read over
EQUAL = (*AXES, "updates")  # "updates": the leading policy of each arm has as many batches to learn from
UNITS = {"batches": "batches", "tokens": "tokens", "flops": "FLOPs", "seconds": "seconds"}
AT_WORDS = {axis: f"after {{}} {unit}" for axis, unit in UNITS.items()} | {"end": "at the end of each run"}


def slug_of(label: str) -> str:
    """The directory of an arm, next to ``compare.json``."""
    slug = ""
    for letter in label:
        slug += letter if letter.isalnum() or letter in "-_." else "-"
    return slug


def seeds_that_ran(seeds: int, planned: int) -> str:
    return f"{seeds} of {count_of(planned, 'planned seed')} ran"


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Label → the label without the arguments that all arms have: ``tango:lr=1,alpha=0.5`` and ``tango:lr=1,alpha=1``
    become ``tango:alpha=0.5`` and ``tango:alpha=1``. If two labels would become equal, all stay as they are."""
    arguments_of = {label: label.partition(":")[2].split(",") for label in labels}
    common = set.intersection(*map(set, arguments_of.values())) if arguments_of else set()
    short = {}
    for label, arguments in arguments_of.items():
        recipe, _, _ = label.partition(":")
        own_arguments = ",".join(argument for argument in arguments if argument not in common)
        short[label] = f"{recipe}:{own_arguments}" if own_arguments else recipe
    are_distinct = len(set(short.values())) == len(labels)
    return short if are_distinct else {label: label for label in labels}


def amount_text(value: float, axis: str) -> str:
    """``1.23e15`` of operations, else a whole number with thin spaces."""
    if not math.isfinite(value):
        return "unknown"
    if axis != "flops" or abs(value) < 1e6:
        return number_text(round(value), share=False)
    return f"{value:.2e}".replace("e+", "e").replace("e0", "e")  # 1.23e+09 → 1.23e9


def budget_in_words(at: str, budgets: object) -> str:
    """``"after 60 batches"``; ``budgets`` maps axes to amounts."""
    budget = budgets.get(at, math.nan) if isinstance(budgets, dict) else math.nan
    return AT_WORDS[at].format(amount_text(budget, at))


def difference_in_words(change: Estimate, metric: str, *, verdict: bool = True) -> str:
    """A paired difference in words that claim no more than it shows. ``verdict=False``: only its size and interval, for
    differences read off a curve at many places, of which some would be significant by chance."""
    metric_meaning = labelled_metric(metric, [0.5])  # a metric that the table does not have counts as a share
    unit = " points" if metric_meaning.is_share else ""
    if change.n == 0:
        return "no seed was measured in both"
    size = points_text(change.value, share=metric_meaning.is_share) + unit
    if change.n >= LEAST and not verdict:
        interval = difference_interval(change, share=metric_meaning.is_share)
        return f"{size} (95\u202f% interval {interval}, {count_of(change.n, 'seed')})"
    if change.n == 1:
        return f"{size}; one seed: an anecdote"
    if change.n < LEAST:
        return f"{size}; {count_of(change.n, 'seed')}: no verdict"
    smallest = smallest_significant(change)
    if smallest < 1e-9:  # no spread at all, so no test
        return f"{size}; the same in every seed and problem, so no verdict"
    least_text = points_text(smallest, share=metric_meaning.is_share).lstrip("+") + unit
    interval = (
        f"95\u202f% interval {difference_interval(change, share=metric_meaning.is_share)}, {count_of(change.n, 'seed')}"
    )
    limit = f"p below {significance_level(change.n):.3f}"
    if change.includes(0.0):
        return f"no difference is shown ({size}; {interval}); {least_text} or more would be significant ({limit})"
    if abs(change.value) < smallest:
        return f"not significant: {size} ({interval}) is less than the {least_text} that would be significant ({limit})"
    word = "higher" if change.value > 0 else "lower"
    if metric_meaning.better:
        is_better = change.value * metric_meaning.better > 0
        word = "better" if is_better else "worse"
    return f"{word} by {size.lstrip('+−')} ({interval}; {least_text} or more would be significant, {limit})"
