"""Plots of training itself, run by run: reward against truth, and how one-sided the verifier was.

Held-out curves (``compare_svg``) say who is better; these say why. A method that pays its generator by a verifier is
fooled where the reward rises and the accuracy next to it does not. Values are of the problems of each step, averaged
over ``WINDOW`` steps that have them; bands are over seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.reports.compare_svg import draw_panels
from cotrain.reports.compare_table import label_of, mean_band
from cotrain.reports.compare_words import AXES
from cotrain.reports.lines import Points
from cotrain.runs.figures import costs_of
from cotrain.storage.jsonl import read_jsonl

WINDOW = 4  # training steps that one point is the mean of
SHOWN_METRICS = (  # of any role; the metric "gap" is shown as well, which has no role
    "accuracy",
    "reward/step",
    "reward/proxy",
    "reward/vote",
    "majority_share",
    "process/pair_accuracy",
    "pair_accuracy",
    "predicted_positive",
    "base_rate",
)


def training_svg(runs: Mapping[str, Sequence[Path]], metrics: Sequence[str] = ()) -> str:
    """Panels for each metric, over each cost; "" when nothing was measured.

    Args:
        runs: recipe → directories of its runs, one a seed.
        metrics: keys of metrics.jsonl (default: those of ``SHOWN_METRICS`` that any run has, and the gap).
    """
    rows_by_recipe = {}
    keys: set[str] = set()
    for name, folders in runs.items():
        rows_by_recipe[name] = [_training_rows(folder) for folder in folders]
        for rows in rows_by_recipe[name]:
            keys.update(*rows)

    shown_keys = list(metrics) or [
        key for key in sorted(keys) if key == "gap" or key.partition("/")[2] in SHOWN_METRICS
    ]
    roles = {key.split("/")[0] for key in keys if key.endswith("/traces")}

    panels = []
    for metric in shown_keys:
        bands_by_axis = []
        is_measured = False
        for axis in AXES:
            bands = {}
            for name, seeds in rows_by_recipe.items():
                bands[name] = mean_band([_block_means(rows, metric, axis) for rows in seeds])
                mean, _ = bands[name]
                is_measured = is_measured or bool(mean)
            bands_by_axis.append(bands)
        if is_measured:
            panels.append((metric, label_of(metric, roles), bands_by_axis))
    return draw_panels("Steps of training, means over seeds with 95 % bands", panels, list(runs), zero=False)


def _training_rows(folder: Path) -> list[dict[str, Any]]:
    """The training steps of a run, each with what had been spent after it."""
    steps = (row for row in read_jsonl(folder / "metrics.jsonl") if "kind" not in row)  # other rows have a "kind"
    spent_after_step = costs_of(folder)[1:]  # the first entry is before step 1
    return [row | spent for row, spent in zip(steps, spent_after_step, strict=True)]


def _block_means(rows: Iterable[Mapping[str, Any]], metric: str, axis: str) -> Points:
    """(cost, metric), averaged over blocks of ``WINDOW`` steps."""
    measured = [(float(row[axis]), float(row[metric])) for row in rows if isinstance(row.get(metric), int | float)]
    means: list[tuple[float, float]] = []
    for start in range(0, len(measured), WINDOW):
        block = measured[start : start + WINDOW]
        x = sum(x for x, _ in block) / len(block)
        y = sum(y for _, y in block) / len(block)
        means.append((x, y))
    # A curve needs ascending costs. A cost that was not measured is the same at every step, so one point is left.
    return [(x, y) for i, (x, y) in enumerate(means) if i == 0 or x > means[i - 1][0]]
