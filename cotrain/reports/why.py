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


def disagreements(run: RunView) -> list[dict[str, Any]]:
    """All answers whose verdict is not the truth, the latest steps first."""
    place = {name: at for at, name in enumerate(FIELDS)}
    rollouts = run.rollouts
    disagreeing: list[dict[str, Any]] = []
    read = 0
    while rollouts.read_some():
        rows, problems, _ = rollouts.known_rows()
        for row in rows[read:]:
            right = row[place["right"]]
            said = row[place["said"]]
            if right is not None and said is not None and right != said:
                disagreeing.append(
                    {
                        "rollout": ":".join(str(row[place[name]]) for name in ("step", "task", "member")),
                        "said": bool(said),
                        "right": bool(right),
                        "answer": row[place["answer"]],
                        "problem": problems[row[place["problem"]]],
                    }
                )

        read = len(rows)
    return disagreeing


def disagreement_lines(rows: Sequence[dict[str, Any]], width: int, *, own_run: bool) -> list[str]:
    """How many there are, and a line of at most ``width`` characters for each of the latest.

    ``own_run``: a run of ours counts its steps from 0 in addresses and from 1 in words; another trainer as it likes."""
    if not rows:
        return ["nowhere do judge and truth differ, as far as both are known"]
    shown = rows[:MOST_DIFFERING]
    how_many = count_of(len(rows), "answer") if len(shown) == len(rows) else f"{len(shown)} of {len(rows)} answers"
    from_0 = "; addresses count from 0, so that 0:0:0 is of step 1" if own_run else ""
    lines = [
        f"judge and truth differ: {how_many}, the latest first",
        f"`cotrain why DIR STEP:TASK:MEMBER` shows one{from_0}",
    ]
    for one in shown:
        verdict = "accepted, wrong" if one["said"] else "rejected, right"
        answer = escape_terminal(one["answer"] or "no answer found", 40)
        begin = f"{one['rollout']:>12s}  {verdict}: {answer}  "
        lines.append(begin + _cut(f"({_plain(one['problem'])})", width - len(begin)))
    return lines


def _plain(text: object) -> str:
    """A whole text, safe to show."""
    return escape_terminal(text, len(str(text)))


def _cut(text: str, width: int) -> str:
    """A text that ends where the line does."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def find_rollout(run: RunView, address: str) -> tuple[dict[str, Any], str]:
    """The rollout, and the rest of the address. Raises ConfigError."""
    parts = address.removeprefix("#r:").split(":")
    if len(parts) < 3 or not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts[:3]):
        raise ConfigError(
            f"cotrain why: {escape_terminal(address, 80)} is no rollout; expected STEP:TASK:MEMBER, as 12:3:0, from "
            "`cotrain view`",
            code="E_ROLLOUT_ADDRESS",
        )
    step, task, member = map(int, parts[:3])
    rollout = run.rollout(step, task, member)
    if rollout is None:
        steps = [one.step for one in run.rollouts.members()]
        recorded = (
            f"the addresses of its ledger begin with {steps[0]} to {steps[-1]}" if steps else "its ledger is empty"
        )
        raise ConfigError(
            f"cotrain why: {run.place} has no rollout {step}:{task}:{member}; {recorded}", code="E_NO_SUCH_ROLLOUT"
        )
    return rollout, ":".join(parts[3:])


def explain_rollout(rollout: dict[str, Any], address_end: str = "") -> list[str]:
    """The lines for one rollout; of one trace alone where ``address_end`` ends an address that it has."""
    address = f"{rollout['step']}:{rollout['task']}:{rollout['member']}"
    counted = rollout["step"] + (0 if "unit" in rollout else 1)  # other trainers count their steps themselves
    lines = [f"rollout {address}, of step {counted}, task {escape_terminal(rollout['task_id'], 80)}"]
    if rollout["failure"]:
        lines.append(f"broke off: {escape_terminal(rollout['failure'], 200)}")
    if rollout["problem"]:
        lines.append(f"problem: {escape_terminal(rollout['problem'], 2000)}")
    speaker, _, call = address_end.removeprefix(POLICY).partition(":")
    chosen = [trace for trace in rollout["traces"] if address_end and trace["address"].endswith(f":{address_end}")]
    chosen = chosen or [
        trace
        for trace in rollout["traces"]
        if speaker in (trace["role"], trace["policy"]) and (not call or trace["address"].endswith(f":{call}"))
    ]
    for trace in chosen or rollout["traces"]:
        lines += ["", *_trace_lines(trace, rollout.get("unit", "token"))]
    return lines


def _trace_lines(trace: dict[str, Any], unit: str) -> list[str]:
    judged = f", judges {escape_terminal(trace['parent'], 80)}" if trace["parent"] else ""
    role = escape_terminal(trace["role"], 60)
    policy = escape_terminal(trace["policy"], 60)
    lines = [f"{escape_terminal(trace['address'], 80)}  {role} ({policy}, version {trace['version']}){judged}"]
    for name, value, span in trace["rewards"]:
        weight = ""
        if name in trace["weights"]:
            weight = f" × {trace['weights'][name]:g}"
        elif trace["weights"]:
            weight = " × 0"
        where = f" for tokens {span[0]} to {span[1]}" if span else ""
        lines.append(f"{INDENT}reward {escape_terminal(name, 60)} {value:g}{weight}{where}")

    sampled = sum(end - start for start, end, _ in trace["turns"]) if trace["turns"] else trace["token_count"]
    masked = trace["token_count"] - sampled
    ended = escape_terminal(trace["finish"], 60)
    if entropies := _sampled_values(trace, trace.get("entropies") or []):
        mean = sum(entropies) / len(entropies)
        largest_at = max(range(len(entropies)), key=entropies.__getitem__)
        lines.append(
            f"{INDENT}entropy of a token: mean {mean:.3g} nats, most {entropies[largest_at]:.3g} at sampled token "
            f"{largest_at}"
        )

    for objective, values in trace.get("advantages", {}).items():
        known_values = [value for value in values if value is not None]
        if known_values:
            span = (
                f"{min(known_values):g}"
                if min(known_values) == max(known_values)
                else f"{min(known_values):g} to {max(known_values):g}"
            )
            lines.append(f"{INDENT}advantage of {escape_terminal(objective, 60)}: {span}")

    lines += [
        f"{INDENT}learned from: {escape_terminal(trace['learned'], 300)}",
        f"{INDENT}{sampled} {unit}s sampled, {masked} given and masked, ended by {ended}",
        f"{INDENT}written: {escape_terminal(trace['text'])}",
        f"{INDENT}read: {escape_terminal(json.dumps(trace['findings'], ensure_ascii=False))}",
        f"{INDENT}truth: {escape_terminal(json.dumps(trace['metadata'], ensure_ascii=False))}",
    ]
    return lines


def _sampled_values(trace: dict[str, Any], values: Sequence[float]) -> list[float]:
    """The values of the sampled tokens alone."""
    spans = [(turn[0], turn[1]) for turn in trace["turns"] or [[0, len(values)]]]
    return [value for start, end in spans for value in values[start:end]]
