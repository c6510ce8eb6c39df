"""A comparison as a short Markdown table, to be committed next to its curves.

Nothing in it says on which machine it was made: paths in the names of recipes and in settings lose their folders.
Labels are escaped for Markdown and HTML alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.core.verbosity import MAX_CHARS, escape_terminal
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
        rows_at_budget = [row for row in shown_rows if row["at"] == at]
        if rows_at_budget:
            budget = budget_in_words(at, dict(budgets))
            problems = "test problems" if at == "end" else "validation problems, read off the curves"
            title = f"{budget[:1].upper()}{budget[1:]}, on {problems}"
            parts += [f"## {title}", _figures_table(rows_at_budget, roles)]

    needed = table_section("Needed to reach a level", needed_cells(runs, budgets))
    if needed:
        title, table = needed
        parts += [title, NEEDED_LEAD, table]
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
    """Whether the file has a row of the table. At a budget these are the figures that have a curve; at the end:

    - the headlines
    - ``gap``: how much more a verifier calls right than is right
    - accuracy on further sets of problems
    - ``update_sparsity``: how much of a policy's weights changed
    """
    if row["at"] != "end":
        return is_main(row["metric"])
    name = parse_metric_name(row["metric"], roles)
    is_further_accuracy = name.split != "" and name.metric in ("pass@1", "balanced_accuracy")
    is_other = row["metric"] == "gap" or name.metric == "update_sparsity"
    return is_headline(row["metric"]) or is_further_accuracy or is_other


def _setting_list(compare: Mapping[str, Any], runs: Runs) -> str:
    seeds = map(str, sorted({int(seed) for seeds_of_recipe in runs.values() for seed in seeds_of_recipe}))
    overrides = ", ".join(map(escape_markdown, compare.get("settings", ()))) or "none"
    lines = [f"- seeds {', '.join(map(escape_markdown, seeds))}", f"- settings: {overrides}"]
    lines += [f"- {escape_markdown(sentence, MAX_CHARS)}" for sentence in about_sentences(compare)]
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
            words = "reference"
            if row["words"]:
                words = f"against {escape_markdown(reference)}: {escape_markdown(row['words'])}"
            label = escape_markdown(label_of(row["metric"], roles))
            lines.append(
                f"| {label} | {escape_markdown(row['recipe'])} | {estimate_text(before, share)} | "
                f"{estimate_text(after, share)} | {words} |"
            )
    return "\n".join(["| figure | recipe | before | then | difference |", "|---|---|---|---|---|", *lines])
