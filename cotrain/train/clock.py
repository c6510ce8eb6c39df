"""Wall-clock seconds of a training step, by stage and by process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cotrain.backend.process_stats import ProcessStats, process_metrics


class StageClock:
    """Wall seconds by stage."""

    def __init__(self, work: Callable[[], Mapping[str, ProcessStats]]) -> None:
        """``work``: what each process has done so far."""
        self._work, self._before = work, work()
        self.laps: dict[str, float] = {}
        self._since = time.perf_counter()

    def end_stage(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._since
        self._since = now

    def process_metrics(self) -> dict[str, float | str]:
        """What each process did in this time, up to the last lap."""
        return process_metrics(self._before, self._work(), sum(self.laps.values()))
