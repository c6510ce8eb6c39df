"""Charts: SVG drawn in Python, with the words beside it in HTML.

The picture is stretched to whatever width the page gives it (strokes keep their width), while ticks, legend and notes
are ordinary text placed in per cent, so that a chart reads as well on a phone as on a wall. Faint dots are the
numbers as recorded, the line is their exponential moving average. Each column can be pointed at; its ``<title>``
lists what is there.

Everything here is a pure function from numbers and labels to a string; labels are escaped here and nowhere else.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cotrain.report.escape import attribute, page
from cotrain.report.guide import PERCENT, number

Points = Sequence[tuple[float, float]]
TONES = ("truth", "a", "b", "c", "d", "e", "f", "quiet")  # CSS classes; colours live in style.py
SIDE = 1000.0  # both sides of the stretched drawing
DOTS = 400  # most points drawn of one line
COLUMNS = 60  # most columns that can be pointed at


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    label: str
    points: Points  # (x, y), x ascending
    tone: str  # one of TONES
    dash: int = 0  # 0 solid, 1 dashed, 2 dotted: readable without colour
    raw: bool = True  # draw dots as recorded and smooth the line; False: the line through the points themselves
    marks: bool = False  # open circles at the points (evaluations)
    spread: Sequence[tuple[float, float, float]] = ()  # (x, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The window of a chart."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return round(SIDE * (value - self.left) / (self.right - self.left), 1)

    def y(self, value: float) -> float:
        return round(SIDE * (self.high - min(max(value, self.low), self.high)) / (self.high - self.low), 1)


def smooth(points: Points, span: float | None = None) -> list[tuple[float, float]]:
    """Exponential moving average over about ``span`` points (a twentieth of the line when not given), without the
    usual pull towards the first value: y_t = Σ (1−α)^(t−i) y_i / Σ (1−α)^(t−i), α = 2 / (span + 1)."""
    alpha = 2 / ((span if span is not None else min(25.0, max(1.0, len(points) / 20))) + 1)
    total = weight = 0.0
    line = []
    for x, y in points:
        total, weight = (1 - alpha) * total + y, (1 - alpha) * weight + 1
        line.append((x, total / weight))
    return line


def thin(points: Points, limit: int = DOTS) -> list[tuple[float, float]]:
    """At most ``limit`` points: means of neighbours."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / limit)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers inside [low, high], about ``count`` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_range: tuple[float, float],
    share: bool,
    y_range: tuple[float, float] | None = None,
    note: str = "",
    badge: str = "",  # ready HTML, shown beside the title
    healthy: tuple[float, float] | None = None,
    reference: tuple[float, str] | None = None,
    shade: tuple[int, int] | None = None,  # fill between these two lines
    strip: str = "",  # ready HTML, shown under the x axis
    x_label: str = "step",
    small: bool = False,
) -> str:
    """A ``<figure>``. Lines without points are left out; without any line the result is empty."""
    shown = [line for line in lines if line.points]
    if not shown:
        return ""
    frame = _frame(shown, x_range, y_range, reference)
    drawn = [smooth(line.points) if line.raw else list(line.points) for line in shown]
    levels = ticks(frame.low, frame.high, 3 if small else 4 if y_range else 5)
    parts = [_healthy(frame, healthy) if healthy else "", _grid(frame, levels)]
    if shade and all(lines[i].points for i in shade):
        i, j = (shown.index(lines[k]) for k in shade)
        parts.append(_between(frame, thin(drawn[i]), thin(drawn[j])))
    if reference:
        parts.append(_path(frame, [(frame.left, reference[0]), (frame.right, reference[0])], "ref"))
    for line in shown:
        parts.append(_spread(frame, line))
        if line.raw and len(line.points) > 1:
            parts.append(_dots(frame, thin(line.points), f"dots {line.tone}"))
    for line, points in zip(shown, drawn, strict=True):
        parts.append(_path(frame, thin(points), _style(line)))
        if line.marks or len(points) == 1:
            marks = points if line.marks else points[-1:]
            parts.append(_dots(frame, marks, f"mark {line.tone}") + _dots(frame, marks, "hole"))
    parts.append(_columns(frame, shown, x_label, share))
    legend = "".join(_legend(line, points, share) for line, points in zip(shown, drawn, strict=True))
    return (
        f'<figure class="chart{" small" if small else ""}"><figcaption><b>{page(title, 120)}</b>{badge}'
        f'<span class="note">{page(note)}</span></figcaption><div class="legend">{legend}</div>'
        f'<div class="plot">{_y_labels(frame, levels, share)}{_reference_label(frame, reference)}'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{attribute(title)}">'
        f"{''.join(parts)}</svg></div>{strip}{_x_labels(frame, x_label)}</figure>"
    )


def _frame(
    lines: Sequence[Line],
    x_range: tuple[float, float],
    y_range: tuple[float, float] | None,
    reference: tuple[float, str] | None,
) -> Frame:
    values = [y for line in lines for _, y in line.points]
    values += [bound for line in lines for _, a, b in line.spread for bound in (a, b)]
    values += [reference[0]] if reference else []
    low, high = min(values), max(values)
    if y_range:
        low, high = min(low, y_range[0]), max(high, y_range[1])
    else:
        if 0 <= low < 0.4 * high:
            low = 0.0
        margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = (low if low == 0 else low - margin), high + margin
    left, right = x_range
    return Frame(left=left, right=right if right > left else left + 1, low=low, high=high if high > low else low + 1)


def _path(frame: Frame, points: Points, css: str) -> str:
    where = "L".join(f"{frame.x(x):g} {frame.y(y):g}" for x, y in points)
    return f'<path class="{css}" d="M{where}"/>'


def _dots(frame: Frame, points: Points, css: str) -> str:
    where = "".join(f"M{frame.x(x):g} {frame.y(y):g}h.01" for x, y in points)
    return f'<path class="{css}" d="{where}"/>'


def _area(frame: Frame, upper: Points, lower: Points, css: str) -> str:
    edge = [*upper, *reversed(lower)]
    return f'<path class="{css}" d="M{"L".join(f"{frame.x(x):g} {frame.y(y):g}" for x, y in edge)}Z"/>'


def _spread(frame: Frame, line: Line) -> str:
    if len(line.spread) < 2:
        return ""
    return _area(
        frame, [(x, high) for x, _, high in line.spread], [(x, low) for x, low, _ in line.spread], f"area {line.tone}"
    )


def _between(frame: Frame, one: Points, other: Points) -> str:
    """The area between two lines, over the range of x that both have."""
    left, right = max(one[0][0], other[0][0]), min(one[-1][0], other[-1][0])
    xs = sorted({x for x, _ in (*one, *other) if left <= x <= right})
    return (
        _area(frame, [(x, value_at(one, x)) for x in xs], [(x, value_at(other, x)) for x in xs], "gap")
        if len(xs) > 1
        else ""
    )


def value_at(points: Points, x: float) -> float:
    """The line's height at ``x`` by linear interpolation; ``x`` must lie in its range."""
    i = bisect.bisect_left(points, x, key=lambda p: p[0])
    if points[i][0] == x:
        return points[i][1]
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _healthy(frame: Frame, limits: tuple[float, float]) -> str:
    top, bottom = frame.y(limits[1]), frame.y(limits[0])
    return (
        f'<rect class="healthy" x="0" width="1000" y="{top}" height="{round(bottom - top, 1)}"/>'
        if bottom > top
        else ""
    )


def _grid(frame: Frame, levels: Sequence[float]) -> str:
    return "".join(_path(frame, [(frame.left, t), (frame.right, t)], "grid") for t in levels)


def _columns(frame: Frame, lines: Sequence[Line], x_label: str, share: bool) -> str:
    """Invisible columns that say, when pointed at, what each line's last recorded number there is."""
    width = (frame.right - frame.left) / COLUMNS
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for line in lines:
        for x, y in line.points:
            found.setdefault(min(int((x - frame.left) / width), COLUMNS - 1), {})[line.label] = (x, y)
    cells = []
    for column, entries in sorted(found.items()):
        at = max(x for x, _ in entries.values())
        words = [f"{x_label} {number(round(at), share=False)}"]
        words += [f"{label}: {number(y, share=share)}" for label, (_, y) in entries.items()]
        cells.append(
            f'<rect class="hit" x="{column * SIDE / COLUMNS:.1f}" y="0" width="{SIDE / COLUMNS:.1f}" height="1000">'
            f"<title>{attribute(' · '.join(words), 600)}</title></rect>"
        )
    return "".join(cells)


def _style(line: Line) -> str:
    return f"line {line.tone} {'thin' if line.marks else f'dash{line.dash}'}"


def _legend(line: Line, drawn: Points, share: bool) -> str:
    mark = f'<path class="mark {line.tone}" d="M13 4h.01"/><path class="hole" d="M13 4h.01"/>' if line.marks else ""
    path = f'<path class="{_style(line)}" d="M1 4H25"/>{mark}'
    swatch = f'<svg viewBox="0 0 26 8" aria-hidden="true">{path}</svg>'
    last = f" <i>{number(drawn[-1][1], share=share)}</i>"
    return f"<span>{swatch}{page(line.label, 100)}{last}</span>"


def _y_labels(frame: Frame, marks: Sequence[float], share: bool) -> str:
    span = frame.high - frame.low
    scale = 100.0 if share else 1.0
    digits = next(
        (d for d in range(6) if all(math.isclose(round(scale * t, d), scale * t, abs_tol=1e-9) for t in marks)), 6
    )
    words = [f"{scale * t:,.{digits}f}".replace(",", "\u202f") + (PERCENT if share else "") for t in marks]
    return "".join(
        f'<span class="tick" style="top:{100 * (frame.high - t) / span:.2f}%">{w.replace("-", "−")}</span>'
        for t, w in zip(marks, words, strict=True)
    )


def _x_labels(frame: Frame, label: str) -> str:
    span = frame.right - frame.left
    marks = [t for t in ticks(frame.left, frame.right, 5) if t == int(t) or span < 5]
    words = "".join(f'<span style="left:{100 * (t - frame.left) / span:.2f}%">{_short(t)}</span>' for t in marks)
    return f'<div class="x"><em>{page(label)}</em>{words}</div>'


def _short(value: float) -> str:
    """``1500000`` as ``1.5M``: ticks must not collide on a phone."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:g}{letter}"
    return f"{value:g}".replace("-", "−")


def _reference_label(frame: Frame, reference: tuple[float, str] | None) -> str:
    if not reference:
        return ""
    top = 100 * (frame.high - reference[0]) / (frame.high - frame.low)
    return f'<span class="reflabel" style="top:{top:.2f}%">{page(reference[1], 40)}</span>'
