"""Figures of each process of a run in several processes, from the keys ``process/{process}/…`` of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

PREFIX = "process/"
TITLES = ("process", "tokens/s", "published", "in", "asleep", "holds")
FIGURES = ("tokens_per_second", "published_bytes", "publish_seconds", "asleep_seconds")
UNITS = ("B", "kB", "MB", "GB", "TB")


def processes_of(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of each process, by its name."""
    figures_by_process: dict[str, dict[str, Any]] = {}
    for key, value in row.items():
        name, _, figure = key.removeprefix(PREFIX).rpartition("/")
        if key.startswith(PREFIX) and name:
            figures_by_process.setdefault(name, {})[figure] = value
    return figures_by_process


def process_cells(name: str, figures: Mapping[str, Any]) -> list[str]:
    """A line of the live table: as ``TITLES``, "" where there is no figure."""
    tokens, published, publish_seconds, asleep = (_finite_or_none(figures.get(figure)) for figure in FIGURES)
    return [
        name,
        "" if tokens is None else f"{tokens:.0f}",
        "" if published is None else size_text(published),
        "" if publish_seconds is None else f"{publish_seconds:.2f} s",
        "" if asleep is None else f"{asleep:.1f} s",
        str(figures.get("policies", "")),
    ]


def size_text(count: float) -> str:
    """Bytes: ``3.4 MB``."""
    place = 0
    while count >= 999.5 and place < len(UNITS) - 1:
        count, place = count / 1000, place + 1
    return f"{count:.0f} {UNITS[place]}" if place == 0 or count >= 99.5 else f"{count:.1f} {UNITS[place]}"


class ProcessMeans:
    """Of every figure of every process, over the steps of a run."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, float]] = {}
        self._steps: dict[str, int] = {}
        self._policies: dict[str, str] = {}

    def add_row(self, row: Mapping[str, Any]) -> None:
        """A row of ``timings.jsonl``."""
        for name, figures in processes_of(row).items():
            self._steps[name] = self._steps.get(name, 0) + 1
            self._policies[name] = str(figures.get("policies", ""))
            sums = self._sums.setdefault(name, {})
            for figure in FIGURES:
                value = _finite_or_none(figures.get(figure))
                if value is not None:
                    sums[figure] = sums.get(figure, 0.0) + value

    def mean_rows(self) -> list[dict[str, Any]]:
        """One for each process: its name, ``policies``, ``steps``, and the means; no key where there is no figure."""
        return [
            {
                "name": name,
                "policies": self._policies[name],
                "steps": steps,
                **{figure: total / steps for figure, total in self._sums[name].items()},
            }
            for name, steps in self._steps.items()
        ]


def _finite_or_none(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)
