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
from cotrain.pages.compare_overview import Cells, about, alarms, costs, headlines, rates, settings
from cotrain.pages.compare_reach import levels
from cotrain.pages.compare_table import (
    VERDICTS,
    Runs,
    by_figure,
    is_headline,
    is_main,
    is_share,
    label_of,
    open_label,
    roles_in,
    runs_of,
    verdict_table,
)
from cotrain.pages.compare_words import AXES, UNITS, budget_in_words
from cotrain.pages.escape import terminal
from cotrain.pages.guide import interval, number, take_apart


def comparison_markdown(compare: Mapping[str, Any], pictures: Sequence[str]) -> str:
    """The whole file. ``compare`` is the content of compare.json with its table; ``pictures`` are files beside it."""
    runs, rows, budgets = runs_of(compare), compare["table"], compare["budgets"]
    roles = roles_in({row["metric"] for row in rows})
    wanted = [row for row in rows if _is_shown(row, roles)]
    parts = [f"# {', '.join(text(name) for name in runs)}", _setting(compare, runs)]
    parts += section("At the start and at the end", headlines(compare))
    parts += section("What it cost, means over seeds", costs(compare))
    parts += section("Alarms", alarms(compare))
    parts += [f"![{name.partition('.')[0]}]({name})" for name in pictures]
    for at in ("end", *AXES):
        if here := [row for row in wanted if row["at"] == at]:
            said = budget_in_words(at, dict(budgets))
            where = "test problems" if at == "end" else "validation problems, read off the curves"
            parts += [f"## {said[:1].upper()}{said[1:]}, on {where}", _figures(here, roles)]
    parts += _needed(runs, budgets)
    for whose, recipes in verdict_table(rows).items():
        parts += [f"## Verdicts at the end, {text(whose)}", _verdicts(recipes)]
    parts += section("How it was run", settings(compare))
    parts += section("Learning rates, chosen on validation problems", rates(compare))
    return "\n\n".join(parts) + "\n"


def section(title: str, cells: Cells) -> list[str]:
    """A heading and a table of text; nothing when it has no rows."""
    head, rows = cells
    if not rows:
        return []
    lines = [f"| {' | '.join(text(cell) for cell in row)} |" for row in (head, *rows)]
    return [f"## {title}", "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])]


def text(label: object, limit: int = 200) -> str:
    """A label as Markdown shows it literally, in a table too; of ``limit`` characters at most."""
    shown = terminal(open_label(str(label)), limit)
    return re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", shown)


def _is_shown(row: Mapping[str, Any], roles: set[str]) -> bool:
    """At the end the headlines, what a judge calls right beyond what is, accuracy on further sets of problems, and how
    much of a policy was changed; elsewhere the figures that have a curve."""
    if row["at"] != "end":
        return is_main(row["metric"])
    part = take_apart(row["metric"], roles)
    return (
        is_headline(row["metric"])
        or row["metric"] == "gap"
        or part.metric == "update_sparsity"
        or (part.split != "" and part.metric in ("pass@1", "balanced_accuracy"))
    )


def _setting(compare: Mapping[str, Any], runs: Runs) -> str:
    seeds = map(str, sorted({int(seed) for found in runs.values() for seed in found}))
    settings_ = ", ".join(text(s) for s in compare.get("settings", ())) or "none"
    lines = [
        f"- seeds {', '.join(map(text, seeds))}",
        f"- settings: {settings_}",
        *(f"- {text(said)}" for said in about(compare)),
    ]
    lines.append(
        "- 95 % intervals in brackets: at the end over seeds and problems, elsewhere over seeds; differences are\n"
        "  paired, and called only where they could have been seen with 80 % power"
    )
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
                    f"| {UNITS[axis]} to {number(level.value, share=True)}{name} | {text(r.recipe)} | {text(r.words())}"
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
