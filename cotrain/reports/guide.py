"""Names, numbers and intervals written for readers. What a metric means stands in ``metrics/table.py``, and only there.

A metric's name is ``{role or policy}/{metric}``, with the name of a further split in front or behind. Unknown metrics
are shown under their own name, without a band.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cotrain.core.statistics import Estimate
from cotrain.metrics.table import metric_named

PERCENT = "\u202f%"  # a narrow no-break space before the sign
SPLITS = {
    "ood_length": "longer problems than in training",
    "ood_template": "problems in unseen wordings",
    "fixed": "on what the frozen start says",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricName:
    """A metric's name taken apart."""

    who: str  # role or policy; "" for a metric of the whole run
    metric: str
    split: str = ""  # a further set of problems, "" for the usual one


def split_key(key: str) -> tuple[str, str]:
    """A metric's name as (who, metric).

    ::

        solver/reward/outcome     the metric "reward/outcome" of "solver"
        generator/generator/loss  the loss of "generator": objective and policy have one name
        gap                       a metric of the whole run, of nobody: ("", "gap")
    """
    parts = key.split("/")
    if len(parts) == 1:
        return "", key
    # The metric is the longest end of the name that the table has; of an unknown one, all behind the first slash.
    starts = (start for start in range(1, len(parts)) if metric_named("/".join(parts[start:])))
    start = next(starts, 1)
    who = parts[:start]
    if len(set(who)) == 1:
        who = who[:1]
    return "/".join(who), "/".join(parts[start:])


def parse_metric_name(key: str, roles: Iterable[str]) -> MetricName:
    """The name of a figure: ``solver/pass@1``, or with a split ``solver/hard/pass@1`` or ``hard/solver/pass@1``."""
    prefix, metric = split_key(key)
    who, _, split = prefix.partition("/")
    if split in roles and who not in roles:
        who, split = split, who
    return MetricName(who=who, metric=metric, split=split)


def split_label(split: str) -> str:
    """A further set of problems in words."""
    return SPLITS.get(split, f"{split.replace('_', ' ')} problems")


def number_text(value: float, *, share: bool) -> str:
    """``0.614`` as ``61.4 %``, a plain number with three significant digits, thousands with thin spaces."""
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "unknown"
    if share:
        return _decimal_text(100 * value, 1) + PERCENT
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f").replace("-", "−")
    if value == int(value):
        return _decimal_text(value, 0)
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))  # three significant digits
    return _decimal_text(value, min(decimals, 6))


def points_text(value: float, *, share: bool) -> str:
    """A difference with its sign: ``+4.2 points`` for shares, ``−0.031`` otherwise."""
    if not math.isfinite(value):
        return "unknown"
    size = f"{100 * abs(value):.1f}" if share else number_text(abs(value), share=False)
    if float(size.replace("\u202f", "")) == 0:
        return size
    return f"−{size}" if value < 0 else f"+{size}"


def interval_text(estimate: Estimate, *, share: bool) -> str:
    """``57.0 to 65.1 %``, or ``unknown``."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return "unknown"
    low, high = number_text(estimate.low, share=share), number_text(estimate.high, share=share)
    return f"{low.removesuffix(PERCENT)} to {high}"


def difference_interval(change: Estimate, *, share: bool) -> str:
    """The interval of a difference: ``+22.1 to +32.0 points``."""
    if not (math.isfinite(change.low) and math.isfinite(change.high)):
        return "unknown"
    unit = " points" if share else ""
    return f"{points_text(change.low, share=share)} to {points_text(change.high, share=share)}{unit}"


def _decimal_text(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    if float(text) == 0:
        text = text.removeprefix("-")
    return text.replace("-", "−")


# -- Estimates as ``summary.json`` and ``compare.json`` hold them, and who is shown first.


ORDER = ("proposer", "solver", "generator", "verifier", "judge")  # who is shown first; others follow by name


def display_order(names: Iterable[str]) -> list[str]:
    """Roles and policies in order of display."""
    return sorted(set(names), key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n))


def parse_estimates(saved: object) -> dict[str, Estimate]:
    """Estimates by metric name from JSON; a bare number has unknown bounds; anything else is left out."""
    parsed: dict[str, Estimate] = {}
    for name, entry in saved.items() if isinstance(saved, dict) else ():
        fields = entry if isinstance(entry, dict) else {"value": entry}
        value, low, high, n = (_parse_number(fields.get(key)) for key in ("value", "low", "high", "n"))
        if value is not None:
            parsed[str(name)] = Estimate(
                value=value,
                low=-math.inf if low is None else low,
                high=math.inf if high is None else high,
                n=0 if n is None else int(n),
            )
    return parsed


def _parse_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
