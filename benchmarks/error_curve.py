"""How good a judge must be, drawn: what a study's arms end at, over the share of answers that are judged wrongly.

    python benchmarks/error_curve.py docs/results/judge-errors/study.json docs/results/judge-errors/longer/study.json \
      --out docs/results/judge-errors/required.svg

The arms of a study are "truth" and "wrong N", N in per cent. A line is a part of a study, with 95 % intervals over
seeds and problems; the dashed line of its colour is where its runs began.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.statistics import Estimate
from cotrain.pages.compare_svg import COLOURS, HEIGHT, LEFT, LINE, WIDTH, Frame
from cotrain.pages.lines import axis_ticks
from cotrain.pages.page import escape_attribute

BESIDE = 1.2  # percentage points between the bars of two lines, which would cover each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One part of a study."""

    label: str
    start: float
    ends: Mapping[int, Estimate]  # share of errors in per cent → figure at the end


def curves_of(path: Path) -> list[Curve]:
    """The parts of a study. Raises DataError for a file that is none, or whose arms are others."""
    try:
        parts: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["parts"]
        return [_curve(name, part["arms"]) for name, part in parts.items()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: {error}; expected the study.json of a study with the arms 'truth' and 'wrong N'"
        ) from None


def _curve(name: str, arms: Mapping[str, Any]) -> Curve:
    ends = {
        0 if arm == "truth" else int(arm.removeprefix("wrong ")): Estimate.from_json(found["after"])
        for arm, found in arms.items()
    }
    return Curve(label=name, start=float(arms["truth"]["before"]["value"]), ends=dict(sorted(ends.items())))


def drawn(curves: Sequence[Curve]) -> str:
    """A picture that stands alone."""
    high = max(e.high for curve in curves for e in curve.ends.values())
    frame = Frame(left=-3, right=max(x for curve in curves for x in curve.ends) + 3, low=0.0, high=1.05 * high)
    head = 30 + LINE * len(curves)
    parts = ['<text x="12" y="18" class="title">Greedy accuracy at the end, with 95 % intervals</text>']
    for level in axis_ticks(frame.low, frame.high):
        y = head + frame.y(level)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#e3e0d8"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="soft">{level:.2f}</text>')
    for x in sorted({x for curve in curves for x in curve.ends}):
        at = f'x="{LEFT + frame.x(x):.1f}" y="{head + HEIGHT + 16}"'
        parts.append(f'<text {at} text-anchor="middle" class="soft">{x} %</text>')
    foot = head + HEIGHT + 34
    words = "answers judged wrongly; dashed: the start"
    parts.append(f'<text x="{LEFT + WIDTH}" y="{foot}" text-anchor="end" class="soft">{words}</text>')
    for i, curve in enumerate(curves):
        parts += _line(i, curve, frame, head)
    width, height = LEFT + WIDTH + 16, foot + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="12"'
        ' fill="#1c1d20"><title>How good must a judge be</title><style>.title{font-weight:600;font-size:13px}'
        f'.soft{{fill:#5f6168}}</style><rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _line(i: int, curve: Curve, frame: Frame, head: int) -> list[str]:
    stroke = f'stroke="{COLOURS[i % len(COLOURS)]}" fill="none" stroke-width="2"'

    def x(share: int) -> float:
        return LEFT + frame.x(share + BESIDE * i)

    def y(value: float) -> float:
        return head + frame.y(value)

    legend, text = 26 + LINE * i + 10, 26 + LINE * i + 14
    path = "L".join(f"{x(share):.1f} {y(end.value):.1f}" for share, end in curve.ends.items())
    bars = "".join(f"M{x(s):.1f} {y(e.low):.1f}V{y(e.high):.1f}" for s, e in curve.ends.items())
    return [
        f'<path d="M12 {legend}H44" {stroke}/><text x="52" y="{text}">{escape_attribute(curve.label, 60)}</text>',
        f'<path d="M{LEFT} {y(curve.start):.1f}h{WIDTH}" {stroke} stroke-dasharray="2 5" stroke-opacity="0.6"/>',
        f'<path d="M{path}" {stroke}/><path d="{bars}" {stroke} stroke-opacity="0.55"/>',
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path, metavar="STUDY.json", help="one line a part")
    parser.add_argument("--labels", nargs="+", metavar="LABEL", help="of the lines (default: names of the parts)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.svg")
    given = parser.parse_args(argv)
    try:
        curves = [curve for path in given.studies for curve in curves_of(path)]
        labels = given.labels or [curve.label for curve in curves]
        if len(labels) != len(curves):
            raise DataError(f"--labels: found {len(labels)}, expected one for each of {len(curves)} parts")
        named = [Curve(label=label, start=c.start, ends=c.ends) for label, c in zip(labels, curves, strict=True)]
        given.out.write_text(drawn(named), encoding="utf-8")
    except CotrainError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
