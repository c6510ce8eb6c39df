"""An alarm: the record of something that goes wrong in a run in a known way."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A band that was left."""

    band: str
    key: str  # the first metric of the series
    step: int  # at which it first fired
    last: int  # at which it fired last
    value: float  # read at the first
    reading: str  # the same in words
    healthy: str
    advice: str
    examples: tuple[str, ...] = ()  # addresses of rollouts in the ledger

    def line(self) -> str:
        """One plain line; steps are counted from 1, as the other lines of a run do."""
        shown = f" See rollouts {', '.join(self.examples)} (addresses count from 0)." if self.examples else ""
        read = f"{self.band} ({self.key}: {self.reading}; healthy: {self.healthy})"
        return f"alarm after step {self.step + 1}: {read}. {self.advice}{shown}"

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "examples": list(self.examples)}
