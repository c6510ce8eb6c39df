"""A comparison in one table: a row for each recipe, what it reached and what that cost.

    recipe | pass@1 | greedy | pass@8 | maj@8 | judge | verdicts | verdicts on steps | gap | updates | tokens | minutes

The first columns are of the role ``solver`` where there is one. Verdicts are given as balanced accuracy. The judge is ``verifier``,
else the first role that has one on what the present generator writes. Figures are means over seeds at the end of each run,
with Student's interval over seeds. Minutes are of one thread of whatever machine made them: they compare recipes of one
comparison and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.statistics import Estimate, mean_interval
from cotrain.metrics.table import limits_of

SHARES = {"pass@1": "/pass@1", "greedy": "/greedy", "pass@8": "/pass@8", "maj@8": "/majority@8"}
COUNTS = ("updates", "tokens", "minutes")  # of the leading policy; of all roles; of training, evaluations left out
COLUMNS = (*SHARES, "judge", "verdicts", "verdicts on steps", "gap", *COUNTS)


def overview(compare: Mapping[str, Any]) -> dict[str, dict[str, Estimate | str]]:
    """recipe → column → mean over seeds, or the judge's name; a column that a recipe has nothing for is left out."""
    return {name: _row(found["seeds"]) for name, found in compare.get("recipes", {}).items()}


def _row(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Estimate | str]:
    row: dict[str, Estimate | str] = {}
    for column, ending in SHARES.items():
        _put(row, column, seeds, _first(seeds, ending, "solver"))
    if judge := _first(seeds, "/balanced_accuracy", "verifier").split("/")[0]:
        row["judge"] = judge
        _put(row, "verdicts", seeds, f"{judge}/balanced_accuracy")
        _put(row, "verdicts on steps", seeds, f"{judge}/step_balanced_accuracy")
    _put(row, "gap", seeds, "gap")
    for column in COUNTS:
        values = [float(run[column]) for run in seeds if isinstance(run.get(column), int | float)]
        if values:
            row[column] = mean_interval(values)
    return row


def _first(seeds: Sequence[Mapping[str, Any]], ending: str, role: str) -> str:
    """The figure of this role with this ending, else of the first one that has it."""
    found = [key for key in _keys(seeds) if key.count("/") == 1 and key.endswith(ending)]
    return min(found, key=lambda key: key != f"{role}{ending}", default="")


def _keys(seeds: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({key for run in seeds for key in run.get("after", {})})


def _put(row: dict[str, Estimate | str], column: str, seeds: Sequence[Mapping[str, Any]], key: str) -> None:
    values = [float(run["after"][key]) for run in seeds if isinstance(run.get("after", {}).get(key), int | float)]
    if values:
        row[column] = mean_interval(values).within(*limits_of(key.rpartition("/")[2]))
