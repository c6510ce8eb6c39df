"""The laboratory: comparisons and studies of recipes, attacks on judges, cross-play, and a check of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def compare(
    arms: Sequence[str],
    *,
    seeds: int,
    out: Path | str,
    say: Callable[[str], None] = print,
    batches: int | None = None,
    smoke: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Run several recipes with several seeds. ``batches``: steps of a run, 60 by default. ``smoke``: a trial of a few
    steps. ``options``: the other fields of ``comparison.compare.ComparisonPlan``."""
    from cotrain.analysis.comparison.arms import parse_arm
    from cotrain.analysis.comparison.compare import compare as work
    from cotrain.analysis.comparison.plan import ComparisonPlan

    parsed_arms = tuple(map(parse_arm, arms))
    plan = ComparisonPlan(arms=parsed_arms, seeds=seeds, out=Path(out).absolute(), batches=batches or 60, **options)
    if smoke:
        from cotrain.analysis.comparison.trial import short_plan, trial_note

        plan = short_plan(plan, batches=batches)
        say(trial_note(plan))
    return work(plan, say=say)
