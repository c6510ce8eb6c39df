"""A run that is short of memory or disk: it works in smaller parts, or waits for room and writes again.

Whatever a run writes leaves what was there before when the disk refuses it (``cotrain.storage``), so it can be written
again. ``DiskRetry`` tries again until there is room, for an hour; then the run ends with the error, and can be resumed.
What ran out of memory was computed again in smaller parts where it happened (``inference/scheduler.py``,
``learner/logprobs.py``, ``learner/learner.py``) and is told from the row of metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from cotrain.core.types import State, take_fields
from cotrain.core.verbosity import count_of
from cotrain.inference.contract import Engine, MemoryLimitedEngine
from cotrain.storage.file_ops import DiskError
from cotrain.trainer.failures import Interrupted
from cotrain.trainer.policy_store import MEMORY_SUFFIX, PolicyStore

MICRO_SUFFIX = "/micro_tokens"
PAUSE_S = 5.0  # between two tries
PATIENCE_S = 3600.0  # the most that it waits for room
P = ParamSpec("P")
R = TypeVar("R")


class DiskRetry:
    """Calls a function that writes files, again and again while the disk is full."""

    def __init__(self, stopping: Callable[[], int], say: Callable[[str], None]) -> None:
        """``stopping``: the number of the signal that asks the run to stop, 0 while none does. ``say`` hears of the
        wait."""
        self._stopping = stopping
        self._say = say

    def __call__(self, write: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call ``write`` and return its result; while the disk is full, wait and call it again. Raises DiskError where
        another thing is wrong, or the disk stays full; Interrupted."""
        try:
            return write(*arguments, **named)
        except DiskError as error:
            if not error.full:
                raise
            self._say(f"paused: {error}; the run goes on by itself when there is room (Ctrl-C ends it)")
        began = time.monotonic()
        while True:
            self._pause()
            try:
                result = write(*arguments, **named)
            except DiskError as error:
                if not error.full or time.monotonic() - began > PATIENCE_S:
                    raise
            else:
                self._say(f"there is room again after {time.monotonic() - began:.0f} s; the run goes on")
                return result

    def _pause(self) -> None:
        """Wait a moment. Raises Interrupted where the run is asked to stop."""
        time.sleep(PAUSE_S)
        signal = self._stopping()
        if signal:
            raise Interrupted(signal)


def oom_messages(row: Mapping[str, Any]) -> Iterator[str]:
    """A line for each policy whose memory ran out in a step."""
    counts = {key.removesuffix(MEMORY_SUFFIX): count for key, count in row.items() if key.endswith(MEMORY_SUFFIX)}
    for policy, count in counts.items():
        tokens = row.get(policy + MICRO_SUFFIX)
        todo = "" if tokens is None else f"; to begin so, set policies.{policy}.micro_tokens={tokens:.0f}"
        yield (
            f"note: step {row['step'] + 1}: memory ran out {count_of(round(count), 'time')} for policy {policy!r}; "
            f"it was computed again in parts of half the size{todo}"
        )


# -- What is done at a time since memory ran out, for a checkpoint: a resumed run sums in the order of one in peace.


LIMITS = "limits"  # a checkpoint's document


def memory_limits(policies: PolicyStore, engine: Engine) -> dict[str, State]:
    """The document ``LIMITS``, of policies for which memory has run out; none where it never has."""
    limits = {handle.name: handle.scoring_limit() for handle in policies}
    scoring = {name: limit for name, limit in limits.items() if limit is not None}
    sampling = engine.limits() if isinstance(engine, MemoryLimitedEngine) else {}
    if not scoring and not sampling:
        return {}
    return {LIMITS: {"scoring": scoring, "sampling": sampling}}


def restore_memory_limits(policies: PolicyStore, engine: Engine, documents: Mapping[str, Any]) -> None:
    """Go back to what a checkpoint's documents say. Raises StateError."""
    scoring, sampling = take_fields(
        "limits", documents.get(LIMITS, {"scoring": {}, "sampling": {}}), "scoring", "sampling"
    )
    for handle in policies:
        handle.set_scoring_limit(scoring.get(handle.name))
    if isinstance(engine, MemoryLimitedEngine):
        engine.set_limits(sampling)
