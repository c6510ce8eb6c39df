"""``cotrain why RUN ROLLOUT``: the rewards of one rollout and their sources, its text, what was parsed, and whether it
is learned from; ``cotrain why RUN``: the rollouts on which judge and truth differ.

Everything a model wrote is shown without a single control character.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cotrain.config.names import POLICY
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import count_of, escape_terminal
from cotrain.reports.rollouts import FIELDS
from cotrain.reports.runs import RunView

INDENT = "    "
MOST_DIFFERING = 20  # answers that are listed


def disagreements(run: RunView) -> tuple[list[dict[str, Any]], int]:
    """All answers whose verdict is not the truth, the latest steps first; and how many have both."""
    rollouts = run.rollouts
    disagreeing: list[dict[str, Any]] = []
    n_compared = 0
    n_seen = 0
    while rollouts.read_some():  # the ledger's latest steps first
        rows, problems, _ = rollouts.known_rows()
        for row in rows[n_seen:]:
            cell = dict(zip(FIELDS, row, strict=True))
            is_known = cell["right"] is not None and cell["said"] is not None
            n_compared += is_known
            if is_known and cell["right"] != cell["said"]:
                disagreeing.append(
                    {
                        "rollout": f"{cell['step']}:{cell['task']}:{cell['member']}",
                        "said": bool(cell["said"]),
                        "right": bool(cell["right"]),
                        "answer": cell["answer"],
                        "problem": problems[cell["problem"]],
                    }
                )

        n_seen = len(rows)
    return disagreeing, n_compared


def disagreement_lines(rows: Sequence[dict[str, Any]], n_compared: int, width: int, *, own_run: bool) -> list[str]:
    """Their number, and a line of at most ``width`` characters for each of the latest.

    ``n_compared``: how many answers have a verdict and a truth. ``own_run``: whether to say that addresses count steps
    from 0, and texts from 1. Of other trainers' runs it is not known from where they count.
    """
    if not n_compared:
        return [
            "no answer has both a verdict and a truth, so there is nothing to compare",
            "`cotrain why DIR STEP:TASK:MEMBER` shows one answer, such as 0:0:0",
        ]
    if not rows:
        return [f"judge and truth agree on {count_of(n_compared, 'answer')}, all that have both"]
    listed = rows[:MOST_DIFFERING]
    count = count_of(len(rows), "answer") if len(listed) == len(rows) else f"{len(listed)} of {len(rows)} answers"
    from_0 = "; addresses count from 0, so that 0:0:0 is of step 1" if own_run else ""
    lines = [
        f"judge and truth differ: {count}, the latest first",
        f"`cotrain why DIR STEP:TASK:MEMBER` shows one{from_0}",
    ]
    for row in listed:
        verdict = "accepted, wrong" if row["said"] else "rejected, right"
        answer = escape_terminal(row["answer"] or "no answer found", 40)
        begin = f"{row['rollout']:>12s}  {verdict}: {answer}  "
        lines.append(begin + _cut(f"({_plain(row['problem'])})", width - len(begin)))
    return lines


def _plain(text: object) -> str:
    """A whole text, safe to show."""
    return escape_terminal(text, len(str(text)))


def _cut(text: str, width: int) -> str:
    """A text that ends where the line does."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def find_rollout(run: RunView, address: str) -> tuple[dict[str, Any], str]:
    """The rollout at STEP:TASK:MEMBER, and what stands behind these in the address. Raises ConfigError."""
    parts = address.removeprefix("#r:").split(":")  # "#r:" as in the address of a page
    if len(parts) < 3 or not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts[:3]):
        raise ConfigError(
            f"cotrain why: {escape_terminal(address, 80)} is no rollout; expected STEP:TASK:MEMBER, as 12:3:0, from "
            "`cotrain view`",
            code="E_ROLLOUT_ADDRESS",
        )
    step, task, member = map(int, parts[:3])
    rollout = run.rollout(step, task, member)
    if rollout is None:
        steps = [member.step for member in run.rollouts.members()]
        recorded = "its ledger is empty"
        if steps:
            recorded = f"the addresses of its ledger begin with {steps[0]} to {steps[-1]}"
        raise ConfigError(
            f"cotrain why: {run.place} has no rollout {step}:{task}:{member}; {recorded}", code="E_NO_SUCH_ROLLOUT"
        )
    return rollout, ":".join(parts[3:])


def explain_rollout(rollout: dict[str, Any], address_end: str = "") -> list[str]:
    """The lines for one rollout. ``address_end``, such as "verifier:1", restricts them to the traces that it names; if
    it names none, all are shown."""
    address = f"{rollout['step']}:{rollout['task']}:{rollout['member']}"
    is_foreign = "unit" in rollout
    step = rollout["step"] if is_foreign else rollout["step"] + 1  # other trainers count their steps themselves
    lines = [f"rollout {address}, of step {step}, task {escape_terminal(rollout['task_id'], 80)}"]
    if rollout["failure"]:
        lines.append(f"broke off: {escape_terminal(rollout['failure'], 200)}")
    if rollout["problem"]:
        lines.append(f"problem: {escape_terminal(rollout['problem'], 2000)}")
    traces = _traces_at(rollout["traces"], address_end) or rollout["traces"]
    for trace in traces:
        lines += ["", *_trace_lines(trace, rollout.get("unit", "token"))]
    return lines


def _traces_at(traces: Sequence[dict[str, Any]], address_end: str) -> list[dict[str, Any]]:
    """The traces whose addresses end so. If there are none: those of a role or policy with this name, such as
    "verifier", or one of its calls, such as "policy/generator:1"."""
    if not address_end:
        return []
    exact = [trace for trace in traces if trace["address"].endswith(f":{address_end}")]
    if exact:
        return exact
    speaker, _, call = address_end.removeprefix(POLICY).partition(":")
    by_speaker = [trace for trace in traces if speaker in (trace["role"], trace["policy"])]
    return [trace for trace in by_speaker if not call or trace["address"].endswith(f":{call}")]


def _trace_lines(trace: dict[str, Any], unit: str) -> list[str]:
    judged = f", judges {escape_terminal(trace['parent'], 80)}" if trace["parent"] else ""
    role = escape_terminal(trace["role"], 60)
    policy = escape_terminal(trace["policy"], 60)
    lines = [f"{escape_terminal(trace['address'], 80)}  {role} ({policy}, version {trace['version']}){judged}"]
    for name, value, span in trace["rewards"]:
        weight = ""
        if name in trace["weights"]:
            weight = f" × {trace['weights'][name]:g}"
        elif trace["weights"]:  # an objective trains on this trace, but not on this reward
            weight = " × 0"
        where = f" for tokens {span[0]} to {span[1]}" if span else ""
        lines.append(f"{INDENT}reward {escape_terminal(name, 60)} {value:g}{weight}{where}")

    sampled = sum(end - start for start, end, _ in trace["turns"]) if trace["turns"] else trace["token_count"]
    masked = trace["token_count"] - sampled
    ended = escape_terminal(trace["finish"], 60)
    entropies = _sampled_values(trace, trace.get("entropies") or [])
    if entropies:
        mean = sum(entropies) / len(entropies)
        largest_at = max(range(len(entropies)), key=entropies.__getitem__)
        lines.append(
            f"{INDENT}entropy of a token: mean {mean:.3g} nats, most {entropies[largest_at]:.3g} at sampled token "
            f"{largest_at}"
        )

    for objective, values in trace.get("advantages", {}).items():
        known_values = [value for value in values if value is not None]
        if known_values:
            low = min(known_values)
            high = max(known_values)
            values_text = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            lines.append(f"{INDENT}advantage of {escape_terminal(objective, 60)}: {values_text}")

    truth = "none is known"
    if trace["metadata"]:
        truth = json.dumps(trace["metadata"], ensure_ascii=False)
    lines += [
        f"{INDENT}learned from: {escape_terminal(trace['learned'], 300)}",
        f"{INDENT}{sampled} {unit}s sampled, {masked} given and masked, ended by {ended}",
        f"{INDENT}written: {escape_terminal(trace['text'])}",
        f"{INDENT}read: {escape_terminal(json.dumps(trace['findings'], ensure_ascii=False))}",
        f"{INDENT}truth: {escape_terminal(truth)}",
    ]
    return lines


def _sampled_values(trace: dict[str, Any], values: Sequence[float]) -> list[float]:
    """The values of the sampled tokens alone."""
    spans = [(turn[0], turn[1]) for turn in trace["turns"] or [[0, len(values)]]]
    return [value for start, end in spans for value in values[start:end]]
