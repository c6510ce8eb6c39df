"""A comparison as a short Markdown table, to be committed beside its curves.

Nothing in it says on which machine it was made: paths in the names of recipes and in settings lose their folders.
Labels are escaped for Markdown and HTML alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.metrics.table import meaning
from cotrain.report.compare_overview import COLUMNS, COUNTS, overview
from cotrain.report.compare_reach import levels
from cotrain.report.compare_table import (
    AT,
    AXES,
    VERDICTS,
    Runs,
    by_figure,
    is_main,
    is_share,
    label_of,
    open_label,
    roles_in,
    runs_of,
    verdict_table,
)
from cotrain.report.escape import terminal
from cotrain.report.guide import interval, number, take_apart


def comparison_markdown(compare: Mapping[str, Any], pictures: Sequence[str]) -> str:
    """The whole file. ``compare`` is the content of compare.json with its table; ``pictures`` are files beside it."""
    runs, rows, budgets = runs_of(compare), compare["table"], compare["budgets"]
    roles = roles_in({row["metric"] for row in rows})
    wanted = [row for row in rows if is_main(row["metric"]) or _further(row, roles)]
    parts = [f"# {', '.join(text(name) for name in runs)}", _setting(compare, runs)]
    parts += ["## Every recipe at the end of its runs", _overview(compare)]
    parts += [f"![{name.partition('.')[0]}]({name})" for name in pictures]
    for at in AT:
        if here := [row for row in wanted if row["at"] == at]:
            budget = AT[at].format(number(round(budgets.get(at, 0.0)), share=False))
            where = "test problems" if at == "end" else "validation problems, read off the curves"
            parts += [f"## {budget.capitalize()}, on {where}", _figures(here, roles)]
    parts += _needed(runs, budgets)
    for whose, recipes in verdict_table(rows).items():
        parts += [f"## Verdicts at the end, {text(whose)}", _verdicts(recipes)]
    return "\n\n".join(parts) + "\n"


def _overview(compare: Mapping[str, Any]) -> str:
    """One row for each recipe; what it has nothing for is a dash."""
    lines = [f"| recipe | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, row in overview(compare).items():
        cells = []
        for column in COLUMNS:
            value = row.get(column)
            if not isinstance(value, Estimate):
                cells.append(text(value or "–"))
            elif column == "minutes":
                cells.append(f"{value.value:.1f}")
            elif column in COUNTS:
                cells.append(number(round(value.value), share=False))
            else:
                cells.append(_cell(value, column != "gap"))
        lines.append(f"| {text(name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def text(label: object) -> str:
    """A label as Markdown shows it literally, in a table too."""
    shown = terminal(open_label(str(label)), 200)
    return re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", shown)


def _further(row: Mapping[str, Any], roles: set[str]) -> bool:
    """Accuracy on further sets of problems, which only the end has."""
    part = take_apart(row["metric"], roles)
    return row["at"] == "end" and part.split != "" and part.metric in ("pass@1", "balanced_accuracy")


def _setting(compare: Mapping[str, Any], runs: Runs) -> str:
    seeds = sorted({str(seed) for found in runs.values() for seed in found})
    settings = ", ".join(text(s) for s in compare.get("settings", ())) or "none"
    lines = [
        f"- seeds {', '.join(map(text, seeds))}; {text(compare.get('updates', 'unknown'))} updates of the first policy;"
        f" settings: {settings}"
    ]
    for name, found in compare.get("recipes", {}).items():
        tokens = [run["tokens"] for run in found["seeds"] if "tokens" in run]
        if tokens:
            mean = number(round(sum(tokens) / len(tokens)), share=False)
            lines.append(f"- {text(name)}: {mean} tokens a run, all roles together")
    lines.append("- means over seeds with Student's 95 % interval in brackets; differences are paired by seed")
    return "\n".join(lines)


def _figures(rows: Sequence[Mapping[str, Any]], roles: set[str]) -> str:
    lines = []
    for reference, group in by_figure(rows):
        for row in group:
            before, after = Estimate.of_json(row["before"]), Estimate.of_json(row["after"])
            share = is_share(row["metric"], roles, [before.value, after.value])
            words = f"against {text(reference)}: {text(row['words'])}" if row["words"] else "reference"
            label = text(label_of(row["metric"], roles))
            lines.append(
                f"| {label} | {text(row['recipe'])} | {_cell(before, share)} | {_cell(after, share)} | {words} |"
            )
    return "\n".join(["| figure | recipe | before | then | difference |", "|---|---|---|---|---|", *lines])


def _needed(runs: Runs, budgets: Mapping[str, float]) -> list[str]:
    lines = []
    for axis in AXES:
        for level in levels(runs, axis, budgets.get(axis, math.nan)):
            name = f", {text(level.name)}" if level.name else ""
            for r in level.reached:
                lines.append(
                    f"| {axis} to {number(level.value, share=True)}{name} | {text(r.recipe)} | {text(r.words())}"
                    f" | {text(r.against())} |"
                )
    head = ["| level | recipe | needed | against the reference |", "|---|---|---|---|"]
    said = "Where the mean curve first passes the level; in brackets the smallest and largest crossing of one seed."
    return ["## Needed to reach a level", said, "\n".join([*head, *lines])] if lines else []


def _verdicts(recipes: Mapping[str, Mapping[str, Estimate]]) -> str:
    metrics = [m for m in VERDICTS if any(m in figures for figures in recipes.values())]
    lines = [
        f"| {text(name)} | {' | '.join(_cell(figures[m], True) if m in figures else '–' for m in metrics)} |"
        for name, figures in recipes.items()
    ]
    head = [f"| recipe | {' | '.join(text(meaning(m).label) for m in metrics)} |", "|---" * (len(metrics) + 1) + "|"]
    return "\n".join([*head, *lines])


def _cell(e: Estimate, share: bool) -> str:
    if math.isnan(e.value):
        return "–"
    spread = f" ({interval(e, share=share)})" if math.isfinite(e.low) else ""
    return f"{number(e.value, share=share)}{spread}"
