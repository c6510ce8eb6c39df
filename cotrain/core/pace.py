"""Progress lines of long work: how much is done and how long the rest takes, at most every five seconds and ten in all.

What is over within five seconds says nothing. Left out: bars, which log files do not need.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 5.0  # between lines, and before the first
LINES = 10  # at most


class Pace:
    """Counts what is done of ``total``, and says so: "gsm8k: 128 of 1,319 problems, 12:40 left"."""

    def __init__(
        self,
        total: int,
        what: str,
        say: Callable[[str], None],
        *,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``what``: with "{}" where the counts go. ``done``: what was done before, which says nothing of the time
        left."""
        self._total, self._what, self._say, self._clock = total, what, say, clock
        self._begun = self._said = clock()
        self._before = self._at = self.done = done

    def add(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        now, made = self._clock(), self.done - self._before
        if self.done >= self._total or now - self._said < SECONDS or (self.done - self._at) * LINES < self._total:
            return
        self._said, self._at = now, self.done
        left = (now - self._begun) / made * (self._total - self.done)
        self._say(f"{self._what.format(f'{self.done:,} of {self._total:,}')}, {clock_text(left)} left")


def clock_text(seconds: float) -> str:
    """``75`` as ``1:15``, hours as ``2:03:10``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
