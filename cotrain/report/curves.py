"""From metric rows to charts: what each role earned against the truth, how well each verifier judges, what is healthy.

Roles and policies are whatever prefixes appear in the rows. A role that has an ``accuracy`` solves, one that has a
``balanced_accuracy`` judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotrain.metrics.metric import ANY
from cotrain.metrics.table import meaning, rank
from cotrain.report.escape import page
from cotrain.report.guide import number, split_key
from cotrain.report.health import alarms
from cotrain.report.read import Run, in_order
from cotrain.report.schedule import Stage
from cotrain.report.svg import Line, chart

ROLE_METRICS = ("length", "truncated", "parse_failures", "zero_spread_groups")
POLICY_METRICS = ("entropy", "surprisal", "kl", "grad_norm", "loss", "clip_fraction", "sampler_gap")
LARGE = (
    "accuracy",
    "balanced_accuracy",
    "true_positive_rate",
    "true_negative_rate",
    "predicted_positive",
    "base_rate",
    "step_balanced_accuracy",
    "step_true_positive_rate",
    "step_true_negative_rate",
)
BOOKKEEPING = (
    "updates",
    "tokens",
    "tokens_per_second",
    "traces",
    "credit/traces",
    "groups",
    "seconds",
    "lr",
    "skipped",
    "gap",
    "reward/truth",
)
MOST_SMALL = 48  # charts in the last section
MOST_REASONS = 60
LOST = {"parse_failure": "unreadable", "dropped": "not trained on"}
ALL = (0.0, 1.0)


def roles(stage: Stage) -> str:
    """One section for every role: its reward against the truth, or its judgement against the truth."""
    run = stage.run
    speakers = set(run.who_has("length"))  # a reward model's learner has an accuracy too
    solvers = in_order({*run.who_has("accuracy"), *_earners(run)} & speakers - set(run.who_has("balanced_accuracy")))
    parts = [_solver(stage, role) for role in solvers]
    parts += [_verifier(stage, role) for role in run.who_has("balanced_accuracy") if not role.endswith("/fixed")]
    return "".join(parts)


def health(stage: Stage) -> str:
    """The alarms, and small charts with healthy bands: first what tells whether training is sound, then all else."""
    groups = (
        (
            "health",
            "Health",
            "The shaded band is where a run is usually sound.",
            (*ROLE_METRICS, *POLICY_METRICS),
            False,
        ),
        ("more", "Everything else that was recorded", "", tuple(_others(stage.run)), True),
    )
    parts = []
    for anchor, title, lead, metrics, folded in groups:
        grid = "".join(_small(stage, metric) for metric in metrics)
        watched = alarms(stage.run) if anchor == "health" else ""
        if not grid and not watched:
            continue
        inside = watched
        if grid:
            inside += (f'<p class="lead">{lead}</p>' if lead else "") + f'<div class="grid">{grid}</div>'
        if folded:
            inside = f"<details><summary><h2>{title}</h2></summary>{inside}</details>"
        else:
            inside = f"<h2>{title}</h2>{inside}"
        parts.append(f'<section id="{anchor}">{inside}</section>')
    return "".join(parts)


def losses(stage: Stage) -> str:
    """What could not be read, was left out or broke off, by reason: counts over the whole run."""
    totals: dict[tuple[str, str, str], float] = {}
    for row in stage.run.training:
        for name, value in row.values.items():
            who, metric = split_key(name)
            kind, _, reason = metric.partition("/")
            if kind in LOST or who == "failures":
                place = (who, LOST.get(kind, ""), reason) if kind in LOST else ("episodes", "failed", metric)
                totals[place] = totals.get(place, 0.0) + value
    if not any(totals.values()):
        return ""
    rows = "".join(
        f'<tr><th scope="row">{page(who, 200)}</th><td>{how}</td><td>{page(reason, 200)}</td>'
        f"<td>{number(count, share=False)}</td></tr>"
        for (who, how, reason), count in sorted(totals.items(), key=lambda item: -item[1])[:MOST_REASONS]
        if count
    )
    return (
        '<section id="losses"><details><summary><h2>Left out, by reason</h2></summary><div class="scroll"><table>'
        '<thead><tr><th scope="col">who</th><th scope="col">what</th><th scope="col">reason</th><th scope="col">count</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div></details></section>"
    )


def _earners(run: Run) -> set[str]:
    """Roles with a reward; what has a length is a role, an objective has none."""
    earners = {who for metric, names in run.owners.items() if metric.startswith("reward/") for who in names}
    return earners & set(run.who_has("length"))


def _solver(stage: Stage, role: str) -> str:
    """Reward against truth, the gap between them shaded; then the steps."""
    run = stage.run
    truth = run.series(f"{role}/accuracy")
    lines = [Line(label="truth: accuracy", points=truth, tone="truth")]
    rewards = [n for n in in_order({k for row in run.rows for k in row.values}) if n.startswith(f"{role}/reward/")]
    shade = None
    same = []
    for name in rewards:
        points = run.series(name)
        channel = name.removeprefix(f"{role}/reward/")
        if "/" in channel:  # apart by truth: small charts
            continue
        if truth and points == truth:
            same.append(channel)
        elif channel == "outcome" or not truth:
            dash = (1, 2, 0)[len(lines) % 3]
            lines.append(Line(label=f"reward: {channel}", points=points, tone=stage.tones.get(role, "a"), dash=dash))
            shade = (0, len(lines) - 1) if truth and shade is None else shade
    if same:
        label = f"truth: accuracy (the reward {', '.join(same)} is the truth itself)"
        lines[0] = Line(label=label, points=truth, tone="truth")
    gap = dict(run.series("gap"))
    believed = [(x, y + gap[x]) for x, y in truth if x in gap]
    if believed and shade is None:
        judge = next(iter(run.who_has("balanced_accuracy")), "")
        tone = stage.tones.get(judge, "b")
        lines.append(Line(label=f"right in the eyes of the {judge or 'judge'}", points=believed, tone=tone, dash=1))
        shade = (0, len(lines) - 1)
    lines += _evaluations(run, role, (("pass@1", "truth", "pass@1 on held-out problems"),))
    first = chart(
        f"What the {role} earns, and what is true",
        lines,
        x_range=stage.x_range,
        y_range=ALL,
        share=True,
        shade=shade,
        strip=stage.lanes,
        note="The shaded area is the gap between signal and truth; where it widens, a reward is being exploited.",
    )
    tone = stage.tones.get(role, "a")
    steps = [
        Line(label="right steps", points=run.series(f"{role}/step_accuracy"), tone=tone),
        Line(
            label="right answers with every step right",
            points=run.series(f"{role}/sound_when_correct"),
            tone=tone,
            dash=1,
        ),
        *_evaluations(run, role, (("step_accuracy", tone, "right steps on held-out problems"),)),
    ]
    second = chart(
        "Is the reasoning right, step by step?",
        steps,
        x_range=stage.x_range,
        y_range=ALL,
        share=True,
        strip=stage.lanes,
    )
    return _section(role, first + second)


def _verifier(stage: Stage, role: str) -> str:
    """How well it tells right from wrong, at answer and at step level, and whether it is too kind."""
    run, tone = stage.run, stage.tones.get(role, "b")
    charts = []
    for title, prefix, noun in (("Judging answers", "", "solutions"), ("Judging steps", "step_", "steps")):
        lines = [
            Line(label="balanced accuracy", points=run.series(f"{role}/{prefix}balanced_accuracy"), tone=tone),
            Line(
                label=f"right {noun} accepted",
                points=run.series(f"{role}/{prefix}true_positive_rate"),
                tone="c",
                dash=1,
            ),
            Line(
                label=f"wrong {noun} rejected",
                points=run.series(f"{role}/{prefix}true_negative_rate"),
                tone="d",
                dash=2,
            ),
            *_evaluations(run, role, ((f"{prefix}balanced_accuracy", tone, "on held-out problems"),)),
        ]
        charts.append(
            chart(
                title,
                lines,
                x_range=stage.x_range,
                y_range=ALL,
                share=True,
                reference=(0.5, "chance"),
                strip=stage.lanes,
                note="Balanced accuracy is the mean of the two rates; a coin has 50\u202f% whatever the base rate.",
            )
        )
    base = run.series(f"{role}/base_rate")
    said = run.series(f"{role}/predicted_positive")
    belief = [
        Line(label="called right", points=said, tone=tone, dash=1),
        Line(label="is right", points=base, tone="truth"),
    ]
    charts.append(
        chart(
            f"What the {role} believes, and what is true",
            belief,
            x_range=stage.x_range,
            y_range=ALL,
            share=True,
            shade=(0, 1) if said and base else None,
            strip=stage.lanes,
            note="Called right more often than is right: solutions get away with errors.",
        )
    )
    agreement = [
        Line(label="reward: agreement", points=run.series(f"{role}/reward/agreement"), tone=tone, dash=1),
        Line(label="truth: balanced accuracy", points=run.series(f"{role}/balanced_accuracy"), tone="truth"),
    ]
    charts.append(
        chart(
            f"What the {role} earns, and what it is worth",
            agreement if agreement[0].points else [],
            x_range=stage.x_range,
            y_range=ALL,
            share=True,
            shade=(0, 1) if all(line.points for line in agreement) else None,
            strip=stage.lanes,
            note="Agreement can be high by following the base rate alone; balanced accuracy cannot.",
        )
    )
    return _section(role, "".join(charts) + _memory(stage, role))


def _memory(stage: Stage, role: str) -> str:
    """The same judge on what the generator says now and on what its frozen start said: does it forget?"""
    rates = (
        ("true_positive_rate", "c", "right solutions accepted"),
        ("true_negative_rate", "d", "wrong solutions rejected"),
    )
    now = _evaluations(stage.run, role, [(metric, tone, f"{label}, now") for metric, tone, label in rates])
    then = _evaluations(stage.run, f"{role}/fixed", [(m, t, f"{label}, of the start") for m, t, label in rates])
    then = [replace(line, dash=1) for line in then]
    return chart(
        f"Does the {role} keep what it knew?",
        [*now, *then] if any(line.points for line in then) else [],
        x_range=stage.x_range,
        y_range=ALL,
        share=True,
        strip=stage.lanes,
        note="Held-out problems. The solutions of the frozen start never change; where these lines fall, it forgets.",
    )


def _section(role: str, charts: str) -> str:
    return f'<section><h2>The {page(role, 60)}</h2><div class="pair">{charts}</div></section>' if charts else ""


def _evaluations(run: Run, role: str, wanted: Sequence[tuple[str, str, str]]) -> list[Line]:
    return [
        Line(label=label, points=run.series(f"{role}/{metric}", evaluation=True), tone=tone, raw=False, marks=True)
        for metric, tone, label in wanted
    ]


def _others(run: Run) -> list[str]:
    """Metrics that no chart above shows: reward channels, figures of evaluations alone, whatever is unknown."""
    known = {
        *ROLE_METRICS,
        *POLICY_METRICS,
        *LARGE,
        *BOOKKEEPING,
        "step_accuracy",
        "sound_when_correct",
        "reward/agreement",
    }
    counted = {metric for metric in run.owners if metric.startswith(("parse_failure/", "dropped/"))}
    rest = run.owners.keys() - known - counted - {"pass@1"}
    wanted = (m for m in rest if any(run.owners[m]) and "failures" not in run.owners[m])
    return sorted(wanted, key=rank)[:MOST_SMALL]


def _small(stage: Stage, metric: str) -> str:
    run = stage.run
    lines = []
    for index, who in enumerate(name for name in run.who_has(metric) if name):
        tone = stage.tones.get(who.split("/")[0], "quiet")
        lines.append(Line(label=who, points=run.series(f"{who}/{metric}"), tone=tone, dash=index % 3))
        held_out = run.series(f"{who}/{metric}", evaluation=True)
        lines.append(Line(label=f"{who}, held-out", points=held_out, tone=tone, raw=False, marks=True))
    values = [y for line in lines for _, y in line.points]
    if not values:
        return ""
    read = meaning(metric, values)
    badge, advice = _status(lines, metric)
    banded = read.healthy != ANY
    y_range = healthy = None
    if banded:  # the whole band is in view when the numbers are anywhere near it
        y_range = (min(0.0, min(values)), max(max(values), min(read.healthy[1], 4 * abs(max(values)) + 0.02)))
        healthy = (max(read.healthy[0], y_range[0]), min(read.healthy[1], y_range[1]))
    return chart(
        read.label,
        lines,
        x_range=stage.x_range,
        share=read.share,
        y_range=y_range,
        badge=badge,
        note=advice,
        healthy=healthy,
        small=True,
    )


def _status(lines: Sequence[Line], metric: str) -> tuple[str, str]:
    """A badge (shape and word, not colour alone) from the last tenth of each line, and a sentence if it is not fine."""
    read = meaning(metric)
    if read.healthy == ANY:
        return "", ""
    level = 0
    for line in lines:
        tail = [y for _, y in line.points[-max(1, len(line.points) // 10) :]]
        recent = sum(tail) / len(tail) if tail else max(read.healthy[0], min(read.healthy[1], 0.0))
        if not read.healthy[0] <= recent <= read.healthy[1]:
            level = max(level, 1 if read.tolerable[0] <= recent <= read.tolerable[1] else 2)
    word = ("● fine", "▲ watch", "■ look here")[level]
    return f'<span class="status s{level}">{word}</span>', read.advice if level else ""
