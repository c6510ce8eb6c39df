"""Several recipes side by side, each over several seeds: curves at equal updates and at equal tokens, and a table.

A recipe is called better than the first one only when the 95 % interval of the paired difference (same seed in both,
Student's t) leaves out zero; with one shared seed nothing is said. The two x axes answer two questions: what does an
update bring, and what does a token cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.statistics import Estimate, mean_interval, paired_difference
from cotrain.disk.files import replace_file
from cotrain.report.curves import PALETTE
from cotrain.report.escape import page
from cotrain.report.guide import between, interval, meaning, number, points, rank, take_apart
from cotrain.report.html import document
from cotrain.report.read import estimates, in_order
from cotrain.report.svg import Line, chart, value_at

Curve = list[tuple[float, float]]
GRID = 60  # points at which seeds are averaged
AXES = (("updates", 0, "At equal updates"), ("tokens", 1, "At equal tokens"))


def write_compare_page(compare: dict[str, Any], path: Path) -> None:
    """Write the page for the content of compare.json: ``{"recipes": {name: {"seeds": [{"seed", "curve":
    [[updates, tokens, {metric: value}], …], "before": {…}, "after": {…}}]}}}``. Raises DiskError."""
    replace_file(path, compare_page(compare).encode("utf-8", errors="backslashreplace"))


def compare_page(compare: Mapping[str, Any]) -> str:
    """The whole page."""
    recipes = _recipes(compare)
    table = compare_table(compare.get("recipes") or {})
    names = list(recipes)
    seeds = {name: len(runs) for name, runs in recipes.items()}
    roles = {row["metric"].split("/")[0] for row in table if row["metric"].count("/") == 1}
    said = "".join(
        f"<p><strong>{page(row['recipe'], 100)}</strong> against {page(names[0], 100)}, {page(_label(row['metric'], roles))}:"
        f" {page(row['words'])}.</p>"
        for row in table
        if row["words"] and row["metric"] == _main(table)
    )
    head = (
        '<p class="kicker">cotrain compare · '
        + " · ".join(f"{page(name, 100)}: {count} seed{'s' if count != 1 else ''}" for name, count in seeds.items())
        + f"</p><h1>{page(' against '.join(reversed(names[:2])) if len(names) == 2 else 'Comparison', 200)}</h1>"
        + f'<div class="say">{said}</div>'
    )
    return document("cotrain comparison", head + _table(table, names) + _curves(recipes))


def compare_table(recipes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The final figures of every recipe: rows ``{"metric", "recipe", "before", "after", "difference", "words"}``.

    ``before`` and ``after`` are means over seeds with their interval; ``difference`` is this recipe minus the first
    one over the seeds that both have, None for the first itself; ``words`` says what follows from it. Estimates are
    JSON, as ``Estimate.json`` writes them.
    """
    runs = _recipes({"recipes": recipes})
    names = list(runs)
    metrics = {key for seeds in runs.values() for run in seeds.values() for key in run["after"]}
    roles = {key.split("/")[0] for key in metrics if key.count("/") == 1}
    rows = []
    for metric in sorted(metrics, key=lambda k: _place(k, roles)):
        for name in names:
            before = mean_interval([r["before"][metric].value for r in runs[name].values() if metric in r["before"]])
            after = mean_interval([r["after"][metric].value for r in runs[name].values() if metric in r["after"]])
            change, words = None, ""
            if name != names[0]:
                shared = [s for s in runs[name] if s in runs[names[0]]]
                pairs = [(runs[name][s]["after"].get(metric), runs[names[0]][s]["after"].get(metric)) for s in shared]
                both = [(a.value, b.value) for a, b in pairs if a is not None and b is not None]
                change = paired_difference([a for a, _ in both], [b for _, b in both])
                words = difference_in_words(change, take_apart(metric, roles).metric)
            rows.append(
                {"metric": metric, "recipe": name, "before": before.json(), "after": after.json(),
                 "difference": None if change is None else change.json(), "words": words}
            )  # fmt: skip
    return rows


def difference_in_words(change: Estimate, metric: str) -> str:
    """What a paired difference allows one to say; "better" or "worse" only when its interval leaves out zero."""
    read = meaning(metric, [0.5])
    if change.n == 0:
        return "no seed was measured in both"
    size = points(change.value, share=read.share) + (" points" if read.share else "")
    if change.n == 1:
        return f"{size} with one shared seed, from which nothing follows"
    if change.includes(0.0):
        return f"no difference is shown ({size}; the 95\u202f% interval, {between(change, share=read.share)}, includes zero)"
    good, bad = ("better", "worse") if read.better > 0 else ("worse", "better") if read.better else ("higher", "lower")
    word = good if change.value > 0 else bad
    details = f"95\u202f% interval {between(change, share=read.share)}, {change.n} seeds"
    return f"{word} by {size.lstrip('+−')} ({details})"


def band(curves: Sequence[Curve], grid: int = GRID) -> tuple[Curve, list[tuple[float, float, float]]]:
    """Mean and 95 % band over seeds: (points (x, mean), (x, low, high)) on a common grid over the range of x that every
    seed covers, by linear interpolation. With one curve there is no band."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return [], []
    left, right = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
    if right < left:
        return [], []
    own = sorted({x for c in curves for x, _ in c if left <= x <= right})
    xs = own if len(own) <= grid else [left + (right - left) * i / (grid - 1) for i in range(grid)]
    found = [(x, mean_interval([value_at(c, x) for c in curves])) for x in xs]
    return [(x, e.value) for x, e in found], [(x, e.low, e.high) for x, e in found if math.isfinite(e.low)]


def _recipes(compare: Mapping[str, Any]) -> dict[str, dict[Any, dict[str, Any]]]:
    """name → seed → {"curve", "before", "after"}, with estimates read and what does not fit left out."""
    recipes = compare.get("recipes")
    found: dict[str, dict[Any, dict[str, Any]]] = {}
    for name, recipe in recipes.items() if isinstance(recipes, Mapping) else ():
        seeds = recipe.get("seeds", ()) if isinstance(recipe, Mapping) else ()
        found[str(name)] = {
            run.get("seed", i): {
                "curve": run.get("curve") or [],
                "before": estimates(run.get("before")),
                "after": estimates(run.get("after")),
            }
            for i, run in enumerate(seeds)
            if isinstance(run, Mapping)
        }
    return found


def _place(key: str, roles: set[str]) -> tuple[int, str, str, tuple[int, str]]:
    part = take_apart(key, roles)
    order = in_order(roles)
    return (order.index(part.who) if part.who in order else len(order), part.who, part.split, rank(part.metric))


def _label(key: str, roles: set[str]) -> str:
    part = take_apart(key, roles)
    label = meaning(part.metric, [0.5]).label
    return ", ".join(
        filter(None, [f"{part.who}: {label}" if part.who else label, f"{part.split} problems" if part.split else ""])
    )


def _main(table: Sequence[Mapping[str, Any]]) -> str:
    """The figure that the page opens with: the first pass@1, else the first of all."""
    keys = [row["metric"] for row in table]
    return next((key for key in keys if key.endswith("/pass@1")), keys[0] if keys else "")


def _table(table: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    if not table:
        return '<p class="lead">No run has final figures yet.</p>'
    roles = {row["metric"].split("/")[0] for row in table if row["metric"].count("/") == 1}
    rows = []
    for row in table:
        part = take_apart(row["metric"], roles)
        before, after = Estimate.of_json(row["before"]), Estimate.of_json(row["after"])
        share = meaning(part.metric, [v for v in (before.value, after.value) if math.isfinite(v)]).share
        if row["recipe"] == names[0]:
            rows.append(
                f'<tr class="who"><th colspan="4" scope="rowgroup">{page(_label(row["metric"], roles))}</th></tr>'
            )
        words = page(row["words"]) if row["words"] else "the first recipe, to which the others are compared"
        rows.append(
            f'<tr><th scope="row">{page(row["recipe"], 100)}</th>{_cell(before, share)}{_cell(after, share)}<td>{words}</td></tr>'
        )
    return (
        '<section><h2>Final figures</h2><p class="lead">Means over seeds on held-out problems, with Student\'s 95\u202f% interval.'
        '</p><div class="scroll"><table><thead><tr><th scope="col">recipe</th><th scope="col">before</th><th scope="col">after'
        f'</th><th scope="col">against the first</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def _cell(e: Estimate, share: bool) -> str:
    if math.isnan(e.value):
        return '<td class="num">–</td>'
    spread = interval(e, share=share) if math.isfinite(e.low) else "one seed, no interval"
    return f'<td class="num"><b>{number(e.value, share=share)}</b> <small>{spread}</small></td>'


def _curves(recipes: Mapping[str, Mapping[Any, Mapping[str, Any]]]) -> str:
    series = {name: [_points(run["curve"]) for run in runs.values()] for name, runs in recipes.items()}
    metrics = {key for runs in series.values() for run in runs for _, values in run for key in values}
    roles = {key.split("/")[0] for key in metrics if key.count("/") == 1}
    charts = []
    for metric in sorted(metrics, key=lambda k: _place(k, roles)):
        for label, axis, title in AXES:
            lines = []
            for i, (name, runs) in enumerate(series.items()):
                curves = [sorted((at[axis], values[metric]) for at, values in run if metric in values) for run in runs]
                mean, spread = band(curves)
                tone = PALETTE[i % len(PALETTE)]
                lines.append(Line(label=name, points=mean, tone=tone, dash=i % 3, raw=False, spread=spread))
            xs = [x for line in lines for x, _ in line.points]
            ys = [y for line in lines for _, y in line.points]
            if xs:
                share = meaning(take_apart(metric, roles).metric, ys).share
                note = f"{title}{_at_common_end(lines, label, share)}"
                charts.append(
                    chart(
                        _label(metric, roles), lines, x_range=(min(xs), max(xs)), share=share, x_label=label, note=note
                    )
                )
    if not charts:
        return ""
    return (
        '<section><h2>Curves</h2><p class="lead">The line is the mean over seeds, the shade its 95\u202f% band (none with one'
        f' seed). Left the x axis counts updates, right the tokens that were sampled.</p><div class="pair">{"".join(charts)}</div></section>'
    )


def _at_common_end(lines: Sequence[Line], label: str, share: bool) -> str:
    """Where the shortest line ends, and how high the others are there: the legend gives each line's own end."""
    ends = [line.points[-1][0] for line in lines if line.points]
    if len(ends) < 2 or max(ends) - min(ends) < 0.01 * max(ends):
        return ""
    there = [line for line in lines if line.points and line.points[0][0] <= min(ends)]
    heights = ", ".join(f"{line.label} {number(value_at(line.points, min(ends)), share=share)}" for line in there)
    return f". At {number(round(min(ends)), share=False)} {label}, where the shortest run ends: {heights}"


def _points(curve: object) -> list[tuple[tuple[float, float], dict[str, float]]]:
    """``[[updates, tokens, {metric: value}], …]`` with everything that is not finite left out."""
    found = []
    for entry in curve if isinstance(curve, list | tuple) else ():
        if isinstance(entry, list | tuple) and len(entry) == 3 and isinstance(entry[2], Mapping):
            at = [float(v) for v in entry[:2] if isinstance(v, int | float) and math.isfinite(v)]
            if len(at) == 2:
                found.append(((at[0], at[1]), {name: e.value for name, e in estimates(dict(entry[2])).items()}))
    return found
