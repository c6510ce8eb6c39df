"""Curves of several runs in one picture: the mean over seeds and its 95 % band, for each arm, over each cost.

A point of a curve is what a run had spent, and what was measured then: held-out figures, or figures of training. Of
training, neighbouring steps are averaged so that at most ``BLOCKS`` points are left. Bands need three seeds; each is
over the range that every seed covers (``compare_table.mean_band``). Differences are paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from cotrain.metrics.table import limits_of
from cotrain.reports.compare_table import (
    CurvePoint,
    Runs,
    SeedRun,
    difference_bands,
    figures_on_curves,
    in_reading_order,
    is_main,
    is_share,
    label_of,
    mean_band,
    parse_metric_name,
    roles_in,
)
from cotrain.reports.curves import Curves

BLOCKS = 60  # most points of a run's training
MOST_METRICS = 60  # most metrics of a page, for held-out figures and for those of training
SHOWN = ("accuracy", "step_accuracy", "majority_share", "predicted_positive", "base_rate", "entropy", "length",
         "truncated", "parse_failures", "balanced_accuracy", "step_balanced_accuracy", "true_positive_rate",
         "true_negative_rate", "error_precision", "error_recall", "kl", "zero_spread_groups",
         "sampler_trainer_diff")  # fmt: skip


def held_out_run(curves: Curves) -> SeedRun:
    """The evaluations of one run."""
    spent = curves.spent_at_steps([row["step"] for row in curves.held_out])
    points = []
    for cost, row in zip(spent, curves.held_out, strict=True):
        figures = {name: value for name, value in row.items() if not _is_cost(name)}
        points.append(CurvePoint(spent={**cost, "step": row["step"] + 1.0}, figures=figures))
    return _run_of_points(points)


def _is_cost(name: str) -> bool:
    """Whether an entry of an evaluation's row is a cost, which is read from ``spent_at_steps``."""
    return name in ("step", "tokens") or name.startswith("updates/")


def training_run(curves: Curves) -> SeedRun:
    """The steps of one run, in blocks."""
    rows = curves.rows
    spent = curves.spent_by_row()
    size = max(1, math.ceil(len(rows) / BLOCKS))  # rows of a block
    points = []
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        names = {name for row in block for name in row if _is_shown(name)}
        means = {}
        for name in names:
            values = [row[name] for row in block if name in row]
            means[name] = sum(values) / len(values)
        last_row = start + len(block) - 1
        points.append(CurvePoint(spent=spent[last_row], figures=means))
    return _run_of_points(points)


def _is_shown(name: str) -> bool:
    """Whether a figure of training has a curve: "gap", ``SHOWN`` and rewards, such as solver/reward/format."""
    who, _, metric = name.partition("/")
    is_reward = metric.startswith("reward/") and metric.count("/") == 1 and who != ""
    return name == "gap" or metric in SHOWN or is_reward


def _run_of_points(points: list[CurvePoint]) -> SeedRun:
    """A run that has a curve, and no figures before and after it."""
    return SeedRun(curve=tuple(points), before={}, after={}, problems={})


def is_training_headline(name: str) -> bool:
    """Whether this is one of the figures of training that are shown first: rewards, and the truth."""
    metric = name.partition("/")[2]
    is_reward = metric.startswith("reward/")
    is_minor = metric in ("reward/format", "reward/class_label", "reward/label")
    return name == "gap" or (is_reward and not is_minor) or metric in ("accuracy", "balanced_accuracy")


def bands_of(runs: Runs, *, differences: bool, first: Callable[[str], bool] = is_main) -> dict[str, Any]:
    """``{"axes", "metrics": [{"key", "label", "share", "main"}], "curves": {axis: {metric: {arm: {"x", "mean", "low",
    "high"}}}}, "apart": {axis: {metric: {"reference", "arms": …}}}}``; "low" and "high" are [] without a band."""
    measured = figures_on_curves(runs)
    roles = roles_in(measured)
    keys = sorted(in_reading_order(measured), key=lambda key: not first(key))[:MOST_METRICS]
    axes = _shared_axes(runs)
    curves: dict[str, dict[str, Any]] = {axis: {} for axis in axes}
    apart: dict[str, dict[str, Any]] = {axis: {} for axis in axes}
    metrics = []
    for key in keys:
        values = _values_on_curves(runs, key)
        limits = limits_of(parse_metric_name(key, roles).metric)
        metrics.append(
            {
                "key": key,
                "label": label_of(key, roles),
                "share": is_share(key, roles, values),
                "main": first(key),
            }
        )
        for axis in axes:
            curves[axis][key] = _arm_lines(runs, key, axis, limits)
            lines = _difference_lines(runs, key, axis) if differences and is_main(key) else None
            if lines is not None:
                apart[axis][key] = lines
    return {"axes": axes, "metrics": metrics, "curves": curves, "apart": apart}


def _arm_lines(runs: Runs, key: str, axis: str, limits: tuple[float, float]) -> dict[str, Any]:
    """Arm → the mean of a figure over its seeds, with its band; nothing of an arm without a curve."""
    lines = {}
    for name, seeds in runs.items():
        mean, spread = mean_band([run.metric_curve(key, axis) for run in seeds.values()], limits=limits)
        if mean:
            lines[name] = _chart_line(mean, spread)
    return lines


def _difference_lines(runs: Runs, key: str, axis: str) -> dict[str, Any] | None:
    """The reference, and arm → its difference from that; None where there is no difference."""
    reference, bands = difference_bands(runs, key, axis)
    lines = {name: _chart_line(mean, spread) for name, (mean, spread) in bands.items() if mean}
    return {"reference": reference, "arms": lines} if lines else None


def _values_on_curves(runs: Runs, key: str) -> list[float]:
    """All values of a figure, of all points of all runs."""
    values = []
    for seeds in runs.values():
        for run in seeds.values():
            values += [point.figures[key] for point in run.curve if key in point.figures]
    return values


def _shared_axes(runs: Runs) -> list[str]:
    """The costs that every run was measured in."""
    axis_sets = []
    for seeds in runs.values():
        axis_sets += [set(run.curve[-1].spent) for run in seeds.values() if run.curve]
    common = set.intersection(*axis_sets) if axis_sets else set()
    if "batches" in common:  # a batch is a step, so one of the two axes would repeat the other
        common.discard("step")
    order = ("batches", "step", "tokens", "flops", "seconds")
    updates = sorted(axis for axis in common if axis.startswith("updates/"))
    return [*(axis for axis in order if axis in common), *updates]


def _chart_line(mean: Any, spread: Any) -> dict[str, list[float]]:
    """``mean``: (x, y); ``spread``: (x, low, high), which is left out unless it has every x."""
    whole = len(spread) == len(mean)
    return {
        "x": [_five_digits(x) for x, _ in mean],
        "mean": [_five_digits(y) for _, y in mean],
        "low": [_five_digits(low) for _, low, _ in spread] if whole else [],
        "high": [_five_digits(high) for _, _, high in spread] if whole else [],
    }


def _five_digits(value: float) -> float:
    return float(f"{value:.5g}")


def seed_runs_of(curves: Mapping[str, Mapping[Any, Curves]], *, training: bool) -> dict[str, dict[Any, SeedRun]]:
    """Arm → seed → the run that ``bands_of`` draws. A run without a curve is left out."""
    to_seed_run = training_run if training else held_out_run
    runs: dict[str, dict[Any, SeedRun]] = {}
    for arm, seeds in curves.items():
        all_runs = {seed: to_seed_run(curves_of_seed) for seed, curves_of_seed in seeds.items()}
        runs[arm] = {seed: run for seed, run in all_runs.items() if run.curve}
    return runs
