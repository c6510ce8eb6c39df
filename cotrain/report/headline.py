"""The top of the report: what changed from before to after, in words, numbers and a drawing.

A change is called one only when its 95 % interval leaves out zero. Both sides are measured on the same problems, and
the run pairs them by problem. Where it has not (a run without per-problem counts), before and after are treated as
independent, which errs on the cautious side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotrain.core.statistics import Estimate, difference
from cotrain.metrics.table import is_headline, limits_of, meaning, rank
from cotrain.report.escape import page
from cotrain.report.guide import Name, between, interval, number, points, take_apart, where
from cotrain.report.read import Run, in_order

SENTENCES = {  # metric → (sentence, remark)
    "pass@1": ("The {who} answers {after} of the problems right (pass@1)", ""),
    "accuracy": ("The {who} answers {after} of the problems right", ""),
    "balanced_accuracy": (
        "The {who} tells right solutions from wrong ones with a balanced accuracy of {after}",
        "A coin would have 50\u202f%.",
    ),
}


def sentences(run: Run) -> str:
    """One paragraph for the solver's and one for the verifier's main figure."""
    said = []
    for key, name in _keys(run):
        if name.metric in SENTENCES and not name.split and key in run.after:
            if name.metric == "accuracy" and f"{name.who}/pass@1" in run.after:
                continue
            said.append(_sentence(name, run.before.get(key), run.after[key], _changed(run, key)))
    return "".join(f"<p>{text}</p>" for text in said) or f"<p>{_unfinished(run)}</p>"


def table(run: Run) -> str:
    """Before → after: the main figures, and folded under them all others and other sets of problems."""
    keys = _keys(run)
    if not keys:
        return ""
    main = [(key, name) for key, name in keys if is_headline(name.metric) and not name.split] or keys
    rest = [entry for entry in keys if entry not in main]
    more = f"<details><summary>{len(rest)} more figures</summary>{_body(run, rest)}</details>" if rest else ""
    return _body(run, main) + more


def _body(run: Run, keys: Sequence[tuple[str, Name]]) -> str:
    rows, current = [], None
    for key, name in keys:
        if name.who != current:
            current = name.who
            rows.append(f'<tr class="who"><th colspan="5" scope="rowgroup">{page(current or "the run", 60)}</th></tr>')
        rows.append(_row(name, run.before.get(key), run.after.get(key), _changed(run, key)))
    return (
        '<div class="scroll"><table class="before-after"><thead><tr><th scope="col">on held-out problems</th>'
        '<th scope="col">before</th><th scope="col">after</th><th scope="col" class="drawn">○ before → ● after, with'
        ' 95\u202f% intervals</th><th scope="col">change</th></tr></thead><tbody>'
        f"{''.join(rows)}</tbody></table></div>"
    )


def _keys(run: Run) -> list[tuple[str, Name]]:
    keys = {*run.before, *run.after}
    who = {key.split("/")[0] for key in keys if key.count("/") == 1}
    names = {key: take_apart(key, who) for key in keys}
    order = in_order(name.who for name in names.values())
    return sorted(names.items(), key=lambda kn: (order.index(kn[1].who), rank(kn[1].metric), kn[1].split))


def _changed(run: Run, key: str) -> Estimate | None:
    """The change of a figure, paired by problem where the run did so; None unless it was measured on both sides."""
    before, after = run.before.get(key), run.after.get(key)
    if before is None or after is None or math.isnan(before.value) or math.isnan(after.value):
        return None
    low, high = limits_of(key.rpartition("/")[2])
    return run.change.get(key) or difference(after, before).within(low - high, high - low)


def _sentence(name: Name, before: Estimate | None, after: Estimate, change: Estimate | None) -> str:
    template, remark = SENTENCES[name.metric]
    text = template.format(who=page(name.who), after=f"<strong>{number(after.value, share=True)}</strong>")
    n = f"n\u202f=\u202f{number(after.n, share=False)}"
    if before is None or change is None:
        return f"{text} <small>(95\u202f% interval {interval(after, share=True)}, {n})</small>. {remark}"
    text += f"; before training it was {number(before.value, share=True)}."
    if change.includes(0.0):
        range_ = f"The 95\u202f% interval of the change, {between(change, share=True)}, includes zero"
        return f"{text} {range_}: <em>no change is shown</em>. {remark}"
    direction = "gain" if change.value > 0 else "loss"
    low, high = sorted((100 * abs(change.low), 100 * abs(change.high)))
    details = f"<small>(95\u202f% interval {low:.1f} to {high:.1f}, {n})</small>"
    return f"{text} That is a {direction} of {100 * abs(change.value):.1f} points {details}. {remark}"


def _unfinished(run: Run) -> str:
    rows = run.training
    if not rows:
        return "Nothing was recorded yet: this directory holds no finished step."
    text = f"The run has no final evaluation, so there is no before and after; {len(rows)} step(s) are recorded."
    for role in run.who_has("accuracy"):
        tail = [y for _, y in run.series(f"{role}/accuracy")[-10:]]
        if tail:
            text += (
                f" Over its last {len(tail)} step(s) the {page(role)} had an accuracy of"
                f" <strong>{number(sum(tail) / len(tail), share=True)}</strong> on training problems."
            )
    return text


def _row(name: Name, before: Estimate | None, after: Estimate | None, change: Estimate | None) -> str:
    values = [e.value for e in (before, after) if e is not None]
    read = meaning(name.metric, values)
    label = page(read.label, 80) + (f" <small>{page(where(name.split), 60)}</small>" if name.split else "")
    return (
        f'<tr><th scope="row">{label}</th>{_cell(before, read.share, "before")}{_cell(after, read.share, "after")}'
        f'<td class="drawn">{_drawing(before, after, read.share)}</td>'
        f'<td class="change">{_change(change, read.share, read.better)}</td></tr>'
    )


def _cell(estimate: Estimate | None, share: bool, label: str) -> str:
    if estimate is None or math.isnan(estimate.value):
        return f'<td class="num" data-label="{label}">–</td>'
    n = f", n\u202f=\u202f{number(estimate.n, share=False)}" if estimate.n else ""
    value, range_ = number(estimate.value, share=share), interval(estimate, share=share)
    return f'<td class="num" data-label="{label}"><b>{value}</b> <small>{range_}{n}</small></td>'


def _change(change: Estimate | None, share: bool, better: int) -> str:
    if change is None:
        return "–"
    if change.includes(0.0):
        return f'<span class="same">≈ no change shown</span> <small>{between(change, share=share)}</small>'
    sign = "▲" if change.value > 0 else "▼"
    css = "quiet" if not better else "good" if (change.value > 0) == (better > 0) else "poor"
    unit = " points" if share else ""
    size = f'<span class="{css}">{sign} {points(change.value, share=share)}{unit}</span>'
    return f"{size} <small>{between(change, share=share)}</small>"


def _drawing(before: Estimate | None, after: Estimate | None, share: bool) -> str:
    """A line from before to after on a scale of 0 to 1 (or to the largest bound), stretched like the charts."""
    shown = [e for e in (before, after) if e is not None and not math.isnan(e.value)]
    if not shown:
        return ""
    bounds = [b for e in shown for b in (e.low, e.value, e.high) if math.isfinite(b)]
    low, high = (
        (0.0, 1.0) if share and min(bounds) >= 0 and max(bounds) <= 1 else (min([0.0, *bounds]), max([*bounds, 1e-9]))
    )

    def x(value: float) -> float:
        return round(20 + 960 * (min(max(value, low), high) - low) / (high - low), 1)

    parts = [f'<path class="grid" d="M{x(low)} 50H{x(high)}"/>']
    if share and (low, high) == (0.0, 1.0):
        parts.append(f'<path class="grid" d="M{x(0.5)} 30V70"/>')
    if len(shown) == 2:
        parts.append(f'<path class="move" d="M{x(shown[0].value)} 50H{x(shown[1].value)}"/>')
    for height, estimate in ((28, before), (72, after)):
        if estimate is not None and math.isfinite(estimate.low) and math.isfinite(estimate.high):
            parts.append(f'<path class="whisker" d="M{x(estimate.low)} {height}H{x(estimate.high)}"/>')
    if before is not None and before in shown:
        parts.append(
            f'<path class="mark was" d="M{x(before.value)} 50h.01"/><path class="hole" d="M{x(before.value)} 50h.01"/>'
        )
    if after is not None and after in shown:
        parts.append(f'<path class="mark now" d="M{x(after.value)} 50h.01"/>')
    return f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'


def pairs(names: Sequence[tuple[str, object]]) -> str:
    """A list of facts as a definition list, both sides escaped."""
    rows = "".join(f"<div><dt>{page(key, 200)}</dt><dd>{page(value, 600)}</dd></div>" for key, value in names)
    return f'<dl class="facts">{rows}</dl>' if rows else ""
