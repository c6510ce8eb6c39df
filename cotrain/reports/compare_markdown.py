"""A comparison as a short Markdown table, to be committed next to its curves.

Nothing in it says on which machine it was made: paths in the names of recipes and in settings lose their folders.
Labels are escaped for Markdown and HTML alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.core.verbosity import escape_terminal
from cotrain.reports.compare_overview import (
    TextTable,
    about_sentences,
    alarm_cells,
    cost_cells,
    estimate_text,
    headline_cells,
    needed_cells,
    rate_cells,
    setting_cells,
    verdict_cells,
)
from cotrain.reports.compare_table import (
    Runs,
    group_by_figure,
    is_headline,
    is_main,
    is_share,
    label_of,
    roles_in,
    runs_of,
    strip_folders,
)
from cotrain.reports.compare_words import AXES, budget_in_words
from cotrain.reports.guide import parse_metric_name

NEEDED_LEAD = "Where the mean curve first passes the level; in brackets the smallest and largest crossing of one seed."


def comparison_markdown(compare: Mapping[str, Any], pictures: Sequence[str]) -> str:
    """The whole file. ``compare`` is the content of compare.json with its table; ``pictures`` are files next to it."""
    runs = runs_of(compare)
    rows = compare["table"]
    budgets = compare["budgets"]
    roles = roles_in({row["metric"] for row in rows})
    shown_rows = [row for row in rows if _is_shown(row, roles)]
    parts = [f"# {', '.join(escape_markdown(name) for name in runs)}", _setting_list(compare, runs)]
    parts += table_section("At the start and at the end", headline_cells(compare))
    parts += table_section("What it cost, means over seeds", cost_cells(compare))
    parts += table_section("Alarms", alarm_cells(compare))
    parts += [f"![{name.partition('.')[0]}]({name})" for name in pictures]
    for at in ("end", *AXES):
        if rows_at_budget := [row for row in shown_rows if row["at"] == at]:
            budget_words = budget_in_words(at, dict(budgets))
            where = "test problems" if at == "end" else "validation problems, read off the curves"
            parts += [
                f"## {budget_words[:1].upper()}{budget_words[1:]}, on {where}",
                _figures_table(rows_at_budget, roles),
            ]

    needed = table_section("Needed to reach a level", needed_cells(runs, budgets))
    parts += [*needed[:1], NEEDED_LEAD, *needed[1:]] if needed else []
    for whose, cells in verdict_cells(rows):
        parts += table_section(f"Verdicts at the end, {escape_markdown(whose)}", cells)
    parts += table_section("How it was run", setting_cells(compare))
    parts += table_section("Learning rates, chosen on validation problems", rate_cells(compare))
    return "\n\n".join(parts) + "\n"


def table_section(title: str, cells: TextTable) -> list[str]:
    """A heading and a table of text; nothing when it has no rows."""
    head, rows = cells
    if not rows:
        return []
    lines = [_table_line(head), "|---" * len(head) + "|", *map(_table_line, rows)]
    return [f"## {title}", "\n".join(lines)]


def _table_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape_markdown, cells))} |"


def escape_markdown(label: object, limit: int = 200) -> str:
    """A label as Markdown shows it literally, in a table too; of ``limit`` characters at most."""
    shown = escape_terminal(strip_folders(str(label)), limit)
    return re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", shown)


def _is_shown(row: Mapping[str, Any], roles: set[str]) -> bool:
    """At the end the headlines, what a verifier calls right beyond what is, accuracy on further sets of problems, and
    how much of a policy was changed; elsewhere the figures that have a curve."""
    if row["at"] != "end":
        return is_main(row["metric"])
    part = parse_metric_name(row["metric"], roles)
    return (
        is_headline(row["metric"])
        or row["metric"] == "gap"
        or part.metric == "update_sparsity"
        or (part.split != "" and part.metric in ("pass@1", "balanced_accuracy"))
    )


def _setting_list(compare: Mapping[str, Any], runs: Runs) -> str:
    seeds = map(str, sorted({int(seed) for seeds_of_recipe in runs.values() for seed in seeds_of_recipe}))
    settings_ = ", ".join(escape_markdown(s) for s in compare.get("settings", ())) or "none"
    lines = [
        f"- seeds {', '.join(map(escape_markdown, seeds))}",
        f"- settings: {settings_}",
        *(f"- {escape_markdown(said)}" for said in about_sentences(compare)),
    ]
    lines.append(
        "- 95 % intervals in brackets: at the end over seeds and problems, elsewhere over seeds; differences are\n"
        "  paired, and significant at p below 0.021 (five seeds), 0.017 (six) or 0.012 (ten)"
    )
    return "\n".join(lines)


def _figures_table(rows: Sequence[Mapping[str, Any]], roles: set[str]) -> str:
    lines = []
    for reference, group in group_by_figure(rows):
        for row in group:
            before, after = Estimate.from_json(row["before"]), Estimate.from_json(row["after"])
            share = is_share(row["metric"], roles, [before.value, after.value])
            words = (
                f"against {escape_markdown(reference)}: {escape_markdown(row['words'])}"
                if row["words"]
                else "reference"
            )
            label = escape_markdown(label_of(row["metric"], roles))
            lines.append(
                f"| {label} | {escape_markdown(row['recipe'])} | {estimate_text(before, share)} | "
                f"{estimate_text(after, share)} | {words} |"
            )
    return "\n".join(["| figure | recipe | before | then | difference |", "|---|---|---|---|---|", *lines])
