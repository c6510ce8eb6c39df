"""One flat row a step: what each role said and earned, against the truth.

Keys are ``{role}/…`` for what was played and ``{policy}/…`` for what was learned. Nothing in the row depends on the
clock, so that a resumed run writes the same file; seconds stand in ``timings.jsonl``. What co-training alone has to
watch is measured in ``telemetry``; ``docs/metrics.md`` has a line for each key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cotrain.core.types import Episode, Trace
from cotrain.loop import telemetry
from cotrain.loop.measures import verdict_rates
from cotrain.play.executor import FAILED

Row = dict[str, float | int | str]


def role_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> Row:
    """Figures of every role that spoke in these episodes."""
    row: Row = {}
    failures: Counter[str] = Counter(e.failure for e in episodes if e.failure)
    for role in roles:
        traces = [t for e in episodes for t in e.traces if t.role == role]
        if traces:
            row |= _one_role(role, traces)
            failures.update(f"{role}: {t.failure}" for t in traces if t.failure)
    for reason, count in sorted(failures.items()):
        row[f"failures/{reason}"] = count
    return row


def _one_role(role: str, traces: Sequence[Trace]) -> Row:
    n = len(traces)
    unparsed = Counter(str(t.parsed["failure"]) for t in traces if t.parsed.get("failure"))
    row: Row = {
        f"{role}/traces": n,
        f"{role}/tokens": sum(len(t.token_ids) for t in traces),
        f"{role}/length": sum(len(t.token_ids) for t in traces) / n,
        f"{role}/truncated": sum(t.finish == "length" for t in traces) / n,
        f"{role}/parse_failures": sum(unparsed.values()) / n,
    }
    for reason, count in sorted(unparsed.items()):
        row[f"{role}/parse_failure/{reason}"] = count
    for outcome, count in sorted(Counter(str(t.parsed["program"]) for t in traces if t.parsed.get("program")).items()):
        row[f"{role}/program/{outcome}"] = count
    names = sorted({s.name for t in traces for s in t.signals})
    for name in names:
        values = [s.value for t in traces for s in t.signals if s.name == name]
        row[f"{role}/reward/{name}"] = sum(values) / len(values)
    if telemetry.judges(traces):
        row |= verdict_rates(role, traces)
        row |= telemetry.reviews(role, traces)
    elif not telemetry.comments(traces):
        row |= _truth(role, traces)
        row |= telemetry.answers(role, traces)
    for observe in (telemetry.rewards, telemetry.scores, telemetry.lengths, telemetry.truth_notes):
        row |= observe(role, traces)
    return row


def _truth(role: str, traces: Sequence[Trace]) -> Row:
    row: Row = {}
    known = [bool(t.truth["correct"]) for t in traces if t.truth.get("correct") is not None]
    steps = [bool(ok) for t in traces for ok in t.truth.get("step_ok") or ()]
    ungraded = sum(t.failure not in (None, FAILED) for t in traces)
    if known or ungraded:
        row[f"{role}/ungraded"] = ungraded / (len(known) + ungraded)
    if known:
        row[f"{role}/accuracy"] = sum(known) / len(known)
    if steps:
        row[f"{role}/step_accuracy"] = sum(steps) / len(steps)
        row[f"{role}/steps"] = len(steps) / sum(1 for t in traces if t.truth.get("step_ok"))
    right = [t for t in traces if t.truth.get("correct") and t.truth.get("step_ok")]
    if right:  # how faithful are right answers
        row[f"{role}/sound_when_correct"] = sum(all(t.truth["step_ok"]) for t in right) / len(right)
    return row


def reward_gap(episodes: Sequence[Episode]) -> float | None:
    """What the judges said of the solutions minus what is true: mean verdict CORRECT minus mean truth over parsed
    reviews. Positive when the solver is believed more than it deserves. None when nothing was judged."""
    pairs = [
        (float(t.parsed["final"]), float(t.truth["correct"]))
        for e in episodes
        for t in e.traces
        if t.parent is not None and t.parsed.get("final") is not None and t.truth.get("correct") is not None
    ]
    return sum(said - true for said, true in pairs) / len(pairs) if pairs else None
