"""The laboratory: comparisons and studies of recipes, attacks on judges, cross-play, and a check of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def compare(
    arms: Sequence[str], *, seeds: int, out: Path | str, say: Callable[[str], None] = print, **options: Any
) -> dict[str, Any]:
    """Run several recipes with several seeds. ``options``: the other fields of
    ``comparison.compare.ComparisonPlan``."""
    from cotrain.analysis.comparison.arms import parse_arm
    from cotrain.analysis.comparison.compare import compare as work
    from cotrain.analysis.comparison.plan import ComparisonPlan

    plan = ComparisonPlan(arms=tuple(map(parse_arm, arms)), seeds=seeds, out=Path(out).absolute(), **options)
    return work(plan, say=say)
