"""Held-out figures problem by problem, saved so that finished runs can be compared by pairs.

Of a figure θ on N problems, problem t says the jackknife's pseudo-value N·θ − (N − 1)·θ without t (Efron & Tibshirani
1993, chapter 11). For a share of samples, G of each problem, that is the problem's own share; for balanced accuracy, F1
and other functions of counts it is their linear part, whose mean over resampled problems is very nearly the figure on
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cotrain.core.statistics import Estimate
from cotrain.metrics.clusters import Figure

DIGITS = 6


def problem_values(figure: Figure) -> dict[int, float]:
    """Problem → what it says. A problem without which the figure is undefined, or the only one, says the figure
    itself."""
    without = figure.without_each()
    n = len(without)
    return {
        task: figure.value if math.isnan(left) else n * figure.value - (n - 1) * left for task, left in without.items()
    }


def problems_json(figures: Mapping[str, Estimate]) -> dict[str, dict[str, float]]:
    """figure → problem → what it says, for a file."""
    return {
        key: {str(task): round(value, DIGITS) for task, value in problem_values(figure).items()}
        for key, figure in figures.items()
        if isinstance(figure, Figure)
    }
