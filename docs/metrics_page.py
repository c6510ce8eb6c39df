"""``docs/metrics.md``, generated from the table and the alarms: ``python -m docs.metrics_page`` writes it, and a
test checks that it is up to date. The prose is in this file; every limit comes from where it is used."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from cotrain.metrics import starved
from cotrain.metrics.alarms import BANDS
from cotrain.metrics.metric import ANY, BOTH, COUNT, HELD_OUT, SECONDS, STEP, Metric, Range
from cotrain.metrics.table import EVALUATION, RUN, SAID, SOLVER, VERIFIER
from cotrain.metrics.table_learning import CREDIT, LEARNING

HEAD = """# Metrics

Every number that a run writes, one line each. This page is generated from `cotrain/metrics/table.py` by
`python -m docs.metrics_page`; change the table, not the page. `metrics.jsonl` holds one flat row a step and, with
`"kind": "evaluation"`, one row an evaluation; nothing in either depends on the clock. `timings.jsonl` holds what does.
A metric that is undefined at a step (no wrong solution to recognise, no review that can be read) is left out of its
row.

In the keys, `{role}` is who spoke, `{policy}` whose weights learned, `{objective}` what it learned for, `{signal}` the
name of a reward, `{reason}` a short phrase, `{name}` a name that the protocol or the algorithm chose, `{k}` a number. A
test checks that every key of real runs is in the table.

Column *rows*: **step** in rows of training steps; **held-out** in rows of evaluations, with `eval/` in front, and in
`before.json` and `summary.json` without it; **both** in both. On a further set of problems its name follows the
role: `solver/ood_length/pass@1`. `fixed` is the present verifier on solutions of the frozen initial model, which never
change. Column *better*: ↑ higher, ↓ lower, → 0 nearer to 0. Healthy ranges are rules of thumb; "–" means that there
is none, or that only the trend tells. Metrics marked ⚑ can raise an alarm during a run: see [Health
bands](#health-bands).

Shares and rates are in [0, 1], lengths in sampled tokens, log-probabilities and entropies in nats.
"""
# The figures in ``timings.jsonl``. They are no part of ``table.py``: no alarm watches them.
TIMINGS = (
    Metric(key="step", meaning="the step, from 0", unit=COUNT),
    Metric(key="{stage}", meaning="seconds of `rollout`, `annotate`, `credit`, `reference` and `update`", unit=SECONDS),
    Metric(
        key="{policy}/seconds", unit=SECONDS,
        meaning="of `rollout`, what the engine (all replicas) spent on this policy; a role's share is its policy's",
    ),
    Metric(
        key="process/{process}/policies", unit="",
        meaning="of `--backend ray`, for each process of the run (engines, replicas, learners, ranks): what it holds",
    ),
    Metric(
        key="process/{process}/tokens_per_second", unit="tokens",
        meaning="of an engine: tokens sampled in the step, by the seconds in which it played",
    ),
    Metric(
        key="process/{process}/published_bytes", unit=COUNT,
        meaning="of weights in the step: that learners (of ranks the first) handed out, each once; that an engine took",
    ),
    Metric(
        key="process/{process}/publish_seconds", unit=SECONDS,
        meaning="in which these weights were on their way",
    ),
    Metric(
        key="process/{process}/asleep_seconds", unit=SECONDS,
        meaning="of the step in which nothing was asked of the process",
    ),
)  # fmt: skip
SECTIONS = (
    ("Every step", RUN, ""),
    ("What a role said", SAID, ""),
    (
        "How good a solver is",
        SOLVER,
        """Every summary has four figures of held-out problems: pass@1, greedy accuracy, pass@k and maj@k. Greedy
accuracy is that of one answer at temperature 0; pass@1 is the mean over samples, pass@k the chance that one of k is
right, and maj@k the accuracy of their vote.""",
    ),
    (
        "How good a verifier is",
        VERIFIER,
        """Right is the positive class: a false positive is a wrong solution called right. Precision, recall and F1 are
those of the class "wrong". An unreadable review is a wrong judgement of either class, as in ProcessBench.
The greedy figure is measured on the greedy solutions of the same problems, one each, so on other solutions than the
sampled one. With `fixed` it is measured on the same sampled solutions of the initial model as the figure at the roles'
temperature: what a verifier gains there is skill, and what it gains beyond that at temperature 1 is lower entropy.""",
    ),
    ("Credit, by objective", CREDIT, ""),
    ("Learning, by policy", LEARNING, ""),
    (
        "Evaluations",
        EVALUATION,
        """Rows with `"kind": "evaluation"`: the validation split, every `evaluate_every` steps. `before.json` and
`summary.json` have the figures of the test split with 95 % intervals. One task is one observation: its samples are not
independent. An interval is Wilson's, on as many observations as the variance between tasks allows (a jackknife over
tasks), at Student's t; where tasks do not differ, each counts as one observation, so that 0 of 4 is [0, 0.49]. No
interval leaves what its measure can be. The change from before to after is paired by task.""",
    ),
    ("Timings", TIMINGS, "`timings.jsonl`, one row a step, in seconds of wall time: not part of any digest."),
)
BANDS_HEAD = """## Health bands

`cotrain/metrics/alarms.py` reads the rows during a run. An alarm is printed once, after the step where its band
is first left; `summary.json` lists all of them under `alarms`, with the steps (from 0) from and to which they held, and
the page's Overview shows them with the rollouts. A window is a number of rows that have the metric: in an alternating
schedule, steps at which that policy was trained. A band on a range of the table is left by a window whose mean is not
*tolerable*, or, where that metric moves from step to step, by a window of which no row is healthy. A metric
that must stay near its best has fallen only where the fall is 2.5 standard errors too, by the scatter of its last rows:
three problems a step lose 0.1 by chance. Alarms about rewards and verdicts name up to three rollouts, to be found in
`episodes/`. The pages of comparisons and studies list by recipe which alarms fired in how many runs.
"""
STARVED_HEAD = """One cause raises one alarm (`cotrain/metrics/alarms.py`): an alarm that only follows from answers
that are cut off, or unreadable, is not raised meanwhile; a constant reward is reported after the first step, and once.
That rewards do not differ is not reported for fewer than 8 problems, as in a trial with `--smoke`.

That a policy learns nothing is reported sooner, by `cotrain/metrics/starved.py`, and at the end of a run that is too
short for it:
"""
TRIED = """The bands were tried on 30 recorded runs of word problems (rows taken again from the ledgers). 21 raised
nothing: all of GRPO over 85 steps, all with a frozen verifier, a demo, three of five of Tango with class balance. The
alarms of the others: one-sided verdicts by step 15 in four of five runs of Tango *without* class balance and in both on
problems of six steps, where the verifier is known to have died ([log.md](log.md)); those two had unreadable reviews at
first; groups without spread in GRPO on seven steps, which has hardly any signal; a rising gap in two of five balanced
runs, whose verifiers call 11 to 12 points too many solutions right. The limits of the gap and of the entropy, and that
one-sided verdicts must be off by 0.05, were set after looking at these runs, the other limits before. None of these
runs hacked a reward or collapsed by consensus; [reliability.md](reliability.md), row 26, has small ones that did. """
ARROWS = {1: "↑", -1: "↓", 0: ""}
ROWS = {STEP: "step", HELD_OUT: "held-out", BOTH: "both"}


def range_text(limits: Range, most: float = math.inf) -> str:
    """A range as a reader wants it: ``below 0.1``, ``0.01 to 1``, "–" for none; ``most``: what cannot be exceeded
    anyway."""
    low, high = limits
    if limits == ANY:
        return "–"
    if low == high:
        return f"{low:g}"
    if math.isinf(low) or low == 0.0:
        return f"below {high:g}"
    return f"above {low:g}" if high == math.inf or high == most else f"{low:g} to {high:g}"


def page_text() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, metrics, lead in SECTIONS:
        timed = metrics is TIMINGS
        parts += [
            f"## {title}\n",
            *([f"{lead}\n"] if lead else []),
            _timings_table(metrics) if timed else _metrics_table(metrics),
        ]
    bands = "\n".join(
        f"| {band.name} | {', '.join(f'`{key}`' for key in band.keys)} | {band.healthy_text} | {band.window} |"
        for band in BANDS
    )
    hungry = "\n".join(f"| {name} | {what} | {steps} |" for name, _, what, steps in starved.KINDS)
    parts += [BANDS_HEAD, f"| band | metrics | healthy | window |\n|---|---|---|---|\n{bands}\n"]
    parts += [STARVED_HEAD, f"| alarm | when | steps in a row |\n|---|---|---|\n{hungry}\n", TRIED]
    return "\n".join(parts)


def _metrics_table(metrics: Sequence[Metric]) -> str:
    watched = {key for band in BANDS for key in band.keys} | {kind[1] for kind in starved.KINDS}
    lines = ["| key | meaning | rows | unit | better | healthy |", "|---|---|---|---|---|---|"]
    for one in metrics:
        flag = "⚑ " if one.key in watched else ""
        lines.append(
            f"| `{one.key}` | {flag}{one.meaning} | {ROWS[one.at]} | {one.unit or 'any'} | {_better_cell(one)} |"
            f" {_healthy_cell(one)} |"
        )
    return "\n".join(lines) + "\n"


def _better_cell(one: Metric) -> str:
    return ARROWS[one.better] if one.best_value is None else f"→ {one.best_value:g}"


def _timings_table(metrics: Sequence[Metric]) -> str:
    return "\n".join(["| key | meaning |", "|---|---|", *(f"| `{m.key}` | {m.meaning} |" for m in metrics)]) + "\n"


def _healthy_cell(metric_line: Metric) -> str:
    """Its range, the one beyond which the report says "look here", its trend; else that of the band that watches it."""
    parts = [range_text(metric_line.healthy, metric_line.limits[1])] if metric_line.healthy != ANY else []
    parts += [f"tolerable {range_text(metric_line.tolerable)}"] if metric_line.tolerable != ANY else []
    parts += [metric_line.trend] if metric_line.trend else []
    if not parts:
        parts = [
            band.healthy_text
            for band in BANDS
            if band.keys[0] == metric_line.key and len(band.keys) <= 2 and "{signal}" not in metric_line.key
        ][:1]
    return ", ".join(parts) or "–"


def main() -> None:
    """Write the page; the argument is its path, by default ``docs/metrics.md``."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/metrics.md")
    path.write_text(page_text(), encoding="utf-8")
    print(f"{path}: written from cotrain/metrics/table.py")


if __name__ == "__main__":
    main()
