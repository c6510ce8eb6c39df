"""Wall seconds of a step, by what was done."""

from __future__ import annotations

import time


class Clock:
    """Wall seconds by stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._since
        self._since = now
