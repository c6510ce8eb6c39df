"""Which policy was trained when, and what the charts of a page share: x axis, colours, the strip of that schedule.

Names with one colour belong together: a role and the policy that plays it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotrain.report.escape import page
from cotrain.report.guide import number, split_key
from cotrain.report.read import Row, Run, in_order
from cotrain.report.svg import axis, strip

PALETTE = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all charts of a page share."""

    run: Run
    x_range: tuple[float, float]
    tones: Mapping[str, str]  # role or policy → colour class
    lanes: str  # the thin schedule strip


def stage_of(run: Run, played_by: Mapping[str, str]) -> Stage:
    """Fix the x axis, the colours and the strip. ``played_by``: role → policy, as far as it is known."""
    steps = [row.step for row in run.rows] or [0]
    names = {name.split("/")[0] for owners in run.owners.values() for name in owners if name}
    tones: dict[str, str] = {}
    for name in in_order({*played_by, *names} - {"failures"}):
        partner = played_by.get(name) or next((r for r, p in played_by.items() if p == name), name)
        used = len(set(tones.values()))
        tones[name] = tones.get(name) or tones.get(partner) or PALETTE[used % len(PALETTE)]
    x_range = (float(min(steps)), float(max(max(steps), min(steps) + 1)))
    lanes = strip(
        [(p, tones.get(p, "quiet"), r) for p, r in trained_ranges(run.training).items()], x_range=x_range, words=False
    )
    return Stage(run=run, x_range=x_range, tones=tones, lanes=lanes)


def trained_ranges(rows: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    """At which steps each policy was trained, as half-open ranges: its count of updates rose or, where none is kept,
    it reported a loss or a gradient."""
    ranges: dict[str, list[tuple[float, float]]] = {}
    updates: dict[str, float] = {}
    for row in rows:
        named = [(name.split("/")[0], split_key(name)[1], value) for name, value in row.values.items() if "/" in name]
        counted = {policy for policy, metric, _ in named if metric == "updates"}
        who = {policy for policy, metric, _ in named if metric in ("loss", "grad_norm") and policy not in counted}
        who |= {policy for policy, metric, value in named if metric == "updates" and value > updates.get(policy, 0.0)}
        updates |= {policy: value for policy, metric, value in named if metric == "updates"}
        for policy in who:
            own = ranges.setdefault(policy, [])
            if own and own[-1][1] == row.step:
                own[-1] = (own[-1][0], row.step + 1.0)
            else:
                own.append((float(row.step), row.step + 1.0))
    return {policy: ranges[policy] for policy in in_order(ranges)}


def section(stage: Stage) -> str:
    """The strip with names: phases, which policy was trained when, and when evaluations took place."""
    rows = stage.run.training
    phases: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        own = phases.setdefault(row.phase, [])
        if own and own[-1][1] == row.step:
            own[-1] = (own[-1][0], row.step + 1.0)
        else:
            own.append((float(row.step), row.step + 1.0))
    trained = trained_ranges(rows)
    lanes = [(f"{policy} trained", stage.tones.get(policy, "quiet"), ranges) for policy, ranges in trained.items()]
    lanes += [
        (f"phase: {name}", "quiet", ranges)
        for name, ranges in phases.items()
        if name and f"{name}" not in trained and len(ranges) < len(rows)
    ]
    half = 0.003 * (stage.x_range[1] - stage.x_range[0])  # an evaluation stands after its step and takes none
    evaluations = [(row.step + 1 - half, row.step + 1 + half) for row in stage.run.rows if row.evaluation]
    lanes += [("evaluation", "truth", evaluations)] if evaluations else []
    if not lanes:
        return ""
    lengths = {policy: number(sum(b - a for a, b in ranges), share=False) for policy, ranges in trained.items()}
    total = number(len(rows), share=False)
    counts = ", ".join(f"{page(policy)} at {length} of {total} steps" for policy, length in lengths.items())
    x_range = (stage.x_range[0], stage.x_range[1] + 1)
    drawn = strip(lanes, x_range=x_range, words=True) + axis(x_range)
    said = f'<p class="lead">{f"Trained: {counts}." if counts else "No policy was trained at any step."}</p>'
    return f'<section id="schedule"><h2>Schedule</h2>{said}<figure class="chart">{drawn}</figure></section>'
