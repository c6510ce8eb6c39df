"""Several recipes side by side, each over several seeds: what is better, at what price, and the curves.

The two x axes answer two questions: what an update brings, and what a token buys. The figures and the words come from
``compare_table``; this file only lays them out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.disk.files import replace_file
from cotrain.report.compare_table import (
    AT,
    AXES,
    Runs,
    band,
    comparison_table,
    in_reading_order,
    is_main,
    label_of,
    roles_in,
    runs_of,
)
from cotrain.report.escape import page
from cotrain.report.guide import interval, meaning, number, take_apart
from cotrain.report.html import document
from cotrain.report.schedule import PALETTE
from cotrain.report.svg import Line, chart, value_at

__all__ = ["comparison_table", "write_compare_page"]

LEADS = {
    "updates": "Read off the curves on validation problems, where every run has made as many updates.",
    "tokens": "Read off the curves on validation problems, where every run has sampled as many tokens.",
    "end": "On test problems, when each run had ended; runs of cheaper recipes may be longer.",
}


def write_compare_page(compare: Mapping[str, Any], path: Path) -> None:
    """Write the page for the content of compare.json (see ``comparison_table`` for its form). Raises DiskError."""
    replace_file(path, compare_page(compare).encode("utf-8", errors="backslashreplace"))


def compare_page(compare: Mapping[str, Any]) -> str:
    """The whole page."""
    runs = runs_of(compare)
    result = comparison_table(compare)
    names = list(runs)
    counts = [f"{page(name, 100)}: {len(seeds)} seed{'s' if len(seeds) != 1 else ''}" for name, seeds in runs.items()]
    title = f"{names[1]} against {names[0]}" if len(names) == 2 else "Comparison"
    head = f'<p class="kicker">cotrain compare · {" · ".join(counts)}</p><h1>{page(title, 200)}</h1>'
    tables = [_table([row for row in result["table"] if row["at"] == at], names, result["budgets"]) for at in AT]
    said = _sentences(result["table"], result["budgets"], names)
    return document("cotrain comparison", head + said + _curves(runs) + "".join(tables))


def _sentences(table: Sequence[Mapping[str, Any]], budgets: Mapping[str, float], names: Sequence[str]) -> str:
    """What can be said of the first main figure, at each budget; at the end where no budget is known."""
    wanted = [at for at in AXES if at in budgets] or ["end"]
    roles = roles_in({row["metric"] for row in table})
    first = next((row["metric"] for row in table if is_main(row["metric"])), None)
    said = [
        f"<p><strong>{page(row['recipe'], 100)}</strong> against {page(names[0], 100)},"
        f" {page(label_of(row['metric'], roles))}, {_budget(row['at'], budgets)}: {page(row['words'])}.</p>"
        for row in table
        if row["words"] and row["at"] in wanted and row["metric"] == first
    ]
    return f'<div class="say list">{"".join(said)}</div>' if said else ""


def _budget(at: str, budgets: Mapping[str, float]) -> str:
    return AT[at].format(number(round(budgets.get(at, 0.0)), share=False))


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], budgets: Mapping[str, float]) -> str:
    """The main figures, and folded under them all others."""
    if not rows:
        return ""
    roles = roles_in({row["metric"] for row in rows})
    main = [row for row in rows if is_main(row["metric"])] or list(rows)
    rest = [row for row in rows if row not in main]
    further = f"<details><summary>all other figures</summary>{_body(rest, names, roles)}</details>" if rest else ""
    at = rows[0]["at"]
    return (
        f'<section><h2>Figures {_budget(at, budgets)}</h2><p class="lead">{LEADS[at]} Means over seeds with Student\'s'
        f" 95\u202f% interval.</p>{_body(main, names, roles)}{further}</section>"
    )


def _body(rows: Sequence[Mapping[str, Any]], names: Sequence[str], roles: set[str]) -> str:
    cells = []
    for row in rows:
        part = take_apart(row["metric"], roles)
        before, after = Estimate.of_json(row["before"]), Estimate.of_json(row["after"])
        share = meaning(part.metric, [v for v in (before.value, after.value) if math.isfinite(v)]).share
        if row["recipe"] == names[0]:
            label = page(label_of(row["metric"], roles))
            cells.append(f'<tr class="who"><th colspan="4" scope="rowgroup">{label}</th></tr>')
        cells.append(
            f'<tr><th scope="row">{page(row["recipe"], 100)}</th>{_cell(before, share)}{_cell(after, share)}'
            f"<td>{page(row['words'] or 'what the others are compared to')}</td></tr>"
        )
    return (
        '<div class="scroll"><table class="figures"><thead><tr><th scope="col">recipe</th><th scope="col">before</th>'
        '<th scope="col">then</th><th scope="col">against the first</th></tr></thead>'
        f"<tbody>{''.join(cells)}</tbody></table></div>"
    )


def _cell(e: Estimate, share: bool) -> str:
    if math.isnan(e.value):
        return '<td class="num">–</td>'
    spread = interval(e, share=share) if math.isfinite(e.low) else "one seed, no interval"
    return f'<td class="num"><b>{number(e.value, share=share)}</b> <small>{spread}</small></td>'


def _curves(runs: Runs) -> str:
    metrics = {key for seeds in runs.values() for run in seeds.values() for r in run.curve for key in r.figures}
    roles = roles_in(metrics)
    main: list[str] = []
    rest: list[str] = []
    for metric in in_reading_order(metrics):
        for axis in AXES:
            (main if is_main(metric) else rest).append(_chart(runs, metric, axis, roles))
    if not main and not rest:
        return ""
    first, further = (main, rest) if main else (rest, [])
    folded = f'<div class="pair">{"".join(further)}</div>'
    more = f"<details><summary>curves of all other figures</summary>{folded}</details>" if further else ""
    return (
        '<section><h2>Curves</h2><p class="lead">Lines are means over seeds on validation problems, shades their'
        " 95\u202f% bands (none with one seed). Left over updates, right over sampled tokens.</p>"
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
    share = meaning(take_apart(metric, roles).metric, [y for line in lines for _, y in line.points]).share
    note = f"At equal {axis}{_at_common_end(lines, axis, share)}"
    range_ = (min(xs), max(xs))
    return chart(label_of(metric, roles), lines, x_range=range_, share=share, x_label=axis, note=note)


def _at_common_end(lines: Sequence[Line], axis: str, share: bool) -> str:
    """Where the shortest line ends, and how high the others are there: the legend gives each line's own end."""
    ends = [line.points[-1][0] for line in lines if line.points]
    if len(ends) < 2 or max(ends) - min(ends) < 0.01 * max(ends):
        return ""
    there = [line for line in lines if line.points and line.points[0][0] <= min(ends)]
    heights = ", ".join(f"{line.label} {number(value_at(line.points, min(ends)), share=share)}" for line in there)
    return f". At {number(round(min(ends)), share=False)} {axis}, where the shortest ends: {heights}"
