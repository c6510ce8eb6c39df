"""Somebody else's rollouts in the shape of a run of ours: its ledger, its rows of metrics and its alarms, so that the
viewer, `why`, `diff` and the alarms read them as they read a run.

The policy that answered is the role ``policy``; the judge is the role ``judge``, which gives a verdict on every answer
that it scored. Their files hold no tokens: a *word* stands in the place of each, so lengths are lengths in words.

Left out: advantages, log-probabilities and everything else that was learned; held-out figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from cotrain.core.notes import ANSWER, CORRECT, FINAL, GOLD, PROBLEM
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Reward, Trace
from cotrain.formats.answers import answer_in
from cotrain.metrics.alarms import Alarm, check_rows
from cotrain.metrics.steps import MetricsRow, reward_gap, role_metrics
from cotrain.runs.foreign_files import ForeignRollout, ForeignRun
from cotrain.storage.jsonl import encode_row
from cotrain.storage.ledger import Ledger

POLICY = "policy"  # the role that answers
JUDGE = "judge"  # the role that gives scores
FOREIGN = "foreign"  # key of recipe.json: whose rollouts these are
SAME = 1e-9  # scores that differ by less are equal


def step_groups(run: ForeignRun) -> Iterator[tuple[int, list[ForeignRollout]]]:
    """The rollouts of each step, steps rising."""
    for step, rollouts in groupby(run.rollouts, key=lambda rollout: rollout.step):
        yield step, list(rollouts)


def episodes_of(rollouts: Sequence[ForeignRollout], judge: str) -> list[Episode]:
    """An episode for each rollout of one step: what the policy wrote, and what the judge said of it."""
    return [
        Episode(
            step=rollout.step,
            task=rollout.task,
            member=rollout.member,
            task_id=rollout.where,
            traces=_traces_of(rollout, judge),
        )
        for rollout in rollouts
    ]


def _traces_of(rollout: ForeignRollout, judge: str) -> tuple[Trace, ...]:
    answered = Address(step=rollout.step, task=rollout.task, member=rollout.member, role=POLICY, call=0)
    judged = Address(step=rollout.step, task=rollout.task, member=rollout.member, role=JUDGE, call=0)
    truth: dict[str, Any] = {}
    if rollout.truth is not None:
        truth[CORRECT.name] = rollout.truth
    if rollout.gold is not None:
        truth[GOLD.name] = rollout.gold
    answer = answer_in(rollout.response)
    found: dict[str, Any] = {PROBLEM.name: rollout.prompt or rollout.problem, ANSWER.name: answer}
    signals = tuple(Reward(name=_signal_name(name), value=value) for name, value in rollout.scores.items())
    spoken = _trace(answered, rollout.response, "length" if rollout.is_cut else "stop", signals, found, truth)
    if rollout.verdict is None:
        return (spoken,)
    said = "accepts" if rollout.verdict else "rejects"
    words = f"{judge} {rollout.scores[judge]:g}: {said}"
    review = _trace(judged, words, "stop", (), {FINAL.name: rollout.verdict}, truth, parent=str(answered))
    return (review, spoken)


def _trace(
    address: Address,
    text: str,
    finish: str,
    signals: tuple[Reward, ...],
    parsed: dict[str, Any],
    truth: dict[str, Any],
    parent: str | None = None,
) -> Trace:
    words = max(1, len(text.split()))
    return Trace(
        address=address,
        role=address.role,
        policy=address.role,
        version=max(0, address.step),
        group=f"{address.role}:{address.task}",
        prompt_ids=(),
        token_ids=(0,) * words,
        logprobs=(0.0,) * words,
        text=text,
        finish=finish,
        rewards=signals,
        findings=parsed,
        metadata=truth,
        parent=parent,
    )


def _signal_name(column: str) -> str:
    """A column's name as that of a signal: one name in a metric's key."""
    return column.replace("/", "_")


# -- rows of metrics


def metrics_rows(run: ForeignRun) -> list[MetricsRow]:
    """A row for each step, with the keys of a run's."""
    rows = []
    for step, rollouts in step_groups(run):
        episodes = episodes_of(rollouts, run.columns.judge)
        row: MetricsRow = {"step": step, "phase": POLICY}
        row |= role_metrics(episodes, (POLICY, JUDGE))
        gap = reward_gap(episodes)
        if gap is not None:
            row["gap"] = gap
        without_spread = _share_without_spread(rollouts, run.columns.judge)
        if without_spread is not None:
            row[f"{POLICY}/zero_spread_groups"] = without_spread
        rows.append(row)
    return rows


def _share_without_spread(rollouts: Sequence[ForeignRollout], judge: str) -> float | None:
    """The share of problems with several answers that all have one score: nothing is learned from them. None where no
    problem has several."""
    scores: dict[int, list[float]] = {}
    for rollout in rollouts:
        if judge in rollout.scores:
            scores.setdefault(rollout.task, []).append(rollout.scores[judge])
    groups = [values for values in scores.values() if len(values) > 1]
    if not groups:
        return None
    return sum(max(values) - min(values) < SAME for values in groups) / len(groups)


def problems_per_step(run: ForeignRun) -> int:
    """How many problems the largest step has."""
    return max(rollout.task for rollout in run.rollouts) + 1


def foreign_alarms(run: ForeignRun) -> list[Alarm]:
    """The alarms of a run, on these rollouts."""
    return check_rows(metrics_rows(run), finished=True, problems=problems_per_step(run))


# -- a directory that is read as a run's


def write_as_run(run: ForeignRun, directory: Path) -> None:
    """Write ``recipe.json``, ``metrics.jsonl``, the ledger and ``summary.json`` into a new or empty directory."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = metrics_rows(run)
    alarms = check_rows(rows, finished=True, problems=problems_per_step(run))
    recipe = {
        "name": run.kind,
        "description": f"Rollouts that cotrain did not make: {run.kind}.",
        "steps": len(run.steps),
        "checkpoint_every": 1,
        "origin": None,
        "settings": {"steps": len(run.steps), "tasks_per_step": problems_per_step(run), "policies": {}},
        FOREIGN: {"files": [str(path) for path in run.paths], "columns": run.columns.named()},
    }
    summary = {"steps": len(run.steps), "before": {}, "after": {}, "alarms": [alarm.to_json() for alarm in alarms]}
    with (directory / "metrics.jsonl").open("wb") as file:
        file.writelines(map(encode_row, rows))
    ledger = Ledger(directory / "episodes")
    for step, rollouts in step_groups(run):
        ledger.append(step, episodes_of(rollouts, run.columns.judge))
    ledger.close()
    _write_json(directory / "summary.json", summary)
    _write_json(directory / "recipe.json", recipe)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
