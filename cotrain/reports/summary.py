"""The printed summary of a finished run: its main figures before and after, a line each, and where its report is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cotrain.core.verbosity import count_of
from cotrain.metrics.table import is_headline, table_rank

if TYPE_CHECKING:
    from cotrain.runs.run import RunResult

FURTHER = {"fixed/balanced_accuracy", "fixed/step_balanced_accuracy", "ood_length/pass@1"}  # next to the headlines
LEFT_OUT = {"failed", "broken_off"}  # shares that the other figures leave out, and never stand alone


def outcome_lines(outcome: RunResult) -> list[str]:
    """Return what a finished run has come to, and where its report is."""
    return ["", *summary_lines(outcome.summary), f"report: {outcome.directory / 'report.html'}"]


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Before and after of the main figures, and how many observations each rests on; all of them stand in
    summary.json."""
    before, after = summary["before"], summary["after"]
    spent = (
        f"{count_of(summary['steps'], 'step')}, {summary.get('tokens', 0):,} tokens, seed {summary.get('seed', '?')}"
    )
    title = f"{summary.get('recipe', 'run')}: {spent}"
    keys = summary_keys(after)
    if not keys:
        return [title, "nothing was measured: there were no held-out problems that could be graded"]

    roles = list(dict.fromkeys(key.split("/")[0] for key in keys))
    keys.sort(key=lambda key: (roles.index(key.split("/")[0]), key.count("/"), table_rank(key.rpartition("/")[2])))
    rows = [
        ("held-out", "before", "after", "n"),
        *((key, figure_text(before.get(key)), figure_text(after[key]), str(after[key].get("n", "?"))) for key in keys),
    ]
    name, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [title]
    for key, *figures in rows:
        cells = [f"{text:>{width}s}" for text, width in zip(figures, widths, strict=True)]
        lines.append("  ".join([f"{key:{name}s}", *cells]))
    return lines


def summary_keys(figures: Iterable[str]) -> list[str]:
    """The figures of a summary: the headlines, or all of a run that has none, and what they leave out."""
    names = {key: key.split("/", 1)[-1] for key in figures}
    shown = [key for key, name in names.items() if name not in LEFT_OUT]
    headlines = [key for key in shown if names[key] in FURTHER or is_headline(names[key])]
    return [*(headlines or shown), *(key for key, name in names.items() if name in LEFT_OUT)]


def figure_text(estimate: Mapping[str, Any] | None) -> str:
    """``0.412 [0.380, 0.445]``; what is not known of it is a question mark."""
    if estimate is None or estimate.get("value") is None:
        return "–"
    low, high = ("?" if (bound := estimate.get(name)) is None else f"{bound:.3f}" for name in ("low", "high"))
    return f"{estimate['value']:.3f} [{low}, {high}]"
