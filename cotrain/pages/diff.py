"""``cotrain diff A B``: two runs side by side, in a terminal of 80 columns: settings that differ, what was measured at
the end, and what both wrote to one problem.

The intervals are those of each run, over its problems. They say nothing of another seed: whether one method is better
than another is a question for ``cotrain compare``. Left out: runs that have not finished have no final figures; their
settings and rollouts are compared all the same.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.core.flags import Parser
from cotrain.core.notes import CORRECT, FINAL
from cotrain.core.statistics import Estimate
from cotrain.metrics.table import rank
from cotrain.pages.escape import terminal
from cotrain.pages.follow import object_of
from cotrain.pages.read import estimates
from cotrain.pages.runs import Run, opened, shown
from cotrain.pages.settings import flat

WIDE = 80
SIDE = (WIDE - 3) // 2  # characters of a column
NOTHING = "–"
LONGEST = 600  # characters of one text
BRIEF = 160  # of a setting


def diff(words: Sequence[str]) -> int:
    """Two runs side by side: settings that differ, final figures, and what both wrote to one problem."""
    parser = Parser(prog="cotrain diff", description=diff.__doc__)
    parser.add_argument("one", metavar="A", help="a run directory")
    parser.add_argument("other", metavar="B", help="another")
    parser.add_argument("--rollout", metavar="STEP:TASK:MEMBER", help="which one (default: the last that both have)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.strict(words)
    found = compared(opened(Path(given.one)), opened(Path(given.other)), given.rollout)
    print(json.dumps(found) if given.json else "\n".join(lines_of(found)))
    return 0


def compared(one: Run, other: Run, rollout: str | None = None) -> dict[str, Any]:
    """What ``cotrain diff`` shows. Raises ConfigError for a rollout that one of them does not have."""
    runs = (one, other)
    return {
        "runs": [
            {"directory": str(run.directory), "name": run.recipe.get("name"), "seed": run.recipe.get("seed")}
            for run in runs
        ],
        "settings": [
            {"setting": name, "a": a, "b": b}
            for name, a, b in differences(*(shown(run.recipe.get("settings", {})) for run in runs))
        ],
        "figures": _figures(*map(_final, runs)),
        "rollout": _rollout(one, other, rollout),
    }


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Dotted path and both values of every setting that is not the same; None where there is none."""
    mine, others = flat(a), flat(b)
    for name in dict.fromkeys([*mine, *others]):
        if mine.get(name) != others.get(name):
            yield name, mine.get(name), others.get(name)


def _final(run: Run) -> dict[str, Estimate]:
    summary, _ = object_of(run.directory / "summary.json") if (run.directory / "summary.json").is_file() else ({}, "")
    return estimates(summary.get("after"))


def _figures(a: Mapping[str, Estimate], b: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    """Every final figure of either, headlines first. ``apart``: the intervals do not touch."""
    found = []
    for key in sorted({*a, *b}, key=lambda key: (rank(key), key)):
        mine, others = a.get(key), b.get(key)
        apart = mine is not None and others is not None and (mine.low > others.high or others.low > mine.high)
        found.append(
            {
                "figure": key,
                "a": mine.json() if mine else None,
                "b": others.json() if others else None,
                "apart": apart,
            }
        )
    return found


def _rollout(one: Run, other: Run, address: str | None) -> dict[str, Any] | None:
    """What both wrote at one address; by default of the last step that both recorded with the same problem."""
    if address is not None:
        place = _place(address)
        named = {run.directory: run.rollout(*place) for run in (one, other)}
        for directory, found in named.items():
            if found is None:
                raise ConfigError(
                    f"cotrain diff: {directory} has no rollout {terminal(address, 60)}; `cotrain view` lists them"
                )
        return _side_by_side(named[one.directory] or {}, named[other.directory] or {})
    steps = [{member.step for member in run.rollouts.members()} for run in (one, other)]
    for step in sorted(steps[0] & steps[1], reverse=True):
        a, b = (run.rollout(step, 0, 0, tokens=0) for run in (one, other))
        if a is not None and b is not None and a["problem"] and a["problem"] == b["problem"]:
            return _side_by_side(a, b)
    return None


def _place(address: str) -> tuple[int, int, int]:
    parts = address.removeprefix("#r:").split(":")
    if len(parts) < 3 or not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts[:3]):
        raise ConfigError(f"cotrain diff: {terminal(address, 80)} is no rollout; expected STEP:TASK:MEMBER, as 12:3:0")
    step, task, member = map(int, parts[:3])
    return step, task, member


def _side_by_side(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": a["step"],
        "task": a["task"],
        "member": a["member"],
        "problem": [a["problem"], b["problem"]],
        "a": [_turn(trace) for trace in a["traces"]],
        "b": [_turn(trace) for trace in b["traces"]],
    }


def _turn(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "role": trace["role"],
        "text": trace["text"],
        "rewards": {name: value for name, value, span in trace["signals"] if span is None},
        "right": trace["truth"].get(CORRECT.name),
        "said": trace["parsed"].get(FINAL.name),
    }


# -- printing


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """The text, at most 80 columns, without a control character."""
    names = [f"{letter}: {terminal(run['directory'], 60)}" for letter, run in zip("AB", found["runs"], strict=True)]
    lines = [*names, "", "settings that differ"]
    for one in found["settings"]:
        lines += [terminal(one["setting"], WIDE), *_columns(_value(one["a"]), _value(one["b"]))]
    lines += [] if found["settings"] else ["none"]
    lines += ["", "measured at the end, with 95 % intervals over each run's problems"]
    width = 30
    for one in found["figures"]:
        mark = " *" if one["apart"] else ""
        lines.append(
            f"{terminal(one['figure'], 60)[:width]:{width}s}{_estimate(one['a']):>24s}{_estimate(one['b']):>24s}{mark}"
        )
    if found["figures"]:
        lines += ["*: the intervals do not touch; another seed may differ by more than they say"]
    else:
        lines += ["nothing: neither run is finished"]
    return [line[:WIDE].rstrip() for line in [*lines, "", *_rollout_lines(found["rollout"])]]


def _rollout_lines(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return ["no rollout that both runs have of one problem"]
    lines = [f"rollout {found['step']}:{found['task']}:{found['member']}"]
    same = found["problem"][0] == found["problem"][1]
    problems = found["problem"][:1] if same else found["problem"]
    for problem in problems:
        lines += textwrap.wrap(terminal(problem or NOTHING, LONGEST), WIDE)
    for a, b in zip_longest(found["a"], found["b"]):
        lines += ["", *_columns(_head(a), _head(b)), *_columns(_said(a), _said(b))]
    return lines


def _head(turn: Mapping[str, Any] | None) -> str:
    if turn is None:
        return NOTHING
    truth = {True: ", right", False: ", wrong"}.get(turn["right"], "")
    said = {True: ", says CORRECT", False: ", says INCORRECT"}.get(turn["said"], "")
    rewards = "".join(f", {terminal(name, 20)} {value:g}" for name, value in turn["rewards"].items())
    return f"[{terminal(turn['role'], 20)}{said or truth}{rewards}]"


def _said(turn: Mapping[str, Any] | None) -> str:
    return "" if turn is None else terminal(turn["text"], LONGEST)


def _columns(a: str, b: str) -> list[str]:
    """Two texts side by side."""
    left, right = (textwrap.wrap(text, SIDE, break_on_hyphens=False) for text in (a, b))
    return [f"{x:{SIDE}s} │ {y}" for x, y in zip_longest(left, right, fillvalue="")]


def _value(value: Any) -> str:
    return NOTHING if value is None else terminal(json.dumps(value, ensure_ascii=False), BRIEF)


def _estimate(saved: Mapping[str, Any] | None) -> str:
    if saved is None:
        return NOTHING
    if saved["low"] is None or saved["high"] is None or not math.isfinite(saved["value"] or 0.0):
        return NOTHING if saved["value"] is None else f"{saved['value']:.3f}"
    return f"{saved['value']:.3f} [{saved['low']:.3f}, {saved['high']:.3f}]"
