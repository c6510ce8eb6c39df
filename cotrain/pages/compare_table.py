"""The figures of a comparison: every recipe against a reference, at the end and at equal amounts of each cost.

The reference of a figure is the first recipe that has it: the first one of all, except where that has no such role (the
verifier's figures beside GRPO). At the end figures are those on test problems, whatever each recipe had spent by then,
and intervals are over seeds and problems; the differences are paired by seed and problem. At equal batches, tokens,
FLOPs and seconds they are read off the curves on validation problems, by linear interpolation at an amount that every
run has reached, with intervals over seeds, each of which has validation problems of its own. What is said of a
difference: ``compare_words``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotrain.core.statistics import Estimate, mean_interval, over_seeds_and_problems, smallest_seen
from cotrain.metrics.table import limits_of, meaning, rank
from cotrain.pages.compare_words import AXES, budget_in_words, difference_in_words
from cotrain.pages.guide import number, take_apart, where
from cotrain.pages.lines import Points, value_at
from cotrain.pages.read import estimates, in_order

GRID = 60  # points at which seeds are averaged
VERDICTS = (  # what is told of a judging role at the end
    "balanced_accuracy",
    "mcc",
    "step_balanced_accuracy",
    "precision",
    "recall",
    "predicted_positive",
    "base_rate",
    "right_verdict_wrong_step",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One point of a run's curve."""

    spent: Mapping[str, float]  # by axis, so far
    figures: Mapping[str, float]  # by metric


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """One run of one recipe."""

    curve: tuple[Reading, ...]  # in the order of the run
    before: Mapping[str, Estimate]
    after: Mapping[str, Estimate]
    problems: Mapping[str, Mapping[str, float]]  # metric → test problem → what it says at the end

    def points(self, metric: str, axis: str) -> list[tuple[float, float]]:
        """The curve of one metric over one of ``AXES``."""
        return sorted((r.spent[axis], r.figures[metric]) for r in self.curve if metric in r.figures and axis in r.spent)

    def at(self, metric: str, axis: str, budget: float) -> float | None:
        """The metric at a budget; None where the curve does not reach."""
        curve = self.points(metric, axis)
        return value_at(curve, budget) if curve and curve[0][0] <= budget <= curve[-1][0] else None


Runs = Mapping[str, Mapping[Any, SeedRun]]  # recipe → seed → run


def comparison_table(compare: Mapping[str, Any]) -> dict[str, Any]:
    """The content of compare.json that follows from its runs: ``{"budgets", "table", "lines"}``.

    ``budgets``: the amount of each cost at which curves are read. ``table``: rows ``{"at", "metric", "recipe",
    "reference", "before", "after", "difference", "seen", "words"}``, where ``at`` is "end" or one of ``AXES``, the
    figures are means over seeds as ``Estimate.json`` writes them, ``difference`` is this recipe minus ``reference``
    over the seeds that both have (both None for the reference itself), ``seen`` the smallest difference that could have
    been seen and ``words`` what follows; a recipe without the figure has no row. ``lines``: the same as plain text for
    a terminal, the headlines at the end only.
    """
    runs = runs_of(compare)
    budgets = budgets_of(runs)
    rows = [row for at in ("end", *budgets) for row in _rows(runs, at, budgets.get(at, math.nan))]
    return {"budgets": budgets, "table": rows, "lines": _lines(rows, next(iter(runs), ""))}


def tabled(compare: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with its table, which is made where it is not there yet."""
    return compare if "table" in compare else {**compare, **comparison_table(compare)}


def runs_of(compare: Mapping[str, Any]) -> dict[str, dict[Any, SeedRun]]:
    """recipe → seed → run, from ``{"recipes": {name: {"seeds": [{"seed", "curve": [{"spent": {axis: amount}, "figures":
    {metric: value}}, …], "before", "after", "problems"}]}}}``; what does not fit is left out."""
    recipes = compare.get("recipes")
    found: dict[str, dict[Any, SeedRun]] = {}
    for name, recipe in recipes.items() if isinstance(recipes, Mapping) else ():
        seeds = recipe.get("seeds", ()) if isinstance(recipe, Mapping) else ()
        found[str(name)] = {
            run.get("seed", i): SeedRun(
                curve=_curve(run.get("curve")),
                before=estimates(run.get("before")),
                after=estimates(run.get("after")),
                problems=run.get("problems") or {},
            )
            for i, run in enumerate(seeds)
            if isinstance(run, Mapping)
        }
    return found


def budgets_of(runs: Runs) -> dict[str, float]:
    """The largest amount of each cost that every run has reached."""
    curves = [run.curve for seeds in runs.values() for run in seeds.values()]
    if not curves or not all(curves):
        return {}
    measured = [axis for axis in AXES if all(axis in curve[-1].spent for curve in curves)]
    return {axis: min(curve[-1].spent[axis] for curve in curves) for axis in measured}


def band(
    curves: Sequence[Points], grid: int = GRID, limits: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[Points, list[tuple[float, float, float]]]:
    """Mean and 95 % band over seeds, (x, mean) and (x, low, high), on a grid over the range of x that every curve
    covers, by linear interpolation. With one curve there is no band. ``limits``: of the figure, for its band."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return [], []
    left, right = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
    own = sorted({x for c in curves for x, _ in c if left <= x <= right})
    xs = own if len(own) <= grid else [min(right, left + (right - left) * i / (grid - 1)) for i in range(grid)]
    found = [(x, mean_interval([value_at(c, x) for c in curves]).within(*limits)) for x in xs]
    return [(x, e.value) for x, e in found], [(x, e.low, e.high) for x, e in found if math.isfinite(e.low)]


def difference_bands(
    runs: Runs, metric: str, axis: str
) -> tuple[str, dict[str, tuple[Points, list[tuple[float, float, float]]]]]:
    """The reference of a figure's curves, and for every other recipe the band of its curves minus the reference's,
    paired by seed over the range that both cover."""
    curves = {
        name: {seed: curve for seed, run in seeds.items() if (curve := run.points(metric, axis))}
        for name, seeds in runs.items()
    }
    having = [name for name in curves if curves[name]]
    if not having:
        return "", {}
    reference = curves[having[0]]
    return having[0], {
        name: band([_minus(curves[name][seed], reference[seed]) for seed in curves[name] if seed in reference])
        for name in having[1:]
    }


def _minus(one: Points, other: Points) -> Points:
    left, right = max(one[0][0], other[0][0]), min(one[-1][0], other[-1][0])
    xs = sorted({x for x, _ in (*one, *other) if left <= x <= right})
    return [(x, value_at(one, x) - value_at(other, x)) for x in xs]


def label_of(metric: str, roles: set[str]) -> str:
    """``"solver: pass@1, longer problems"``."""
    part = take_apart(metric, roles)
    label = meaning(part.metric, [0.5]).label
    whose = f"{part.who}: {label}" if part.who else label
    return f"{whose}, {where(part.split)}" if part.split else whose


def open_label(name: str) -> str:
    """A recipe's name or a setting without the folders of its paths, for files that leave this machine."""
    return re.sub(r"(?<![^,=:\s\[\"'])[/.~][^,=:\s]*/", "", name)


def roles_in(metrics: Sequence[str] | set[str]) -> set[str]:
    """The roles that figures belong to."""
    return {key.split("/")[0] for key in metrics if key.count("/") == 1}


def in_reading_order(metrics: set[str]) -> list[str]:
    """Figures by role, then split, then as the guide ranks them."""
    roles = roles_in(metrics)
    order = in_order(roles)

    def place(key: str) -> tuple[int, str, str, tuple[int, int, str]]:
        part = take_apart(key, roles)
        return (order.index(part.who) if part.who in order else len(order), part.who, part.split, rank(part.metric))

    return sorted(metrics, key=place)


def is_main(metric: str) -> bool:
    """Is this one of the figures whose curves a comparison opens with?"""
    return metric.count("/") == 1 and metric.endswith(("/greedy", "/pass@1", "/balanced_accuracy"))


def is_headline(metric: str) -> bool:
    """Is this one of the figures that stand beside each other at the end? No one of them alone says what was learned:
    greedy decoding, one sample, the best of several and their vote move apart."""
    return is_main(metric) or (metric.count("/") == 1 and metric.split("/")[1].startswith(("pass@", "majority@")))


def is_share(metric: str, roles: set[str], values: Sequence[float]) -> bool:
    """Is this figure shown in per cent? ``values`` settle it for a metric that the guide does not know."""
    return meaning(take_apart(metric, roles).metric, [v for v in values if math.isfinite(v)]).share


def verdict_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Estimate]]]:
    """The judging roles' figures at the end: whose and on which problems → recipe → metric → mean over seeds."""
    roles = roles_in({row["metric"] for row in rows})
    found: dict[str, dict[str, dict[str, Estimate]]] = {}
    for row in rows:
        part = take_apart(row["metric"], roles)
        if row["at"] == "end" and part.metric in VERDICTS:
            whose = f"{part.who}, {where(part.split)}" if part.split else part.who
            figures = found.setdefault(whose, {}).setdefault(row["recipe"], {})
            figures[part.metric] = Estimate.of_json(row["after"])
    return found


def _rows(runs: Runs, at: str, budget: float) -> list[dict[str, Any]]:
    names = list(runs)
    measured = {
        key
        for seeds in runs.values()
        for run in seeds.values()
        for key in (run.after if at == "end" else {k for r in run.curve for k in r.figures})
    }
    roles = roles_in(measured)
    rows = []
    for metric in in_reading_order(measured):
        start = {name: _start(runs[name], metric, at) for name in names}
        final = {name: _final(runs[name], metric, at, budget) for name in names}
        reference = next((name for name in names if final[name]), None)
        held = [v for found in (start, final) for each in found.values() for v in each.values() if math.isfinite(v)]
        limits = limits_of(metric.rpartition("/")[2], held)
        for name in names:
            if not final[name] and not start[name]:
                continue
            change, words, seen = None, "", None
            if reference not in (None, name):
                change = over_seeds_and_problems(
                    _pairs(runs[name], runs[reference], final, name, reference, metric, at)
                )
                words = difference_in_words(change, take_apart(metric, roles).metric, verdict=at == "end")
                seen = least if math.isfinite(least := smallest_seen(change)) else None
            own = [(value, list(_said(runs[name][seed], metric, at).values())) for seed, value in final[name].items()]
            rows.append(
                {
                    "at": at,
                    "metric": metric,
                    "recipe": name,
                    "reference": None if change is None else reference,
                    "before": mean_interval(list(start[name].values())).within(*limits).json(),
                    "after": over_seeds_and_problems(own).within(*limits).json(),
                    "difference": None if change is None else change.json(),
                    "seen": seen,
                    "words": words,
                }
            )
    return rows


def _pairs(
    mine: Mapping[Any, SeedRun],
    theirs: Mapping[Any, SeedRun],
    final: Mapping[str, Mapping[Any, float]],
    name: str,
    reference: str,
    metric: str,
    at: str,
) -> list[tuple[float, list[float]]]:
    """For each seed that both have: the difference of the figures, and of what each problem says that both have."""
    found = []
    for seed, value in final[name].items():
        if seed in final[reference]:
            one, other = _said(mine[seed], metric, at), _said(theirs[seed], metric, at)
            apart = [one[problem] - other[problem] for problem in one if problem in other]
            found.append((value - final[reference][seed], apart))
    return found


def _said(run: SeedRun, metric: str, at: str) -> Mapping[str, float]:
    return run.problems.get(metric, {}) if at == "end" else {}


def _start(seeds: Mapping[Any, SeedRun], metric: str, at: str) -> dict[Any, float]:
    if at == "end":
        return {seed: run.before[metric].value for seed, run in seeds.items() if metric in run.before}
    return {seed: curve[0][1] for seed, run in seeds.items() if (curve := run.points(metric, at))}


def _final(seeds: Mapping[Any, SeedRun], metric: str, at: str, budget: float) -> dict[Any, float]:
    if at == "end":
        return {seed: run.after[metric].value for seed, run in seeds.items() if metric in run.after}
    found = {seed: run.at(metric, at, budget) for seed, run in seeds.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def by_figure(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The rows of each figure at each budget, with the recipe that the others are compared with."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["at"], row["metric"]), []).append(row)
    return [(next(row["recipe"] for row in group if row["reference"] is None), group) for group in groups.values()]


def _lines(rows: Sequence[Mapping[str, Any]], first: str) -> list[str]:
    roles = roles_in({row["metric"] for row in rows})
    lines = []
    for reference, group in by_figure([row for row in rows if row["at"] == "end" and is_headline(row["metric"])]):
        instead = "" if reference == first else f", against {reference}, the first that has it"
        lines.append(f"{label_of(group[0]['metric'], roles)}, {budget_in_words('end', {})}{instead}")
        for row in group:
            before, after = Estimate.of_json(row["before"]), Estimate.of_json(row["after"])
            shown = f"{number(before.value, share=True):>8s} → {number(after.value, share=True):>8s}"
            lines.append(f"  {row['recipe']:32s} {shown}{'  ' + row['words'] if row['words'] else ''}")
    return lines


def _curve(saved: object) -> tuple[Reading, ...]:
    found = []
    for entry in saved if isinstance(saved, list | tuple) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("spent"), Mapping):
            spent = {
                axis: float(value)
                for axis, value in entry["spent"].items()
                if isinstance(value, int | float) and math.isfinite(value)
            }
            figures = {name: e.value for name, e in estimates(entry.get("figures")).items()}
            found.append(Reading(spent=spent, figures=figures))
    return tuple(found)
