"""Several recipes side by side, each over several seeds: what is better, at what price, and the curves.

The x axes are four costs: batches, tokens, operations and seconds. The figures and the words come from ``compare_table``,
``compare_overview`` and ``compare_words``; this file only lays them out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.disk.files import replace_file
from cotrain.metrics.table import meaning
from cotrain.report.compare_overview import Cells, about, costs, headlines, rates, settings
from cotrain.report.compare_reach import Level, levels
from cotrain.report.compare_table import (
    VERDICTS,
    Runs,
    band,
    by_figure,
    difference_bands,
    in_reading_order,
    is_headline,
    is_main,
    is_share,
    label_of,
    roles_in,
    runs_of,
    tabled,
    verdict_table,
)
from cotrain.report.compare_words import AXES, UNITS, amount, budget_in_words
from cotrain.report.escape import page
from cotrain.report.guide import interval, number
from cotrain.report.html import document
from cotrain.report.svg import Line, chart, value_at

PALETTE = ("a", "b", "c", "d", "e", "f")
LEAD = "Read off the curves on validation problems, where every run has spent as much: no verdicts. Intervals are over seeds."
LEAD_END = (
    "On test problems, when each run had ended. Intervals (95\u202f%) are over seeds and problems, differences paired by seed and "
    "problem. A difference is called when its interval leaves out zero and it is as large as what would have been seen with "
    "80\u202f% power."
)
COSTS = (
    "Means over seeds. A batch counts whether or not something was learned from it, an update only when the weights moved. "
    "FLOPs are of all policies: prompts, sampled tokens, scoring passes and learning. Seconds are of one thread of this machine, "
    "with what ran beside."
)


def write_compare_page(compare: Mapping[str, Any], path: Path) -> None:
    """Write the page for the content of compare.json (see ``comparison_table`` for its form). Raises DiskError."""
    replace_file(path, compare_page(compare).encode("utf-8", errors="backslashreplace"))


def compare_page(compare: Mapping[str, Any]) -> str:
    """The whole page."""
    runs, whole = runs_of(compare), tabled(compare)
    rows, budgets = whole["table"], whole["budgets"]
    names = list(runs)
    counts = [f"{page(name, 100)}: {len(seeds)} seed{'s' if len(seeds) != 1 else ''}" for name, seeds in runs.items()]
    title = f"{names[1]} against {names[0]}" if len(names) == 2 else "Comparison"
    head = f'<p class="kicker">cotrain compare · {" · ".join(counts)}</p><h1>{page(title, 200)}</h1>'
    parts = [
        head,
        _sentences(rows),
        cells_section("At the start and at the end", " ".join(about(whole)), headlines(whole)),
        cells_section("What it cost", COSTS, costs(whole)),
        _table([row for row in rows if row["at"] == "end"], names, budgets),
        _curves(runs),
        *(_table([row for row in rows if row["at"] == at], names, budgets, folded=True) for at in AXES),
        _needed([level for axis in AXES for level in levels(runs, axis, budgets.get(axis, math.nan))]),
        _verdicts(verdict_table(rows)),
        cells_section("How it was run", "", settings(whole)),
        cells_section(
            "Learning rates", "Chosen on validation problems, with seeds that are not compared.", rates(whole)
        ),
    ]
    return document("cotrain comparison", "".join(parts))


def cells_section(title: str, lead: str, cells: Cells) -> str:
    """A table of text; "" when it has no rows."""
    head, rows = cells
    if not rows:
        return ""
    top = "".join(f'<th scope="col">{page(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{page(row[0], 100)}</th>{"".join(f"<td>{page(cell, 200)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    said = f'<p class="lead">{page(lead)}</p>' if lead else ""
    return (
        f'<section><h2>{page(title)}</h2>{said}<div class="scroll"><table class="figures"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _sentences(table: Sequence[Mapping[str, Any]]) -> str:
    """What can be said of the headlines of the first role at the end."""
    wanted = [row for row in table if row["words"] and row["at"] == "end" and is_headline(row["metric"])]
    roles = roles_in({row["metric"] for row in table})
    first = wanted[0]["metric"].split("/")[0] if wanted else ""
    said = [
        f"<p><strong>{page(row['recipe'], 100)}</strong> against {page(row['reference'], 100)},"
        f" {page(label_of(row['metric'], roles))}: {page(row['words'])}.</p>"
        for row in wanted
        if row["metric"].startswith(f"{first}/")
    ]
    return f'<div class="say list">{"".join(said)}</div>' if said else ""


def _table(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], budgets: Mapping[str, float], *, folded: bool = False
) -> str:
    """The headlines, and folded under them all other figures; ``folded``: all of it."""
    if not rows:
        return ""
    roles, at = roles_in({row["metric"] for row in rows}), rows[0]["at"]
    main = [row for row in rows if is_headline(row["metric"])] or list(rows)
    rest = [row for row in rows if row not in main]
    further = f"<details><summary>all other figures</summary>{_body(rest, names, roles)}</details>" if rest else ""
    title, lead = f"Figures {budget_in_words(at, dict(budgets))}", LEAD_END if at == "end" else LEAD
    body = f'<p class="lead">{page(lead)}</p>{_body(main, names, roles)}{further}'
    if folded:
        return f"<section><details><summary>{page(title)}, on validation problems</summary>{body}</details></section>"
    return f"<section><h2>{page(title)}</h2>{body}</section>"


def _body(rows: Sequence[Mapping[str, Any]], names: Sequence[str], roles: set[str]) -> str:
    cells = []
    for reference, group in by_figure(rows):
        label = page(label_of(group[0]["metric"], roles))
        instead = (
            "" if reference == names[0] else f" <small>against {page(reference, 100)}, the first that has it</small>"
        )
        cells.append(f'<tr class="who"><th colspan="4" scope="rowgroup">{label}{instead}</th></tr>')
        for row in group:
            before, after = Estimate.of_json(row["before"]), Estimate.of_json(row["after"])
            share = is_share(row["metric"], roles, [before.value, after.value])
            cells.append(
                f'<tr><th scope="row">{page(row["recipe"], 100)}</th>{_cell(before, share)}{_cell(after, share)}'
                f"<td>{page(row['words'] or 'what the others are compared with')}</td></tr>"
            )
    return (
        '<div class="scroll"><table class="figures"><thead><tr><th scope="col">recipe</th><th scope="col">before</th>'
        '<th scope="col">then</th><th scope="col">difference</th></tr></thead>'
        f"<tbody>{''.join(cells)}</tbody></table></div>"
    )


def _cell(e: Estimate, share: bool) -> str:
    if math.isnan(e.value):
        return '<td class="num">–</td>'
    spread = interval(e, share=share) if math.isfinite(e.low) else "fewer than three seeds, no interval"
    return f'<td class="num"><b>{number(e.value, share=share)}</b> <small>{spread}</small></td>'


def _needed(found: Sequence[Level]) -> str:
    """What each recipe needed to reach each level."""
    if not found:
        return ""
    roles = roles_in({level.metric for level in found})
    cells = []
    for level in found:
        name = f" <small>{page(level.name, 150)}</small>" if level.name else ""
        label = f"{level.axis} to {number(level.value, share=True)}, {page(label_of(level.metric, roles))}{name}"
        cells.append(f'<tr class="who"><th colspan="3" scope="rowgroup">{label}</th></tr>')
        cells += [
            f'<tr><th scope="row">{page(r.recipe, 100)}</th><td>{page(r.words())}</td><td>{page(r.against())}</td></tr>'
            for r in level.reached
        ]
    return (
        '<section><h2>Needed to reach a level</h2><p class="lead">Where the mean curve on validation problems first passes'
        " the level, with the smallest and largest crossing of a single seed; the difference is paired by seed, and given"
        ' only when every seed gets there.</p><div class="scroll"><table class="figures"><thead><tr>'
        '<th scope="col">recipe</th><th scope="col">needed</th><th scope="col">against the reference</th></tr></thead>'
        f"<tbody>{''.join(cells)}</tbody></table></div></section>"
    )


def _verdicts(tables: Mapping[str, Mapping[str, Mapping[str, Estimate]]]) -> str:
    """The judging roles' figures at the end, one row a recipe."""
    blocks = []
    for title, recipes in tables.items():
        metrics = [m for m in VERDICTS if any(m in figures for figures in recipes.values())]
        head = "".join(f'<th scope="col">{page(meaning(m).label)}</th>' for m in metrics)
        absent = Estimate(value=math.nan, low=-math.inf, high=math.inf, n=0)
        body = "".join(
            f'<tr><th scope="row">{page(name, 100)}</th>{"".join(_cell(f.get(m, absent), True) for m in metrics)}</tr>'
            for name, f in recipes.items()
        )
        blocks.append(
            f'<h3>{page(title)}</h3><div class="scroll"><table class="figures"><thead><tr><th scope="col">recipe</th>'
            f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
    if not blocks:
        return ""
    return (
        '<section><h2>Verdicts at the end</h2><p class="lead">On test problems. An unreadable review counts as a wrong'
        f" verdict. Means over seeds.</p>{''.join(blocks)}</section>"
    )


def _curves(runs: Runs) -> str:
    metrics = {key for seeds in runs.values() for run in seeds.values() for r in run.curve for key in r.figures}
    roles = roles_in(metrics)
    main: list[str] = []
    rest: list[str] = []
    for metric in in_reading_order(metrics):
        for axis in AXES:
            (main if is_main(metric) else rest).append(_chart(runs, metric, axis, roles))
        if is_main(metric):
            main += [_difference_chart(runs, metric, axis, roles) for axis in AXES]
    if not main and not rest:
        return ""
    first, further = (main, rest) if main else (rest, [])
    folded = f'<div class="pair">{"".join(further)}</div>'
    more = f"<details><summary>curves of all other figures</summary>{folded}</details>" if further else ""
    return (
        '<section><h2>Curves</h2><p class="lead">Lines are means over seeds on validation problems, shades their'
        " 95\u202f% bands (none with fewer than three seeds). Over batches, sampled tokens, FLOPs and seconds.</p>"
        f'<div class="pair">{"".join(first)}</div>{more}</section>'
    )


def _chart(runs: Runs, metric: str, axis: str, roles: set[str]) -> str:
    lines = []
    for i, (name, seeds) in enumerate(runs.items()):
        mean, spread = band([run.points(metric, axis) for run in seeds.values()])
        tone = PALETTE[i % len(PALETTE)]
        lines.append(Line(label=name, points=mean, tone=tone, dash=i % 3, raw=False, spread=spread))
    xs = [x for line in lines for x, _ in line.points]
    if not xs:
        return ""
    share = is_share(metric, roles, [y for line in lines for _, y in line.points])
    note = f"At equal {UNITS[axis]}{_at_common_end(lines, axis, share)}"
    range_ = (min(xs), max(xs))
    return chart(label_of(metric, roles), lines, x_range=range_, share=share, x_label=UNITS[axis], note=note)


def _difference_chart(runs: Runs, metric: str, axis: str, roles: set[str]) -> str:
    reference, bands = difference_bands(runs, metric, axis)
    tones = {name: i for i, name in enumerate(runs)}
    lines = [
        Line(label=name, points=mean, tone=PALETTE[i % len(PALETTE)], dash=i % 3, raw=False, spread=spread)
        for name, (mean, spread) in bands.items()
        for i in (tones[name],)
    ]
    xs = [x for line in lines for x, _ in line.points]
    if not xs:
        return ""
    title = f"{label_of(metric, roles)}: difference to {reference}"
    share = is_share(metric, roles, [])
    zero, range_ = (0.0, "no difference"), (min(xs), max(xs))
    return chart(title, lines, x_range=range_, share=share, x_label=UNITS[axis], reference=zero, small=True)


def _at_common_end(lines: Sequence[Line], axis: str, share: bool) -> str:
    """Where the shortest line ends, and how high the others are there: the legend gives each line's own end."""
    ends = [line.points[-1][0] for line in lines if line.points]
    if len(ends) < 2 or max(ends) - min(ends) < 0.01 * max(ends):
        return ""
    there = [line for line in lines if line.points and line.points[0][0] <= min(ends)]
    heights = ", ".join(f"{line.label} {number(value_at(line.points, min(ends)), share=share)}" for line in there)
    return f". At {amount(min(ends), axis)} {UNITS[axis]}, where the shortest ends: {heights}"
