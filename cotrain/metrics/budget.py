"""How much of its budget of steps, tokens and FLOPs a run has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flops_of(row: Mapping[str, Any]) -> int:
    """All operations of one row of metrics.jsonl."""
    return sum(count for key, count in row.items() if "/flops/" in key)


def budget_share(ends: Mapping[str, Any], spent: Mapping[str, float]) -> float:
    """How much of a run is over, in [0, 1]. ``ends`` are its settings, of which "steps", "tokens", "flops" and
    "seconds" count (None: no such end); the first that is reached ends it. ``spent`` is in "batches", "tokens",
    "flops" and "seconds"."""
    amounts = {name: ends.get(name) for name in ("steps", "tokens", "flops", "seconds")}
    shares = [spent.get("batches" if name == "steps" else name, 0.0) / end for name, end in amounts.items() if end]
    return min(1.0, max(shares, default=0.0))
