"""What is done at a time since memory ran out, for a checkpoint: a resumed run sums in the order of one in peace.

A learner's ``state`` has its own. Here is the rest: tokens of a pass by policies that only score (references,
teachers), rows that the engine samples at once. A run begins without limits, whatever the measurement of its start
needed: that is not repeated when it is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotrain.core.state import State, take_fields
from cotrain.engine.contract import Engine, MemoryLimitedEngine
from cotrain.train.policy_store import PolicyStore

LIMITS = "limits"  # a checkpoint's document


def memory_limits(policies: PolicyStore, engine: Engine) -> dict[str, State]:
    """The document ``LIMITS``, of policies for which memory has run out; none where it never has."""
    scoring = {handle.name: found for handle in policies if (found := handle.scoring_limit()) is not None}
    sampling = engine.limits() if isinstance(engine, MemoryLimitedEngine) else {}
    return {LIMITS: {"scoring": scoring, "sampling": sampling}} if scoring or sampling else {}


def restore_limits(policies: PolicyStore, engine: Engine, documents: Mapping[str, Any]) -> None:
    """Go back to what a checkpoint's documents say. Raises StateError."""
    scoring, sampling = take_fields(
        "limits", documents.get(LIMITS, {"scoring": {}, "sampling": {}}), "scoring", "sampling"
    )
    for handle in policies:
        handle.set_scoring_limit(scoring.get(handle.name))
    if isinstance(engine, MemoryLimitedEngine):
        engine.set_limits(sampling)
