"""What is said of a study: what was expected, whether that was written down before, the gate, and each part's
verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.pages.compare_markdown import section, text
from cotrain.pages.compare_overview import Cells
from cotrain.pages.compare_table import is_share
from cotrain.pages.compare_words import UNITS, amount
from cotrain.pages.escape import MAX_CHARS
from cotrain.pages.guide import interval, number


def study_markdown(study: Mapping[str, Any]) -> str:
    """``table.md``, to be committed."""
    parts = [f"# {text(study['study'].removesuffix('.toml'))}", f"Expected: {text(study['hypothesis'], MAX_CHARS)}"]
    parts.append("\n".join(f"- {text(line)}" for line in standing(study)))
    parts += section(f"{text(study['measure'])}, start → end, on test problems", figures(study))
    parts += section("Verdicts", verdicts(study)) + section("What it cost, means over seeds", costs(study))
    parts += section("Alarms", alarms(study))
    return "\n\n".join(parts) + "\n"


def standing(study: Mapping[str, Any]) -> list[str]:
    """What the results rest on: the file, what git said of it, and the gate."""
    written = "Written down before it ran" if study["git"]["committed"] else "NOT written down before it ran"
    lines = [
        f"{written}: {study['git']['words']}.",
        f"Study file {study['study']}, sha256 {study['sha256']}; began {study['began']}.",
    ]
    gate = study["gate"]
    if gate is None:
        lines.append("No gate.")
    else:
        lines.append(f"Gate: {gate['found']}." if "found" in gate else f"Gate, not run yet: {gate['asked']}.")
    return lines


def figures(study: Mapping[str, Any]) -> Cells:
    """A row for each part, a column for each arm."""
    arms = list(dict.fromkeys(arm for part in study["parts"].values() for arm in part["arms"]))
    rows = [
        [name, *(_moved(part["arms"].get(arm), study["measure"]) for arm in arms)]
        for name, part in study["parts"].items()
    ]
    return ["part", *arms], rows


def _moved(row: Mapping[str, Any] | None, measure: str) -> str:
    if row is None:
        return "–"
    before, after = Estimate.of_json(row["before"]), Estimate.of_json(row["after"])
    share = is_share(measure, {measure.split("/")[0]}, [before.value, after.value])
    start = "" if math.isnan(before.value) else f"{number(before.value, share=share)} → "
    spread = f" ({interval(after, share=share)})" if math.isfinite(after.low) else ""
    return f"{start}{number(after.value, share=share)}{spread}"


def verdicts(study: Mapping[str, Any]) -> Cells:
    rows = [
        [name, arm, row["reference"], row["words"]]
        for name, part in study["parts"].items()
        for arm, row in part["arms"].items()
        if row["words"]
    ]
    return ["part", "arm", "against", "difference"], rows


def alarms(study: Mapping[str, Any]) -> Cells:
    """Of single runs; studies of earlier versions hold none."""
    rows = [[name, *row] for name, part in study["parts"].items() for row in part.get("alarms", ())]
    return ["part", "arm", "alarm", "figure", "runs", "first after batch"], rows


def costs(study: Mapping[str, Any]) -> Cells:
    rows = [
        [
            name,
            arm,
            f"{part['rates'][arm]:g}" if arm in part["rates"] else "the recipe's",
            *(amount(spent[axis], axis) for axis in UNITS),
        ]
        for name, part in study["parts"].items()
        for arm, spent in part["costs"].items()
    ]
    return ["part", "arm", "learning rate", *UNITS.values()], rows
