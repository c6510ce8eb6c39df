"""Wall seconds by stage: ``with clock.stage("update"): …``"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageClock:
    """Wall seconds of each stage, each second counted once: a stage inside of another one interrupts it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # by stage
        self._stage: str | None = None  # the one that runs now
        self._since = 0.0  # since when

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block as this stage's, also where it raises."""
        outer = self._stage
        self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())

    def _enter(self, name: str | None) -> None:
        now = time.perf_counter()
        if self._stage is not None:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage = name
        self._since = now
