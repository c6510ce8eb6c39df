"""Reading a run directory for the report; whatever is absent or torn is left out and said so in ``notes``.

A run that was stopped early, or is still going, has no summary, a torn last line, perhaps no episodes: the report is
made of what is there. Numbers that are not finite are skipped, so that nothing below has to think of NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode
from cotrain.disk.ledger import Ledger
from cotrain.report.guide import split_key

ORDER = ("proposer", "solver", "generator", "verifier", "judge")  # who is shown first; others follow by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of metrics.jsonl."""

    step: int
    phase: str  # "" when the row has none
    evaluation: bool  # a row of evaluation results rather than of a training step
    values: Mapping[str, float]  # finite numbers by "who/metric"; evaluations without their "eval/" prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run directory holds."""

    directory: Path
    recipe: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()  # in order of steps; of two rows for one step the later one
    summary: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Estimate] = field(default_factory=dict)
    after: Mapping[str, Estimate] = field(default_factory=dict)
    change: Mapping[str, Estimate] = field(default_factory=dict)  # after minus before, paired by problem
    owners: Mapping[str, Sequence[str]] = field(default_factory=dict)  # metric → roles and policies that have it
    notes: tuple[str, ...] = ()  # what is missing, in plain words

    @property
    def training(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.evaluation)

    def series(self, name: str, *, evaluation: bool = False) -> list[tuple[float, float]]:
        """The points (step, value) of one metric."""
        return [
            (row.step, row.values[name]) for row in self.rows if row.evaluation == evaluation and name in row.values
        ]

    def who_has(self, metric: str) -> list[str]:
        """Who has this metric: ``["solver", "verifier"]`` for ``"length"``, in order of display."""
        return list(self.owners.get(metric, ()))


def in_order(names: Iterable[str]) -> list[str]:
    """Roles and policies in order of display."""
    return sorted(set(names), key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n))


def read_run(directory: Path) -> Run:
    """Read what there is. Raises nothing for missing or damaged parts: they become notes."""
    notes: list[str] = []
    recipe = _object(directory / "recipe.json", notes)
    provenance = _object(directory / "provenance.json", notes)
    summary = _object(directory / "summary.json", notes)
    before = summary.get("before")
    if before is None and (directory / "before.json").exists():
        before = _object(directory / "before.json", notes)
    rows = _rows(directory / "metrics.jsonl", notes)
    owners: dict[str, set[str]] = {}
    for who, metric in {split_key(name) for row in rows for name in row.values}:
        owners.setdefault(metric, set()).add(who)
    return Run(
        directory=directory,
        recipe=recipe,
        provenance=provenance,
        rows=rows,
        summary=summary,
        before=estimates(before),
        after=estimates(summary.get("after")),
        change=estimates(summary.get("change")),
        owners={metric: in_order(names) for metric, names in owners.items()},
        notes=tuple(notes),
    )


def read_episodes(directory: Path, step: int) -> tuple[Episode, ...]:
    """The episodes of one step; none when that step is absent or cannot be read."""
    try:
        return Ledger(directory / "episodes").read(step)
    except CotrainError:
        return ()


def recorded_steps(directory: Path) -> list[int]:
    """The steps whose episodes are on disk, in order."""
    try:
        return list(Ledger(directory / "episodes").steps())
    except CotrainError:
        return []


def estimates(saved: object) -> dict[str, Estimate]:
    """Estimates by metric name from JSON; a bare number has unknown bounds; anything else is left out."""
    found: dict[str, Estimate] = {}
    for name, entry in saved.items() if isinstance(saved, dict) else ():
        fields = entry if isinstance(entry, dict) else {"value": entry}
        value, low, high, n = (_number(fields.get(key)) for key in ("value", "low", "high", "n"))
        if value is not None:
            found[str(name)] = Estimate(
                value=value,
                low=-math.inf if low is None else low,
                high=math.inf if high is None else high,
                n=0 if n is None else int(n),
            )
    return found


def _rows(path: Path, notes: list[str]) -> tuple[Row, ...]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        notes.append(f"{path.name} is missing, so there are no curves")
        return ()
    rows: dict[tuple[int, bool], Row] = {}
    damaged = 0
    for line in lines:
        if not line.strip():
            continue
        row = _row(line)
        if row is None:
            damaged += 1
        else:
            rows[row.step, row.evaluation] = row
    if damaged:
        notes.append(f"{damaged} line(s) of {path.name} could not be read and were left out")
    return tuple(row for _, row in sorted(rows.items()))


def _row(line: str) -> Row | None:
    try:
        saved = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = _number(saved.get("step")) if isinstance(saved, dict) else None
    if step is None:
        return None
    evaluation = saved.get("kind") == "evaluation"
    values: dict[str, float] = {}
    for name, value in sorted(saved.items(), key=lambda item: item[0].count("/")):
        number = _number(value)
        if number is None or name == "step" or (evaluation and not name.startswith("eval/")):
            continue
        who, metric = split_key(name.removeprefix("eval/"))
        values.setdefault(f"{who}/{metric}" if who else metric, number)  # a policy's own figure before an objective's
    phase = saved.get("phase")
    return Row(step=int(step), phase=phase if isinstance(phase, str) else "", evaluation=evaluation, values=values)


def _object(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        notes.append(f"{path.name} is missing")
        return {}
    except (ValueError, RecursionError):
        notes.append(f"{path.name} is not valid JSON and was left out")
        return {}
    if not isinstance(saved, dict):
        notes.append(f"{path.name} does not hold an object and was left out")
        return {}
    return saved


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
