"""``cotrain why RUN ROLLOUT``: what one rollout was paid by whom, what was written, what was read in it, and whether it
is learned from.

Everything a model wrote is shown without a single control character.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotrain.config.names import POLICY
from cotrain.core.errors import ConfigError
from cotrain.core.flags import Parser
from cotrain.pages.escape import terminal
from cotrain.pages.runs import Run, opened

INDENT = "    "


def why(words: Sequence[str]) -> int:
    """Which reward of a rollout came from what: raw output, what was read, the truth, and whether it is learned
    from."""
    parser = Parser(prog="cotrain why", description=why.__doc__)
    parser.add_argument("directory", metavar="DIR", help="a run directory")
    parser.add_argument(
        "rollout",
        metavar="STEP:TASK:MEMBER",
        help="or more of an address: 12:3:0:verifier:1, with a role or a policy",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with every token")
    given = parser.strict(words)
    found, role = _find(opened(Path(given.directory)), given.rollout)
    if given.json:
        print(json.dumps(found))
        return 0
    print("\n".join(explained(found, role)))
    return 0


def _find(run: Run, address: str) -> tuple[dict[str, Any], str]:
    """The rollout, and the rest of the address. Raises ConfigError."""
    parts = address.removeprefix("#r:").split(":")
    if len(parts) < 3 or not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts[:3]):
        raise ConfigError(
            f"cotrain why: {terminal(address, 80)} is no rollout; expected STEP:TASK:MEMBER, as 12:3:0, from "
            "`cotrain view`"
        )
    step, task, member = map(int, parts[:3])
    found = run.rollout(step, task, member)
    if found is None:
        steps = [one.step for one in run.rollouts.members()]
        there = f"the addresses of its ledger begin with {steps[0]} to {steps[-1]}" if steps else "its ledger is empty"
        raise ConfigError(f"cotrain why: {run.directory} has no rollout {step}:{task}:{member}; {there}")
    return found, ":".join(parts[3:])


def explained(found: dict[str, Any], only: str = "") -> list[str]:
    """The lines for one rollout; of one trace alone where ``only`` ends an address that it has."""
    address = f"{found['step']}:{found['task']}:{found['member']}"
    lines = [f"rollout {address}, of step {found['step'] + 1}, task {terminal(found['task_id'], 80)}"]
    if found["failure"]:
        lines.append(f"broke off: {terminal(found['failure'], 200)}")
    if found["problem"]:
        lines.append(f"problem: {terminal(found['problem'], 2000)}")
    speaker, _, call = only.removeprefix(POLICY).partition(":")
    named = [trace for trace in found["traces"] if only and trace["address"].endswith(f":{only}")]
    named = named or [
        trace
        for trace in found["traces"]
        if speaker in (trace["role"], trace["policy"]) and (not call or trace["address"].endswith(f":{call}"))
    ]
    for trace in named or found["traces"]:
        lines += ["", *_trace(trace)]
    return lines


def _trace(trace: dict[str, Any]) -> list[str]:
    judged = f", judges {terminal(trace['parent'], 80)}" if trace["parent"] else ""
    by = f"{terminal(trace['role'], 60)} ({terminal(trace['policy'], 60)}, version {trace['version']}){judged}"
    lines = [f"{terminal(trace['address'], 80)}  {by}"]
    for name, value, span in trace["signals"]:
        weight = f" × {trace['weights'][name]:g}" if name in trace["weights"] else " × 0" if trace["weights"] else ""
        where = f" for tokens {span[0]} to {span[1]}" if span else ""
        lines.append(f"{INDENT}reward {terminal(name, 60)} {value:g}{weight}{where}")
    sampled = sum(end - start for start, end, _ in trace["turns"]) if trace["turns"] else trace["token_count"]
    masked = trace["token_count"] - sampled
    ended = terminal(trace["finish"], 60)
    if spread := _sampled(trace, trace.get("entropies") or []):
        mean, most = sum(spread) / len(spread), max(range(len(spread)), key=spread.__getitem__)
        lines.append(
            f"{INDENT}entropy of a token: mean {mean:.3g} nats, most {spread[most]:.3g} at sampled token {most}"
        )
    for objective, told in trace.get("advantages", {}).items():
        known = [value for value in told if value is not None]
        if known:
            span = f"{min(known):g}" if min(known) == max(known) else f"{min(known):g} to {max(known):g}"
            lines.append(f"{INDENT}advantage of {terminal(objective, 60)}: {span}")
    lines += [
        f"{INDENT}learned from: {terminal(trace['learned'], 300)}",
        f"{INDENT}{sampled} tokens sampled, {masked} given and masked, ended by {ended}",
        f"{INDENT}written: {terminal(trace['text'])}",
        f"{INDENT}read: {terminal(json.dumps(trace['parsed'], ensure_ascii=False))}",
        f"{INDENT}truth: {terminal(json.dumps(trace['truth'], ensure_ascii=False))}",
    ]
    return lines


def _sampled(trace: dict[str, Any], values: Sequence[float]) -> list[float]:
    """The values of the sampled tokens alone."""
    spans = [(turn[0], turn[1]) for turn in trace["turns"] or [[0, len(values)]]]
    return [value for start, end in spans for value in values[start:end]]
