"""Observers of a run, and ``run.log``, which has every message with its time.

Messages are notes, alarms, and what was resumed or passed over, also those that are printed past an observer
(``core/verbosity.py: print_note``); the figures of each step are in ``metrics.jsonl``. The file depends on the clock
and nothing is read from it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from cotrain.core.verbosity import escape_terminal, lost_streams

LOG_FILE = "run.log"


class Observer(Protocol):
    """Is told how a run goes: the live table, a tracker, a test."""

    def message(self, text: str) -> None: ...

    def update(self, row: Mapping[str, Any]) -> None: ...


class SilentObserver:
    """An observer that looks away."""

    def message(self, text: str) -> None: ...

    def update(self, row: Mapping[str, Any]) -> None: ...


class LoggingObserver:
    """An observer that also writes messages to a file. A disk that takes none does not stop the run."""

    def __init__(self, observer: Observer, directory: Path) -> None:
        self._observer = observer
        self._path = directory / LOG_FILE
        self._told: set[str] = set()  # streams that were lost, and it was said

    def message(self, text: str) -> None:
        self._append_line(text)
        self._observer.message(text)
        self._log_lost_streams()

    def update(self, row: Mapping[str, Any]) -> None:
        self._observer.update(row)
        self._log_lost_streams()

    def _log_lost_streams(self) -> None:
        for name, why in lost_streams().items():
            if name not in self._told:
                self._told.add(name)
                self._append_line(f"nothing more is written to {name} ({why}); the run goes on")

    def log_line(self, text: str) -> None:
        """Write what was shown elsewhere."""
        self._append_line(text)

    def _append_line(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escape_terminal(text)}\n"  # it is read in a terminal too
        with suppress(OSError), self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line)
