"""The text of a study's page: the hypothesis, whether it was written down before the runs, the gate, and each part's
verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.core.verbosity import MAX_CHARS
from cotrain.reports.compare_markdown import escape_markdown, table_section
from cotrain.reports.compare_overview import TextTable, estimate_text
from cotrain.reports.compare_table import is_share
from cotrain.reports.compare_words import UNITS, amount_text, seeds_that_ran
from cotrain.reports.guide import number_text


def study_markdown(study: Mapping[str, Any]) -> str:
    """``table.md``, to be committed."""
    parts = [
        f"# {escape_markdown(study['study'].removesuffix('.toml'))}",
        f"Expected: {escape_markdown(study['hypothesis'], MAX_CHARS)}",
    ]
    parts.append("\n".join(f"- {escape_markdown(line, MAX_CHARS)}" for line in standing_lines(study)))
    parts += table_section(f"{escape_markdown(study['measure'])}, start → end, on test problems", study_figures(study))
    parts += table_section("Verdicts", study_verdicts(study))
    parts += table_section("What it cost, means over seeds", study_costs(study))
    parts += table_section("Alarms", study_alarms(study))
    return "\n\n".join(parts) + "\n"


def standing_lines(study: Mapping[str, Any]) -> list[str]:
    """The lines that say what the results rest on: how many of the planned seeds ran, the file, its state in git, and
    the gate."""
    when_written = "Written down before it ran" if study["git"]["committed"] else "NOT written down before it ran"
    lines = [
        *early_end_lines(study),
        f"{when_written}: {study['git']['words']}.",
        f"Study file {study['study']}, sha256 {study['sha256']}; began {study['began']}.",
    ]
    for change in study.get("changes", ()):
        lines.append(
            f"The file was changed on {change['when']}, in {change['what']} (sha256 {change['sha256']}): "
            f"{change['git']}."
        )
    gate = study["gate"]
    if gate is None:
        lines.append("No gate.")
    elif "found" in gate:
        lines.append(f"Gate: {gate['found']}.")
    else:
        lines.append(f"Gate, not run yet: {gate['asked']}.")
    return lines


def early_end_lines(study: Mapping[str, Any]) -> list[str]:
    """A line for each part that was ended at fewer seeds than planned."""
    lines = []
    for name, counts in study.get("ended_early", {}).items():
        lines.append(f"Ended early: {seeds_that_ran(counts['seeds'], counts['planned'])} in part {name}.")
    return lines


def study_figures(study: Mapping[str, Any]) -> TextTable:
    """A row for each part, a column for each arm."""
    arms = list(dict.fromkeys(arm for part in study["parts"].values() for arm in part["arms"]))
    rows = []
    for name, part in study["parts"].items():
        cells = [_start_to_end(part["arms"].get(arm), study["measure"]) for arm in arms]
        rows.append([name, *cells])
    return ["part", *arms], rows


def _start_to_end(row: Mapping[str, Any] | None, measure: str) -> str:
    if row is None:
        return "–"
    before, after = Estimate.from_json(row["before"]), Estimate.from_json(row["after"])
    share = is_share(measure, {measure.split("/")[0]}, [before.value, after.value])
    start = "" if math.isnan(before.value) else f"{number_text(before.value, share=share)} → "
    return start + estimate_text(after, share)


def study_verdicts(study: Mapping[str, Any]) -> TextTable:
    rows = [
        [name, arm, row["reference"] or "–", row["words"]]
        for name, part in study["parts"].items()
        for arm, row in part["arms"].items()
        if row["words"]
    ]
    return ["part", "arm", "against", "difference"], rows


def study_alarms(study: Mapping[str, Any]) -> TextTable:
    """The alarms of single runs; studies of earlier versions hold none."""
    rows = [[name, *row] for name, part in study["parts"].items() for row in part.get("alarms", ())]
    return ["part", "arm", "alarm", "figure", "runs", "first after batch"], rows


def study_costs(study: Mapping[str, Any]) -> TextTable:
    rows = []
    for name, part in study["parts"].items():
        for arm, spent in part["costs"].items():
            rate = f"{part['rates'][arm]:g}" if arm in part["rates"] else "–"
            amounts = [amount_text(spent[axis], axis) for axis in UNITS]
            rows.append([name, arm, rate, *amounts])
    return ["part", "arm", "learning rate chosen", *UNITS.values()], rows
