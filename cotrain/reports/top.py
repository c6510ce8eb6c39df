"""``cotrain top RUN``: a run at a glance in a terminal of 80 columns and 24 lines, over ssh too.

It reads the files that the run writes, so it can be left and started at any time. Left out: memory of the device, which
no file holds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cotrain.core.verbosity import escape_terminal
from cotrain.metrics.steps import budget_share
from cotrain.reports.curves import finite_number as finite
from cotrain.reports.follow import STOPPED
from cotrain.reports.guide import number_text
from cotrain.reports.live import spark_line, speaking_roles, time_text
from cotrain.reports.runs import RunView

TREND = 16  # bars of a spark line
TRUTHS = ("accuracy", "balanced_accuracy")  # the figure that says how right a role is; the first that it has
ROLES = 6  # most roles that are shown
ALARMS = 3  # most alarms that are shown
COLUMNS = 80
LINES = 24


def snapshot(run: RunView) -> dict[str, Any]:
    """The content of the screen, as JSON."""
    run.watch_all()
    ended = (run.directory / "summary.json").is_file()
    curves = run.curves
    row = curves.last
    seconds = curves.seconds_of_last()
    roles = [_role_row(role, row, curves.rows, seconds) for role in speaking_roles(row)]
    limits = run.recipe.get("settings", {}) | {"steps": run.recipe.get("steps")}
    spent = curves.spent_by_row()
    return {
        "run": str(run.recipe.get("name") or run.directory.name),
        "directory": run.directory.name,
        "step": len(curves.rows),
        "planned": run.recipe.get("steps"),
        "share_spent": budget_share(limits, spent[-1]) if spent else 0.0,
        "phase": curves.phases[-1] if curves.phases else "",
        "ended": ended,
        "stopped": not ended and (run.directory / STOPPED).is_file(),
        "tokens": finite(row.get("tokens")),
        "seconds_a_step": seconds,
        "gap": finite(row.get("gap")),
        "roles": roles,
        "alarms": [alarm.to_json() for alarm in curves.alarms],
    }


def _role_row(
    role: str, row: Mapping[str, Any], rows: Sequence[Mapping[str, float]], seconds: float | None
) -> dict[str, Any]:
    """What the screen says of a role. ``row``: the metrics of the last step; ``rows``: of all steps."""
    latest = rows[-TREND:]
    rewards = {}
    for key in row:
        if key.startswith(f"{role}/reward/") and key.count("/") == 2:
            _, _, name = key.split("/")
            if name not in ("class_label", "label"):
                rewards[name] = [earlier[key] for earlier in latest if key in earlier]

    measured = [name for name in TRUTHS if any(f"{role}/{name}" in earlier for earlier in (row, *latest))]
    truth = measured[0] if measured else None
    tokens = finite(row.get(f"{role}/tokens"))
    return {
        "role": role,
        "rewards": rewards,
        "truth": truth,  # None where no answer is known
        "right": [earlier[f"{role}/{truth}"] for earlier in latest if f"{role}/{truth}" in earlier],
        "length": finite(row.get(f"{role}/length")),
        "tokens_per_second": tokens / seconds if tokens and seconds else None,
    }


def _alarm_lines(alarms: Sequence[Mapping[str, Any]], width: int, max_lines: int) -> list[Text]:
    """The last alarms with their advice, as many as fit into ``max_lines``. The latest is always there, and whole."""
    lines: list[str] = []
    for alarm in reversed(alarms[-ALARMS:]):
        text = f"! {escape_terminal(alarm['band'])} since step {alarm['step'] + 1}: {escape_terminal(alarm['advice'])}"
        wrapped = textwrap.wrap(text, width, subsequent_indent="  ")
        if lines and len(lines) + len(wrapped) > max_lines:
            break
        lines = [*wrapped, *lines]
    return [Text(line, style="bold red") for line in lines]


def draw_screen(run_facts: Mapping[str, Any], width: int = COLUMNS) -> Group:
    """The screen as 24 lines of 80 columns, or more lines for a long alarm. A narrower terminal, down to 40 columns,
    has the figures without their trends, and wrapped lines."""
    is_wide = width >= COLUMNS
    width = min(width, COLUMNS)
    state = f"phase {escape_terminal(run_facts['phase'], 20)}"
    if run_facts["ended"]:
        state = "ended"
    elif run_facts["stopped"]:
        state = "stopped by an error"
    time_left = ""
    share = run_facts["share_spent"]
    if not run_facts["ended"] and share and run_facts["seconds_a_step"]:
        time_left = f"  {time_text(run_facts['step'] * (1.0 - share) / share * run_facts['seconds_a_step'])} left"
    head = f"{escape_terminal(run_facts['run'], 24)}  step {run_facts['step']}, {share:.0%} done  {state}{time_left}"
    facts = []
    if run_facts["tokens"]:
        facts.append(f"{number_text(run_facts['tokens'], share=False)} tokens")
    if run_facts["seconds_a_step"]:
        facts.append(f"{run_facts['seconds_a_step']:.1f} s a step")
    if run_facts["gap"] is not None:
        facts.append(f"called right minus right {run_facts['gap']:+.2f}")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=COLUMNS if is_wide else None)
    titles = ["role", "what", "now"]
    if is_wide:
        titles += [f"last {TREND}", ""]
    for title in titles:
        table.add_column(title, justify="right" if title == "now" else "left", no_wrap=True)
    for role in run_facts["roles"][:ROLES]:
        speed = f"{role['tokens_per_second']:.0f} tokens/s" if role["tokens_per_second"] else ""
        length = f"{role['length']:.0f} tokens a turn" if role["length"] else ""
        truth = role["truth"] or "not measured"
        figures = [(f"truth: {truth.replace('_', ' ')}", role["right"])]
        figures += list(role["rewards"].items())[:2]
        first_cells = (role["role"], "", "")
        last_cells = (length, speed, "")
        for (name, values), first_cell, last_cell in zip(figures, first_cells, last_cells, strict=False):
            now = f"{values[-1]:.3f}" if values else "–"
            cells = (first_cell, name, now, spark_line(tuple(values)), last_cell)
            table.add_row(*(Text(escape_terminal(cell, 26), overflow="crop") for cell in cells[: len(titles)]))

    role_lines = sum(1 + min(2, len(role["rewards"])) for role in run_facts["roles"][:ROLES])
    other_lines = 3  # two heads, and the titles of the table
    lines_left = LINES - other_lines - role_lines
    alarm_lines = _alarm_lines(run_facts["alarms"], width, lines_left) or [Text("no alarm", style="green")]
    heads = [Text(head, style="bold"), Text(" · ".join(facts))]
    if is_wide:
        for line in heads:
            line.truncate(width)
    return Group(*heads, table, *alarm_lines)
