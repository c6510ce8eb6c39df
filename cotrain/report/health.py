"""The alarms of a run in its report: which health bands were left, when, what was read, and what to do about it.

They are found anew from the rows, not taken from ``summary.json``: a run that is still going has them too.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotrain.metrics.alarm import Alarm
from cotrain.metrics.alarms import BANDS, Band, check, watched, with_examples
from cotrain.metrics.table import metric
from cotrain.report.escape import page
from cotrain.report.read import Run, read_episodes

MOST = 40  # alarms shown


def alarms(run: Run) -> str:
    """A table of alarms, and folded under it all bands; nothing for a run without rows."""
    rows = [{"step": row.step, **row.values} for row in run.training]
    if not rows:
        return ""
    found = check(rows, finished=bool(run.summary))
    found = [with_examples(alarm, lambda step: read_episodes(run.directory, step)) for alarm in found[:MOST]]
    return _alarms(found) + _bands(found, {key for row in rows for key in row})


def _alarms(found: Sequence[Alarm]) -> str:
    if not found:
        return '<p class="lead"><span class="status s0">● no alarm</span> Every health band was kept.</p>'
    body = "".join(
        f'<tr><th scope="row"><span class="status s2">■ alarm</span> {page(alarm.band, 80)} '
        f"<small>{page(alarm.key, 200)}</small></th><td>{_steps(alarm)}</td>"
        f"<td>{page(alarm.reading, 100)} <small>healthy: {page(alarm.healthy, 200)}</small></td>"
        f"<td>{page(alarm.advice, 300)}{_examples(alarm)}</td></tr>"
        for alarm in found
    )
    return _table(("alarm", "steps", "read at the first", "what to do"), body)


def _steps(alarm: Alarm) -> str:
    return f"{alarm.step}" if alarm.step == alarm.last else f"{alarm.step} to {alarm.last}"


def _examples(alarm: Alarm) -> str:
    return f" <small>rollouts {page(', '.join(alarm.examples), 300)}</small>" if alarm.examples else ""


def _bands(found: Sequence[Alarm], keys: set[str]) -> str:
    """Every band with its range: in the band, left, or not recorded in this run."""
    left, applying = {alarm.band for alarm in found}, {band.name for band in watched(keys)}
    body = ""
    for band in BANDS:
        state = (" s0", "● kept") if band.name in applying else ("", "· no data")
        if band.name in left:
            state = (" s2", "■ alarm")
        body += (
            f'<tr><th scope="row">{page(band.name, 80)}</th><td>{page(_metrics(band), 200)}</td>'
            f"<td>{page(band.healthy, 200)}</td><td>{band.window} steps</td>"
            f'<td><span class="status{state[0]}">{state[1]}</span></td></tr>'
        )
    summary = f"<summary>the {len(BANDS)} bands that are watched</summary>"
    return f"<details>{summary}{_table(('band', 'metrics', 'healthy', 'window', 'state'), body)}</details>"


def _metrics(band: Band) -> str:
    return ", ".join(metric(key).name for key in band.keys).replace("{signal}", "any")


def _table(heads: Sequence[str], body: str) -> str:
    head = "".join(f'<th scope="col">{title}</th>' for title in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
