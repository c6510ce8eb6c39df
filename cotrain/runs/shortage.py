"""When the machine has too little: memory is used in smaller parts, and for room on the disk a run waits.

Whatever a run writes leaves what was there before when the disk refuses it (``cotrain.disk``), so it can be written
again. ``Room`` tries again until there is room, for an hour; then the run ends with the error, and can be resumed. What
ran out of memory was computed again in smaller parts where it happened (``engine/scheduler.py``, ``learn/scorer.py``,
``learn/torch_learner.py``) and is told from the row of metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from cotrain.core.stopping import Interrupted
from cotrain.disk.files import DiskError
from cotrain.runs.log import Observer
from cotrain.train.policy_store import MEMORY_SUFFIX

MICRO_SUFFIX = "/micro_tokens"
PAUSE_S = 5.0  # between two tries
PATIENCE_S = 3600.0  # of waiting for room
P = ParamSpec("P")
R = TypeVar("R")


class DiskRetry:
    """Does what writes, again and again while the disk is full."""

    def __init__(self, stopping: Callable[[], int], observer: Observer) -> None:
        """``stopping``: the number of the signal that asks the run to stop, 0 while none does."""
        self._stopping, self._observer = stopping, observer

    def __call__(self, write: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """What ``write`` returns. Raises DiskError where another thing is wrong, or the disk stays full;
        Interrupted."""
        began: float | None = None
        while True:
            try:
                made = write(*arguments, **named)
            except DiskError as error:
                if not error.full or (began is not None and time.monotonic() - began > PATIENCE_S):
                    raise
                if began is None:
                    began = time.monotonic()
                    self._observer.message(
                        f"paused: {error}; the run goes on by itself when there is room (Ctrl-C ends it)"
                    )
            else:
                if began is not None:
                    self._observer.message(
                        f"there is room again after {time.monotonic() - began:.0f} s; the run goes on"
                    )
                return made
            time.sleep(PAUSE_S)
            if signal := self._stopping():
                raise Interrupted(signal)


def memory_notes(row: Mapping[str, Any]) -> Iterator[str]:
    """A line for each policy whose memory ran out in a step."""
    for key, count in row.items():
        if key.endswith(MEMORY_SUFFIX):
            policy = key.removesuffix(MEMORY_SUFFIX)
            tokens = row.get(policy + MICRO_SUFFIX)
            todo = "" if tokens is None else f"; to begin so, set policies.{policy}.micro_tokens={tokens:.0f}"
            yield (
                f"note: step {row['step']}: memory ran out {count:.0f} times for policy {policy!r}; it was computed "
                "again in "
                f"parts of half the size{todo}"
            )
