"""The rows of ``metrics.jsonl`` as columns that a chart can draw: aligned, finite, and no more points than a screen
shows.

- On the axis "step" a point is at the number of finished steps, as the console counts: the row of step 0 is at 1, an
  evaluation of the start at 0.
- A point of a long run is the mean of several neighbouring rows. Alarms are looked for in all rows.
- A metric of an objective, ``generator/generator/loss``, is shown under the name of its policy, ``generator/loss``.
- Infinite and missing values are None.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import KeysView, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.metrics.alarms import Alarm, Monitor
from cotrain.metrics.starved import ENOUGH_PROBLEMS
from cotrain.metrics.table import labelled_metric
from cotrain.reports.follow import JsonlReader
from cotrain.reports.guide import display_order, parse_metric_name, split_key

# -- What each process of a run did, from the keys ``process/{process}/…`` of a row. A run in one process has none.


PREFIX = "process/"
TITLES = ("process", "tokens/s", "published", "in", "asleep", "holds")
FIGURES = ("tokens_per_second", "published_bytes", "publish_seconds", "asleep_seconds")
UNITS = ("B", "kB", "MB", "GB", "TB")


def processes_of(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of each process, by its name."""
    figures_by_process: dict[str, dict[str, Any]] = {}
    for key, value in row.items():
        if not key.startswith(PREFIX):
            continue
        process, _, figure = key.removeprefix(PREFIX).rpartition("/")
        if process:
            figures_by_process.setdefault(process, {})[figure] = value
    return figures_by_process


def process_cells(name: str, figures: Mapping[str, Any]) -> list[str]:
    """The cells of a process in the live table, under ``TITLES``; "" without a figure."""
    tokens, published, publish_seconds, asleep = (finite_number(figures.get(figure)) for figure in FIGURES)
    return [
        name,
        "" if tokens is None else f"{tokens:.0f}",
        "" if published is None else size_text(published),
        "" if publish_seconds is None else f"{publish_seconds:.2f} s",
        "" if asleep is None else f"{asleep:.1f} s",
        str(figures.get("policies", "")),
    ]


def size_text(count: float) -> str:
    """A number of bytes: ``3.4 MB``."""
    unit = 0
    while count >= 999.5 and unit < len(UNITS) - 1:  # 999.5 would be written as 1000
        count = count / 1000
        unit = unit + 1
    decimals = 0 if unit == 0 or count >= 99.5 else 1
    return f"{count:.{decimals}f} {UNITS[unit]}"


class ProcessMeans:
    """The means of every figure of every process, over the steps of a run."""

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
                value = finite_number(figures.get(figure))
                if value is not None:
                    sums[figure] = sums.get(figure, 0.0) + value

    def mean_rows(self) -> list[dict[str, Any]]:
        """One row for each process: its name, ``policies``, ``steps``, and the means of the figures that it has."""
        rows = []
        for name, steps in self._steps.items():
            row: dict[str, Any] = {"name": name, "policies": self._policies[name], "steps": steps}
            for figure, total in self._sums[name].items():
                row[figure] = total / steps
            rows.append(row)
        return rows


POINTS = 800  # most points of a curve
LARGEST = 1e300  # a larger number counts as infinite
STAGES = ("rollout", "annotate", "credit", "reference", "update")  # of a step, with their seconds in timings.jsonl
AXES = ("step", "tokens")  # keys of a row that rise from row to row

Values = dict[str, float]


class Curves:
    """The metrics of a run, as far as they have been read."""

    def __init__(self, directory: Path, *, problems: int = ENOUGH_PROBLEMS) -> None:
        """``problems``: number of problems in a step; some alarms need ``ENOUGH_PROBLEMS``."""
        self._problems = problems
        self._metrics = JsonlReader(directory / "metrics.jsonl")
        self._timings = JsonlReader(directory / "timings.jsonl")
        self._summary = directory / "summary.json"  # there when the run has ended
        self._clear()

    def _clear(self) -> None:
        self.rows: list[Values] = []  # rows of training steps, by canonical names
        self.phases: list[str] = []
        self.held_out: list[Values] = []  # rows of evaluations, without "eval/"
        self.last: dict[str, Any] = {}  # the last row of training as it is in the file
        self._monitor = Monitor(problems=self._problems)
        self._unwatched: deque[dict[str, Any]] = deque()  # rows that the monitor has not seen
        self._seconds: dict[int, float] = {}  # step → how long it took
        self.processes = ProcessMeans()  # empty for a run in one process
        self.names: set[str] = set()  # of all metrics of training
        self._last_names: KeysView[str] = {}.keys()  # of the last row: ``names`` is updated when they change
        self._operations: tuple[str, ...] = ()  # names of counts of floating-point operations
        self._flops: list[float] = []  # operations of each row

    @property
    def damaged_lines(self) -> int:
        return self._metrics.damaged

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms of the rows that ``watch_rows`` has seen."""
        return self._monitor.alarms

    @property
    def unwatched_count(self) -> int:
        """The number of rows that ``watch_rows`` has not seen."""
        return len(self._unwatched)

    def watch_rows(self, rows: int) -> bool:
        """Look for alarms in so many more rows; False when there are none left."""
        for _ in range(min(rows, len(self._unwatched))):
            self._monitor.add_row(self._unwatched.popleft())
        if not self._unwatched and self._summary.is_file():
            self._monitor.end_run()
        return bool(self._unwatched)

    def read_new(self) -> bool:
        """Read what is new; returns whether there was anything."""
        new_rows, was_cut = self._metrics.read_new()
        if was_cut:
            self._clear()
            self._timings = JsonlReader(self._timings.path)
        times, _ = self._timings.read_new()
        for row in times:
            step = row.get("step")
            if not isinstance(step, int):
                continue
            seconds = [finite_number(row.get(key)) for key in STAGES]
            self._seconds[step] = sum(number for number in seconds if number is not None)
            self.processes.add_row(row)

        for row in new_rows:
            self._add_row(row)
        return bool(new_rows or was_cut)

    def _add_row(self, row: Mapping[str, Any]) -> None:
        if finite_number(row.get("step")) is None:
            return
        if row.get("kind") == "evaluation":
            figures: Values = {}
            for key, value in row.items():
                number = finite_number(value)
                if number is not None and key.startswith(("eval/", "step", "tokens", "updates/")):
                    figures[key.removeprefix("eval/")] = number
            self.held_out.append(figures)
            return
        # As ``finite_number``, without a call for each of many values.
        values: Values = {
            _CHART_NAMES[key]: value
            for key, value in row.items()
            if (value.__class__ is float or value.__class__ is int) and -LARGEST < value < LARGEST
        }
        self._unwatched.append(dict(row))
        if values.keys() != self._last_names:
            self._last_names = values.keys()
            self.names |= values.keys()
            self._operations = tuple(name for name in values if "/flops/" in name)
        self._flops.append(sum(values[name] for name in self._operations))
        self.last = dict(row)
        phase = row.get("phase")
        self.phases.append(phase if isinstance(phase, str) else "")
        self.rows.append(values)

    def phase_at(self, step: int) -> str:
        """The name of a step's phase; "" where it is not known."""
        index = bisect.bisect_left([row["step"] for row in self.rows], step)
        has_step = index < len(self.rows) and self.rows[index]["step"] == step
        return self.phases[index] if has_step else ""

    def seconds_of_last(self) -> float | None:
        """How long the last step took."""
        return self._seconds.get(int(self.rows[-1]["step"])) if self.rows else None

    def chart_columns(self) -> dict[str, Any]:
        """Everything that a page draws of training: x axes, series, and the share of a point's rows in which each
        policy was trained."""
        count = len(self.rows)
        rows = self.rows
        sums = self._running_sums()
        every = max(1, math.ceil(count / POINTS))
        spans = [(start, min(count, start + every)) for start in range(0, count, every)]  # rows of each point

        axes: dict[str, Any] = {}
        for name in AXES:
            if rows and name in rows[0]:
                axes[name] = _finished_steps(rows, spans) if name == "step" else _span_ends(rows, spans, name)
        updates = sorted(f"updates/{policy}" for policy in self._trained_policies())
        for name in ("flops", "seconds", *updates):
            if sums and name in sums[0]:
                axes[name] = _span_ends(sums, spans, name)

        series = sorted(name for name in self.names if name not in AXES and "/flops/" not in name)
        policies = display_order(self._trained_policies())
        return {
            "every": every,
            "rows": count,
            "axes": axes,
            "series": {name: _span_means(rows, spans, name) for name in series},
            "trained": {policy: _span_means(sums, spans, f"trained/{policy}", 0.0) for policy in policies},
            "phases": [self.phases[start] for start, _ in spans],
        }

    def evaluation_columns(self) -> dict[str, Any]:
        """The held-out figures: x axes and series."""
        rows = self.held_out
        if not rows:
            return {"axes": {}, "series": {}}
        spans = [(index, index + 1) for index in range(len(rows))]  # a point for each row
        spent = self.spent_at_steps([row["step"] for row in rows])
        axes = {"step": _finished_steps(rows, spans)}
        for name in spent[0]:
            if name != "batches":  # the same as steps
                axes[name] = _span_ends(spent, spans, name)

        names = sorted({name for row in rows for name in row} - {"step", "tokens"})
        figures = [name for name in names if not name.startswith("updates/")]
        return {"axes": axes, "series": {name: _span_means(rows, spans, name) for name in figures}}

    def spent_by_row(self) -> list[Values]:
        """The amounts that had been spent after each row, by the name of the axis."""
        spent_by_row = []
        for batches, (row, sums) in enumerate(zip(self.rows, self._running_sums(), strict=True), start=1):
            spent = {"batches": float(batches)}
            if "tokens" in row:
                spent["tokens"] = row["tokens"]
            for name, value in sums.items():
                if not name.startswith("trained/"):
                    spent[name] = value
            spent_by_row.append(spent)
        return spent_by_row

    def spent_at_steps(self, steps: Sequence[float]) -> list[Values]:
        """The amounts that had been spent after each of ``steps``; step −1 is the start."""
        spent = self.spent_by_row()
        steps_of_rows = [row["step"] for row in self.rows]
        nothing = dict.fromkeys(spent[0] if spent else ("batches",), 0.0)
        spent_by_step = []
        for step in steps:
            rows_before = bisect.bisect_right(steps_of_rows, step)
            spent_by_step.append(spent[rows_before - 1] if rows_before else nothing)
        return spent_by_step

    def _trained_policies(self) -> set[str]:
        """The policies that have counted updates."""
        return {name.split("/")[0] for name in self.names if name.count("/") == 1 and name.endswith("/updates")}

    def _running_sums(self) -> list[Values]:
        """For each row, the sums from the first row to this one: flops, seconds and updates/{policy}. Also
        trained/{policy}: 1 if the row's step trained the policy, else 0."""
        flops = 0.0
        seconds = 0.0
        sums_by_row = []
        updates = dict.fromkeys(self._trained_policies(), 0.0)
        has_flops = any(self._flops)
        for row, flops_of_row in zip(self.rows, self._flops, strict=True):
            sums: Values = {}
            flops += flops_of_row
            if has_flops:
                sums["flops"] = flops
            if self._seconds:
                seconds += self._seconds.get(int(row["step"]), 0.0)
                sums["seconds"] = seconds
            for policy, before in updates.items():
                updates[policy] = max(before, row.get(f"{policy}/updates", before))
                sums[f"updates/{policy}"] = updates[policy]
                sums[f"trained/{policy}"] = float(updates[policy] > before)
            sums_by_row.append(sums)
        return sums_by_row


def _span_means(
    rows: Sequence[Values], spans: Sequence[tuple[int, int]], name: str, empty: float | None = None
) -> list[Any]:
    """The mean over each span; ``empty`` for one without a value."""
    column = [row.get(name) for row in rows]
    means: list[float | None] = []
    for start, end in spans:
        values = [value for value in column[start:end] if value is not None]
        means.append(_six_digits(sum(values) / len(values)) if values else empty)
    return means


def _span_ends(rows: Sequence[Values], spans: Sequence[tuple[int, int]], name: str) -> list[float]:
    """The axis at the last row of each point, never falling."""
    ends = []
    last = 0.0
    for _, end in spans:
        last = max(last, rows[end - 1].get(name, last))
        ends.append(_six_digits(last))
    return ends


def _finished_steps(rows: Sequence[Values], spans: Sequence[tuple[int, int]]) -> list[float]:
    """How many steps were finished at the last row of each point."""
    return _span_ends([{"step": row["step"] + 1.0} for row in rows], spans, "step")


def _six_digits(value: float) -> float:
    """Rounded to six digits, which halves the size of a page."""
    return float(f"{value:.6g}")


class _ChartNames(dict[str, str]):
    """Key of a row → its name in a chart: ``generator/generator/loss`` is ``generator/loss``."""

    def __missing__(self, key: str) -> str:
        who, metric = split_key(key)
        self[key] = f"{who}/{metric}" if who else metric
        return self[key]


_CHART_NAMES = _ChartNames()


def describe_metrics(
    names: Sequence[str], roles: Sequence[str], values: Mapping[str, Sequence[float | None]]
) -> dict[str, Any]:
    """name → how to read it: whose it is, label, unit, direction, ranges, advice."""
    descriptions = {}
    for name in names:
        parsed = parse_metric_name(name, roles)
        metric = labelled_metric(parsed.metric, [value for value in values.get(name, ()) if value is not None])
        descriptions[name] = {
            "who": parsed.who,
            "name": parsed.metric,
            "split": parsed.split,
            "label": metric.label,
            "share": metric.is_share,
            "unit": metric.unit,
            "better": metric.better,
            "healthy": _finite_range(metric.healthy),
            "tolerable": _finite_range(metric.tolerable),
            "advice": metric.advice,
            "trend": metric.trend,
            "meaning": metric.meaning,
            "spoken": not metric.key.startswith("{policy}"),  # of a role, not of the weights of a policy
        }
    return descriptions


def _finite_range(limits: tuple[float, float]) -> list[float | None]:
    return [limit if math.isfinite(limit) else None for limit in limits]


def finite_number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    is_finite = (value.__class__ is float or value.__class__ is int) and -LARGEST < value < LARGEST  # bool is no number
    return float(value) if is_finite else None
