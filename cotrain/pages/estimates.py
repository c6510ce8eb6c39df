"""Reading estimates back from ``summary.json`` and ``compare.json``, and the order in which roles are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cotrain.core.statistics import Estimate

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
