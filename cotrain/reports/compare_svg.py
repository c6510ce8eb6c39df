"""The curves of a comparison as SVG files that stand alone: next to ``table.md``, in a repository.

A page of documentation runs no script, so the viewer's charts cannot stand there; these pictures carry their own
colours and text on a white ground. Left out: anything to point at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotrain.metrics.table import limits_of
from cotrain.reports.compare_table import (
    Runs,
    SeedRun,
    difference_bands,
    figures_on_curves,
    in_reading_order,
    is_share,
    label_of,
    mean_band,
    parse_metric_name,
    roles_in,
    strip_folders,
)
from cotrain.reports.compare_words import AXES, UNITS
from cotrain.reports.guide import number_text, points_text
from cotrain.reports.lines import Points, axis_ticks
from cotrain.reports.page import escape_attribute

Band = tuple[Points, Sequence[tuple[float, float, float]]]  # (x, mean) and (x, low, high)
PANELS = ("pass@1", "balanced_accuracy", "step_balanced_accuracy")  # a row of panels for each, where it was measured
COLOURS = ("#2463b0", "#b4580a", "#0b7d74", "#8a3f8f", "#7a6a12", "#4d6680")  # the light palette of the viewer
DASHES = ("", "7 4", "2 4")
ACROSS = 2  # panels in a row

# Pixels: the drawing area of a panel, its margins, and the height of a line of the legend.
WIDTH = 380
HEIGHT = 210
LEFT = 64
TOP = 34
GAP = 44
FOOT = 46
LINE = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The window of a panel."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        """Pixels from the left edge."""
        return WIDTH * (value - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        """Pixels from the upper edge."""
        return HEIGHT * (self.high - min(max(value, self.low), self.high)) / (self.high - self.low)


def curves_svg(runs: Runs) -> str:
    """Mean and 95 % band over seeds of the main figures, over each cost; "" when no run has a curve."""
    measured = figures_on_curves(runs)
    roles = roles_in(measured)
    rows = []
    for metric in _panel_metrics(measured, roles):
        bands_by_axis = []
        for axis in AXES:
            bands_by_axis.append({name: _metric_band(seeds, metric, axis) for name, seeds in runs.items()})
        rows.append((metric, label_of(metric, roles), bands_by_axis))
    return draw_panels("Means over seeds on validation problems with 95 % bands", rows, list(runs), zero=False)


def _metric_band(seeds: Mapping[Any, SeedRun], metric: str, axis: str) -> Band:
    return mean_band(
        [run.metric_curve(metric, axis) for run in seeds.values()], limits=limits_of(metric.rpartition("/")[2])
    )


def differences_svg(runs: Runs) -> str:
    """The same curves minus those of the reference, paired by seed; "" when there is nothing to compare."""
    measured = figures_on_curves(runs)
    roles = roles_in(measured)
    rows = []
    for metric in _panel_metrics(measured, roles):
        reference = ""
        has_points = False
        bands_by_axis = []
        for axis in AXES:
            reference_on_axis, bands = difference_bands(runs, metric, axis)
            reference = reference or reference_on_axis
            has_points = has_points or any(mean for mean, _ in bands.values())
            bands_by_axis.append(bands)
        if has_points:
            title = f"{label_of(metric, roles)}, minus {strip_folders(reference)}"
            rows.append((metric, title, bands_by_axis))
    return draw_panels("Differences in points, paired by seed, with 95 % bands", rows, list(runs), zero=True)


def _panel_metrics(measured: set[str], roles: set[str]) -> list[str]:
    """The metrics that have panels, those of further splits left out."""
    of_usual_split = [metric for metric in in_reading_order(measured) if metric.count("/") == 1]
    return [metric for metric in of_usual_split if parse_metric_name(metric, roles).metric in PANELS]


def draw_panels(
    title: str, rows: Sequence[tuple[str, str, Sequence[Mapping[str, Band]]]], names: Sequence[str], *, zero: bool
) -> str:
    """The picture as SVG; "" if nothing was measured.

    Args:
        rows: (metric, its label, by axis: recipe → its band); a panel for each axis.
        names: all recipes, which have a colour each by their place here.
        zero: whether the curves are differences: then the panels have a line at 0.
    """
    measured: set[str] = set()
    for _, _, bands_by_axis in rows:
        for bands in bands_by_axis:
            measured.update(name for name, (mean, _) in bands.items() if mean)
    if not measured:
        return ""
    drawn_names = [name for name in names if name in measured]
    head = 26 + LINE * len(drawn_names)  # height of the title and the legend
    panel_rows = math.ceil(len(AXES) / ACROSS)  # of one metric
    width = ACROSS * (LEFT + WIDTH) + GAP
    height = head + len(rows) * panel_rows * (TOP + HEIGHT + FOOT) + 8
    parts = [f'<text x="12" y="18" class="title">{escape_attribute(title)}</text>']
    for line, name in enumerate(drawn_names):
        y = 26 + LINE * line + 10
        parts.append(f'<path d="M12 {y}H44" {_stroke_attributes(names.index(name))}/>')
        parts.append(f'<text x="52" y="{y + 4}">{escape_attribute(strip_folders(name), 110)}</text>')

    for row, (metric, label, bands_by_axis) in enumerate(rows):
        for panel, (axis, bands) in enumerate(zip(AXES, bands_by_axis, strict=True)):
            panel_row, panel_column = divmod(panel, ACROSS)
            x = LEFT + panel_column * (WIDTH + LEFT + GAP // 2)
            y = head + (row * panel_rows + panel_row) * (TOP + HEIGHT + FOOT) + TOP
            parts.append(_draw_panel((x, y), label, metric, axis, bands, names, zero))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="12"'
        f' fill="#1c1d20"><title>{escape_attribute(title)}</title><style>.title{{font-weight:600;font-size:13px}}'
        ".soft{fill:#5f6168}</style>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _draw_panel(
    corner: tuple[int, int],
    label: str,
    metric: str,
    axis: str,
    bands: Mapping[str, Band],
    names: Sequence[str],
    zero: bool,
) -> str:
    """One panel, whose drawing area begins at ``corner``; "" without a point."""
    left, top = corner
    xs: list[float] = []
    ys: list[float] = []
    for mean, spread in bands.values():
        for point_x, point_y in mean:
            xs.append(point_x)
            ys.append(point_y)
        for _, band_low, band_high in spread:
            ys += (band_low, band_high)

    if not xs:
        return ""
    share = is_share(metric, {metric.split("/")[0]}, ys)
    low = min(ys)
    high = max(ys)
    if zero:
        low = min(low, 0.0)
        high = max(high, 0.0)
    elif share:
        low = max(low, 0.0)
        high = min(high, 1.0)

    margin = 0.05 * (high - low) or 0.05
    right = max(xs) if max(xs) > min(xs) else min(xs) + 1  # a frame of one point has a width, too
    frame = Frame(left=min(xs), right=right, low=low - margin, high=high + margin)

    def to_pixels(x: float, y: float) -> str:
        return f"{left + frame.x(x):.1f} {top + frame.y(y):.1f}"

    unit, scale = _axis_unit(axis, frame.right)
    parts = [f'<text x="{left}" y="{top - 10}" class="title">{escape_attribute(label, 60)}</text>']
    for level in axis_ticks(frame.low, frame.high):
        x, y = to_pixels(frame.left, level).split()
        colour = "#5f6168" if zero and level == 0 else "#e3e0d8"
        parts.append(f'<path d="M{x} {y}h{WIDTH}" stroke="{colour}" fill="none"/>')
        word = points_text(level, share=share) if zero else number_text(level, share=share)
        parts.append(f'<text x="{left - 6}" y="{float(y) + 4:.1f}" text-anchor="end" class="soft">{word}</text>')

    for value in axis_ticks(frame.left / scale, frame.right / scale, 5):
        x = to_pixels(value * scale, frame.low).split()[0]
        word = number_text(value, share=False)
        parts.append(f'<text x="{x}" y="{top + HEIGHT + 16}" text-anchor="middle" class="soft">{word}</text>')

    parts.append(f'<text x="{left + WIDTH}" y="{top + HEIGHT + 32}" text-anchor="end" class="soft">{unit}</text>')
    for name, (_, spread) in bands.items():
        if len(spread) > 1:
            upper_edge = [to_pixels(x, high) for x, _, high in spread]
            lower_edge = [to_pixels(x, low) for x, low, _ in reversed(spread)]
            outline = "L".join(upper_edge + lower_edge)
            colour = COLOURS[names.index(name) % len(COLOURS)]
            parts.append(f'<path d="M{outline}Z" fill="{colour}" fill-opacity="0.13"/>')

    for name, (mean, _) in bands.items():
        if mean:
            line = "L".join(to_pixels(x, y) for x, y in mean)
            parts.append(f'<path d="M{line}" {_stroke_attributes(names.index(name))}/>')
    return "".join(parts)


def _stroke_attributes(recipe: int) -> str:
    """Colour and dashes of the line of the recipe with this number."""
    pattern = DASHES[recipe % len(DASHES)]
    dashes = f' stroke-dasharray="{pattern}"' if pattern else ""
    return f'fill="none" stroke="{COLOURS[recipe % len(COLOURS)]}" stroke-width="2"{dashes}'


def _axis_unit(axis: str, largest: float) -> tuple[str, float]:
    """``("million tokens", 1e6)``: the words at an axis, and by what its values are divided."""
    unit = UNITS[axis]
    if largest >= 1e9:
        power = 3 * int(math.log10(largest) // 3)
        return f"1e{power} {unit}", 10.0**power
    if largest >= 1e6:
        return f"million {unit}", 1e6
    if largest >= 1e4:
        return f"thousand {unit}", 1e3
    return unit, 1.0
