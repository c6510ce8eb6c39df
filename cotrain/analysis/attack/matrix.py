"""Tables of generators against verifiers, or players against players: as JSON, and as lines of at most 80
characters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain import __version__
from cotrain.core.statistics import Estimate
from cotrain.core.verbosity import count_of
from cotrain.runs.directory import RunDirectory

WIDTH = 80  # characters of a line
COLUMN = 8  # width of the column of one figure
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# (row, column) → figures as ``estimate_json`` gives them.
MatrixCells = Mapping[tuple[int, int], Mapping[str, Any] | None]


def estimate_json(estimate: Estimate | None) -> dict[str, Any] | None:
    """A figure of a pair; None where the pair gave none."""
    return None if estimate is None else estimate.to_json()


def write_figures(out: Path | str, file: str, version: int, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Write the figures to a file of a run, with the versions of its format and of the package, and return what was
    written."""
    result = {"format": version, "cotrain": __version__, **figures}
    folder = RunDirectory(out)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write_measurement(file, result)
    return result


def point_names(points: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Short names of points, such as A25: a letter for the run, then the step. And a line for each letter."""
    runs = list(dict.fromkeys(point["run"] for point in points))
    letters = {run: LETTERS[i % len(LETTERS)] for i, run in enumerate(runs)}
    return [f"{letters[p['run']]}{p['step']}" for p in points], [f"{letter}: {run}" for run, letter in letters.items()]


def matrix_lines(
    titles: Mapping[str, str],
    cells_of: Callable[[str], MatrixCells],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    others: str,
    margin: int = COLUMN,
) -> list[str]:
    """One table for each title, rows down and columns across. What does not fit into a line is counted in the last one.

    ``cells_of``: the figures of a key of ``titles``; a table without any is left out. ``others``: what the line about
    further columns calls them, and where they are. ``margin``: characters of a row's name."""
    shown = columns[: (WIDTH - margin) // COLUMN]
    lines = []
    for key, title in titles.items():
        cells = cells_of(key)
        if not any(cells.values()):
            continue
        lines += ["", title, " " * margin + "".join(f"{name:>{COLUMN}s}" for name in shown)]
        for i, name in enumerate(rows):
            figures = "".join(f"{_figure_text(cells[i, j]):>{COLUMN}s}" for j in range(len(shown)))
            lines.append(f"{name:{margin}s}{figures}")
    if len(columns) > len(shown):
        lines.append(f"{len(columns) - len(shown)} more {others}")
    return lines


def _figure_text(figure: Mapping[str, Any] | None) -> str:
    return "–" if figure is None or figure["value"] is None else f"{figure['value']:.3f}"


def problems_text(problems: int, problems_wanted: int) -> str:
    """``64 problems``, or of a split that has fewer than were asked for ``12 problems (64 asked)``."""
    text = count_of(problems, "problem")
    return f"{text} ({problems_wanted} asked)" if problems < problems_wanted else text
