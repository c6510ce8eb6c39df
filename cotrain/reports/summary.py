"""The printed summary of a finished run: its main figures before and after, a line each, and where its report is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cotrain.core.verbosity import count_of
from cotrain.metrics.table import is_headline, table_rank

if TYPE_CHECKING:
    from cotrain.runs.run import RunResult

EXTRA_HEADLINES = {"fixed/balanced_accuracy", "fixed/step_balanced_accuracy", "ood_length/pass@1"}
EXCLUDED_SHARES = {"failed", "broken_off"}  # shares of answers that no other figure counts; printed beside the others
OF_WEIGHTS = {"update_sparsity", "update_sparsity_1e-5"}  # no figures of held-out problems; summary.json has them


def outcome_lines(outcome: RunResult) -> list[str]:
    """The last lines of a finished run: its summary, and the path of its report."""
    return ["", *summary_lines(outcome.summary), f"report: {outcome.directory / 'report.html'}"]


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The main figures before and after the run, and how many observations each rests on. summary.json has them all."""
    before = summary["before"]
    after = summary["after"]
    steps = count_of(summary["steps"], "step")
    tokens = f"{summary.get('tokens', 0):,} tokens"
    title = f"{summary.get('recipe', 'run')}: {steps}, {tokens}, seed {summary.get('seed', '?')}"
    keys = summary_keys(after)
    if not keys:
        return [title, "nothing was measured: there were no held-out problems that could be graded"]

    rows = [("held-out", "before", "after", "n")]
    for key in _in_reading_order(keys):
        observations = str(after[key].get("n", "?"))
        rows.append((key, figure_text(before.get(key)), figure_text(after[key]), observations))
    return [title, *_aligned_lines(rows)]


def _in_reading_order(keys: Sequence[str]) -> list[str]:
    """Sorted by role, in the order of ``keys``; then figures of the usual split before others; then by rank."""
    roles = list(dict.fromkeys(key.split("/")[0] for key in keys))

    def sort_key(key: str) -> tuple[int, int, tuple[int, int, str]]:
        role = key.split("/")[0]
        name = key.rpartition("/")[2]
        return roles.index(role), key.count("/"), table_rank(name)

    return sorted(keys, key=sort_key)


def _aligned_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines: the first column to the left, the others to the right."""
    name_width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = []
    for name, *texts in rows:
        cells = [f"{text:>{width}s}" for text, width in zip(texts, widths, strict=True)]
        lines.append("  ".join([f"{name:{name_width}s}", *cells]))
    return lines


def summary_keys(figures: Iterable[str]) -> list[str]:
    """The figures to print: the headlines, or all if a run has no headline; and the shares that they exclude."""
    excluded_shares = []
    headlines = []
    others = []
    for key in figures:
        name = key.split("/", 1)[-1]  # without the role
        if name in EXCLUDED_SHARES:
            excluded_shares.append(key)
        elif name in EXTRA_HEADLINES or is_headline(name):
            headlines.append(key)
        elif name not in OF_WEIGHTS:
            others.append(key)
    return [*(headlines or others), *excluded_shares]


def figure_text(estimate: Mapping[str, Any] | None) -> str:
    """``0.412 [0.380, 0.445]``, with ? for an unknown bound, or – for an unknown value."""
    if estimate is None or estimate.get("value") is None:
        return "–"
    low = _bound_text(estimate.get("low"))
    high = _bound_text(estimate.get("high"))
    return f"{estimate['value']:.3f} [{low}, {high}]"


def _bound_text(bound: float | None) -> str:
    return "?" if bound is None else f"{bound:.3f}"
