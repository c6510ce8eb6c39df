"""Wall seconds of a step, by what was done and by who did it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cotrain.backend.work import Worked, told


class Clock:
    """Wall seconds by stage."""

    def __init__(self, work: Callable[[], Mapping[str, Worked]]) -> None:
        """``work``: what each process has done so far."""
        self._work, self._before = work, work()
        self.laps: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._since
        self._since = now

    def processes(self) -> dict[str, float | str]:
        """What each process did in this time, up to the last lap."""
        return told(self._before, self._work(), sum(self.laps.values()))
