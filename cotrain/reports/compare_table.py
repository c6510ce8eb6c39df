"""The figures of a comparison: every recipe against a reference, at the end and at equal amounts of each cost.

- At the end: figures on test problems, whatever each recipe had spent by then. Intervals are over seeds and problems,
  and differences are paired by seed and problem.
- At equal batches, tokens, FLOPs and seconds: read off the curves on validation problems, by linear interpolation at an
  amount that every run has reached. Intervals are over seeds, each of which has validation problems of its own.

The reference of a figure is the first recipe that has it. This is the first recipe of the comparison, unless that one
has no such role: GRPO has no verifier. ``compare_words`` puts differences into words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotrain.core.statistics import Estimate, mean_interval, over_seeds_and_problems, smallest_significant
from cotrain.metrics.table import labelled_metric, limits_of, table_rank
from cotrain.reports.compare_words import AXES, budget_in_words, difference_in_words
from cotrain.reports.guide import display_order, number_text, parse_estimates, parse_metric_name, split_label
from cotrain.reports.lines import Points, value_at

GRID = 60  # points at which seeds are averaged
VERDICTS = (  # figures of a verifier at the end
    "balanced_accuracy",
    "mcc",
    "step_balanced_accuracy",
    "error_precision",
    "error_recall",
    "predicted_positive",
    "base_rate",
    "right_verdict_wrong_step",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One point of a run's curve."""

    spent: Mapping[str, float]  # by axis, so far
    figures: Mapping[str, float]  # by metric


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """One run of one recipe."""

    curve: tuple[CurvePoint, ...]  # in the order of the run
    before: Mapping[str, Estimate]
    after: Mapping[str, Estimate]
    problems: Mapping[str, Mapping[str, float]]  # metric → test problem → the metric on it at the end

    def metric_curve(self, metric: str, axis: str) -> list[tuple[float, float]]:
        """The curve of one metric over one of ``AXES``."""
        points = [point for point in self.curve if metric in point.figures and axis in point.spent]
        return sorted((point.spent[axis], point.figures[metric]) for point in points)

    def value_at_budget(self, metric: str, axis: str, budget: float) -> float | None:
        """The metric at a budget; None where the curve does not reach."""
        curve = self.metric_curve(metric, axis)
        if not curve:
            return None
        first, _ = curve[0]
        last, _ = curve[-1]
        return value_at(curve, budget) if first <= budget <= last else None


Runs = Mapping[str, Mapping[Any, SeedRun]]  # recipe → seed → run


def comparison_table(compare: Mapping[str, Any]) -> dict[str, Any]:
    """The content of compare.json that follows from its runs.

    ::

        budgets         axis → the amount at which curves are read
        table           a row for each figure of each recipe that has it, with these cells:
            at          "end", or one of ``AXES``
            metric, recipe
            reference   the recipe that this one is compared with; None in the row of the reference itself
            before, after   means over seeds, as ``Estimate.to_json`` writes them
            difference  this recipe minus the reference, over the seeds that both have; None for the reference
            seen        the smallest difference that would have been significant
            words       the difference in words
        lines           the headlines at the end as plain text, for a terminal
    """
    runs = runs_of(compare)
    budgets = budgets_of(runs)
    rows: list[dict[str, Any]] = []
    for at in ("end", *budgets):
        rows += _table_rows(runs, at, budgets.get(at, math.nan))
    return {"budgets": budgets, "table": rows, "lines": _terminal_lines(rows, next(iter(runs), ""))}


def with_table(compare: Mapping[str, Any]) -> Mapping[str, Any]:
    """compare.json with its table, which older files lack: it follows from the runs."""
    return compare if "table" in compare else {**compare, **comparison_table(compare)}


def runs_of(compare: Mapping[str, Any]) -> dict[str, dict[Any, SeedRun]]:
    """recipe → seed → run, from compare.json; what does not have this form is left out.

    ::

        {"recipes": {name: {"seeds": [{"seed", "curve", "before", "after", "problems"}, …]}}}
        curve: [{"spent": {axis: amount}, "figures": {metric: value}}, …]
    """
    recipes = compare.get("recipes")
    runs: dict[str, dict[Any, SeedRun]] = {}
    if not isinstance(recipes, Mapping):
        return runs
    for name, recipe in recipes.items():
        by_seed: dict[Any, SeedRun] = {}
        saved_runs = recipe.get("seeds", ()) if isinstance(recipe, Mapping) else ()
        for number, run in enumerate(saved_runs):
            if isinstance(run, Mapping):
                by_seed[run.get("seed", number)] = SeedRun(
                    curve=_parse_curve(run.get("curve")),
                    before=parse_estimates(run.get("before")),
                    after=parse_estimates(run.get("after")),
                    problems=run.get("problems") or {},
                )
        runs[str(name)] = by_seed
    return runs


def budgets_of(runs: Runs) -> dict[str, float]:
    """The largest amount of each cost that every run has reached."""
    curves = [run.curve for seeds in runs.values() for run in seeds.values()]
    if not curves or not all(curves):
        return {}
    spent_at_end = [curve[-1].spent for curve in curves]
    budgets = {}
    for axis in AXES:
        if all(spent.get(axis) is not None for spent in spent_at_end):
            budgets[axis] = min(spent[axis] for spent in spent_at_end)
    return budgets


def figures_on_curves(runs: Runs) -> set[str]:
    """The figures that a curve of any run has."""
    figures: set[str] = set()
    for seeds in runs.values():
        for run in seeds.values():
            for point in run.curve:
                figures.update(point.figures)
    return figures


def mean_band(
    curves: Sequence[Points], grid: int = GRID, limits: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[Points, list[tuple[float, float, float]]]:
    """Mean and 95 % band over seeds, (x, mean) and (x, low, high), on a grid over the range of x that every curve
    covers, by linear interpolation. With one curve there is no band. ``limits``: of the figure, for its band."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return [], []
    left = max(curve[0][0] for curve in curves)
    right = min(curve[-1][0] for curve in curves)
    measured_xs: set[float] = set()
    for curve in curves:
        measured_xs.update(x for x, _ in curve if left <= x <= right)
    xs = sorted(measured_xs)
    if len(xs) > grid:
        xs = [min(right, left + (right - left) * i / (grid - 1)) for i in range(grid)]

    mean = []
    band = []
    for x in xs:
        interval = mean_interval([value_at(curve, x) for curve in curves]).clip_to(*limits)
        mean.append((x, interval.value))
        if math.isfinite(interval.low):
            band.append((x, interval.low, interval.high))
    return mean, band


def curves_of(runs: Runs, metric: str, axis: str) -> dict[str, dict[Any, Points]]:
    """Recipe → seed → the curve of a figure over a cost, where there is one."""
    curves: dict[str, dict[Any, Points]] = {}
    for name, seeds in runs.items():
        all_curves = {seed: run.metric_curve(metric, axis) for seed, run in seeds.items()}
        curves[name] = {seed: curve for seed, curve in all_curves.items() if curve}
    return curves


def difference_bands(
    runs: Runs, metric: str, axis: str
) -> tuple[str, dict[str, tuple[Points, list[tuple[float, float, float]]]]]:
    """The reference of a figure's curves, and for every other recipe the band of its curves minus the reference's,
    paired by seed over the range that both cover."""
    curves = curves_of(runs, metric, axis)
    measured_names = [name for name in curves if curves[name]]
    if not measured_names:
        return "", {}
    reference_name, *other_names = measured_names
    reference = curves[reference_name]
    bands = {}
    for name in other_names:
        differences = []
        for seed, curve in curves[name].items():
            if seed in reference:
                differences.append(_subtract_curves(curve, reference[seed]))
        bands[name] = mean_band(differences)
    return reference_name, bands


def _subtract_curves(one: Points, other: Points) -> Points:
    left = max(one[0][0], other[0][0])
    right = min(one[-1][0], other[-1][0])
    xs = sorted({x for x, _ in (*one, *other) if left <= x <= right})
    return [(x, value_at(one, x) - value_at(other, x)) for x in xs]


def label_of(metric: str, roles: set[str]) -> str:
    """``"solver: pass@1, longer problems"``."""
    name = parse_metric_name(metric, roles)
    label = labelled_metric(name.metric).label
    if name.who:
        label = f"{name.who}: {label}"
    if name.split:
        label += f", {split_label(name.split)}"
    return label


def strip_folders(name: str) -> str:
    """A recipe's name or a setting without the folders of its paths, for files that leave this machine:
    ``/home/me/mine.py:brief`` becomes ``mine.py:brief``."""
    return re.sub(r"(?<![^,=:\s\[\"'])[/.~][^,=:\s]*/", "", name)


def roles_in(metrics: Sequence[str] | set[str]) -> set[str]:
    """The roles that figures belong to."""
    return {key.split("/")[0] for key in metrics if key.count("/") == 1}


def in_reading_order(metrics: set[str]) -> list[str]:
    """Figures by role, then split, then as the guide ranks them."""
    roles = roles_in(metrics)
    order = display_order(roles)

    def sort_key(key: str) -> tuple[int, str, str, tuple[int, int, str]]:
        part = parse_metric_name(key, roles)
        return (
            order.index(part.who) if part.who in order else len(order),
            part.who,
            part.split,
            table_rank(part.metric),
        )

    return sorted(metrics, key=sort_key)


def is_main(metric: str) -> bool:
    """Whether this is one of the figures whose curves a comparison opens with."""
    return metric.count("/") == 1 and metric.endswith(("/greedy", "/pass@1", "/balanced_accuracy"))


def is_headline(metric: str) -> bool:
    """Whether this is one of the figures that are shown next to each other at the end: greedy decoding, one sample, the
    best of several, and their vote. They can change in different directions, so none of them is shown alone."""
    if is_main(metric):
        return True
    _, *names = metric.split("/")
    return len(names) == 1 and names[0].startswith(("pass@", "majority@"))


def is_share(metric: str, roles: set[str], values: Sequence[float]) -> bool:
    """Whether this figure is shown in per cent. ``values`` settle it for a metric that the guide does not know."""
    name = parse_metric_name(metric, roles).metric
    known = [value for value in values if math.isfinite(value)]
    return labelled_metric(name, known).is_share


def verdict_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Estimate]]]:
    """The judging roles' figures at the end: whose and on which problems → recipe → metric → mean over seeds."""
    roles = roles_in({row["metric"] for row in rows})
    recipes_by_role: dict[str, dict[str, dict[str, Estimate]]] = {}
    for row in rows:
        part = parse_metric_name(row["metric"], roles)
        if row["at"] == "end" and part.metric in VERDICTS:
            whose = f"{part.who}, {split_label(part.split)}" if part.split else part.who
            figures = recipes_by_role.setdefault(whose, {}).setdefault(row["recipe"], {})
            figures[part.metric] = Estimate.from_json(row["after"])
    return recipes_by_role


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One figure of all recipes, at the end or at one amount of a cost."""

    at: str  # "end" or one of ``AXES``
    metric: str
    start: Mapping[str, Mapping[Any, float]]  # recipe → seed → value
    final: Mapping[str, Mapping[Any, float]]  # the same at the end, or at the amount

    @property
    def reference(self) -> str | None:
        """The first recipe that has it."""
        return next((name for name, values in self.final.items() if values), None)

    @property
    def limits(self) -> tuple[float, float]:
        """The range of the metric, to which intervals are clipped."""
        values: list[float] = []
        for by_seed in (*self.start.values(), *self.final.values()):
            values += [value for value in by_seed.values() if math.isfinite(value)]
        return limits_of(self.metric.rpartition("/")[2], values)


def _table_rows(runs: Runs, at: str, budget: float) -> list[dict[str, Any]]:
    measured = _figures_at_end(runs) if at == "end" else figures_on_curves(runs)
    roles = roles_in(measured)
    rows = []
    for metric in in_reading_order(measured):
        start = {name: _start_values(runs[name], metric, at) for name in runs}
        final = {name: _final_values(runs[name], metric, at, budget) for name in runs}
        figure = _Figure(at=at, metric=metric, start=start, final=final)
        label = parse_metric_name(metric, roles).metric
        rows += [_table_row(runs, figure, name, label) for name in runs if final[name] or start[name]]
    return rows


def _figures_at_end(runs: Runs) -> set[str]:
    figures: set[str] = set()
    for seeds in runs.values():
        for run in seeds.values():
            figures.update(run.after)
    return figures


def _table_row(runs: Runs, figure: _Figure, name: str, label: str) -> dict[str, Any]:
    """The row of one recipe, as ``comparison_table`` says. ``label``: the figure's name without role and split."""
    change = None
    smallest = None
    words = ""
    if figure.reference not in (None, name):
        change = over_seeds_and_problems(_seed_differences(runs, figure, name, str(figure.reference)))
        words = difference_in_words(change, label, verdict=figure.at == "end")
        if math.isfinite(smallest_significant(change)):
            smallest = smallest_significant(change)

    seed_values = []
    for seed, value in figure.final[name].items():
        of_problems = _problem_values(runs[name][seed], figure.metric, figure.at)
        seed_values.append((value, list(of_problems.values())))
    return {
        "at": figure.at,
        "metric": figure.metric,
        "recipe": name,
        "reference": None if change is None else figure.reference,
        "before": mean_interval(list(figure.start[name].values())).clip_to(*figure.limits).to_json(),
        "after": over_seeds_and_problems(seed_values).clip_to(*figure.limits).to_json(),
        "difference": None if change is None else change.to_json(),
        "seen": smallest,
        "words": words,
    }


def _seed_differences(runs: Runs, figure: _Figure, name: str, reference: str) -> list[tuple[float, list[float]]]:
    """For each seed that both recipes have: the difference of the figure, and its differences on shared problems."""
    differences = []
    for seed, value in figure.final[name].items():
        if seed not in figure.final[reference]:
            continue
        own = _problem_values(runs[name][seed], figure.metric, figure.at)
        other = _problem_values(runs[reference][seed], figure.metric, figure.at)
        of_problems = [own[problem] - other[problem] for problem in own if problem in other]
        differences.append((value - figure.final[reference][seed], of_problems))
    return differences


def _problem_values(run: SeedRun, metric: str, at: str) -> Mapping[str, float]:
    return run.problems.get(metric, {}) if at == "end" else {}


def _start_values(seeds: Mapping[Any, SeedRun], metric: str, at: str) -> dict[Any, float]:
    if at == "end":
        return {seed: run.before[metric].value for seed, run in seeds.items() if metric in run.before}
    values = {}
    for seed, run in seeds.items():
        curve = run.metric_curve(metric, at)
        if curve:
            _, values[seed] = curve[0]
    return values


def _final_values(seeds: Mapping[Any, SeedRun], metric: str, at: str, budget: float) -> dict[Any, float]:
    if at == "end":
        return {seed: run.after[metric].value for seed, run in seeds.items() if metric in run.after}
    values = {seed: run.value_at_budget(metric, at, budget) for seed, run in seeds.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def group_by_figure(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The rows of each figure at each budget, with the recipe that the others are compared with."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["at"], row["metric"]), []).append(row)
    with_reference = []
    for group in groups.values():
        references = [row["recipe"] for row in group if row["reference"] is None]
        with_reference.append((references[0], group))
    return with_reference


def _terminal_lines(rows: Sequence[Mapping[str, Any]], first: str) -> list[str]:
    """The headlines at the end. ``first``: the comparison's first recipe."""
    roles = roles_in({row["metric"] for row in rows})
    lines = []
    headlines = [row for row in rows if row["at"] == "end" and is_headline(row["metric"])]
    for reference, group in group_by_figure(headlines):
        title = f"{label_of(group[0]['metric'], roles)}, {budget_in_words('end', {})}"
        if reference != first:
            title += f", against {reference}, the first that has it"
        lines.append(title)
        for row in group:
            before = number_text(Estimate.from_json(row["before"]).value, share=True)
            after = number_text(Estimate.from_json(row["after"]).value, share=True)
            line = f"  {row['recipe']:32s} {before:>8s} → {after:>8s}"
            if row["words"]:
                line += f"  {row['words']}"
            lines.append(line)
    return lines


def _parse_curve(saved: object) -> tuple[CurvePoint, ...]:
    points = []
    for entry in saved if isinstance(saved, list | tuple) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("spent"), Mapping):
            spent = {
                axis: float(value)
                for axis, value in entry["spent"].items()
                if isinstance(value, int | float) and math.isfinite(value)
            }
            figures = {name: e.value for name, e in parse_estimates(entry.get("figures")).items()}
            points.append(CurvePoint(spent=spent, figures=figures))
    return tuple(points)
