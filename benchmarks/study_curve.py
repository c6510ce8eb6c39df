"""What the arms of a study end at, drawn over the share of wrong verdicts or over the number of labels.

    python benchmarks/study_curve.py errors docs/results/judge-errors/study.json \
      docs/results/judge-errors/longer/study.json --out docs/results/judge-errors/required.svg
    python benchmarks/study_curve.py labels docs/results/labels-near/study.json 4=docs/results/labels-few/study.json \
      4=docs/results/labels-few-own/study.json 16=docs/results/labels-sixteen/study.json \
      --out docs/results/labels-near/labels.svg

"errors": arms are "truth" and "wrong N", N in per cent, and a line is a part of a study. "labels": parts are numbers of
labels, and a line is an arm that ``ARMS`` names; a study of a single part stands at the number before its path. Bars
are 95 % intervals over seeds and problems; the dashed line of a colour is where its runs began.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.input_files import parse_json
from cotrain.core.statistics import Estimate
from cotrain.reports.compare_svg import COLOURS, HEIGHT, LEFT, LINE, WIDTH, Frame
from cotrain.reports.lines import axis_ticks
from cotrain.reports.page import escape_attribute

ARMS = {  # of a study over numbers of labels
    "none": "labels alone",
    "vote": "majority vote",
    "verifier": "verifier as it is, own weights",
    "untaught": "verifier as it is, own weights",
    "truth": "the truth everywhere",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line."""

    label: str
    start: float
    ends: Mapping[int, Estimate]  # share of errors in per cent, or number of labels → figure at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What runs from left to right."""

    meaning: str
    place: Callable[[int], float]
    tick: str
    margin: float  # beside the first and the last place
    beside: float  # between the bars of two lines, which would cover each other


AXES = {
    "errors": Axis(
        meaning="answers judged wrongly; dashed: the start", place=float, tick="{} %", margin=3.0, beside=1.2
    ),
    "labels": Axis(
        meaning="problems with a label; dashed: the start", place=math.log2, tick="{}", margin=0.3, beside=0.06
    ),
}


def read_parts(path: Path) -> Mapping[str, Any]:
    """The parts of a study, each with its arms. Raises DataError for a file that is none."""
    try:
        parts = parse_json(path.read_text(encoding="utf-8"))["parts"]
        return {name: dict(part["arms"]) for name, part in parts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: {error}; expected the study.json of a study") from None


def curves_by_part(named: Sequence[str]) -> list[Curve]:
    """A line a part, over the errors in the names of its arms. Raises DataError for other arms."""
    curves = []
    for path in map(Path, named):
        for part, arms in read_parts(path).items():
            try:
                ends = {
                    0 if arm == "truth" else int(arm.removeprefix("wrong ")): Estimate.from_json(found["after"])
                    for arm, found in arms.items()
                }
                start = float(arms["truth"]["before"]["value"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}: {error}; expected the arms 'truth' and 'wrong N'") from None
            curves.append(Curve(label=part, start=start, ends=dict(sorted(ends.items()))))
    return curves


def curves_by_arm(named: Sequence[str]) -> list[Curve]:
    """A line an arm, over the numbers of labels that parts are named after. Raises DataError for other names."""
    ends: dict[str, dict[int, Estimate]] = {label: {} for label in ARMS.values()}
    starts: dict[str, float] = {}
    for name in named:
        number, _, path = name.rpartition("=")
        for part, arms in read_parts(Path(path)).items():
            try:
                at = int(number or part)
                for arm in arms.keys() & ARMS.keys():
                    ends[ARMS[arm]][at] = Estimate.from_json(arms[arm]["after"])
                    starts[ARMS[arm]] = float(arms[arm]["before"]["value"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{name}: {error}; expected parts that are named after numbers of labels") from None
    curves = [
        Curve(label=label, start=starts[label], ends=dict(sorted(at.items()))) for label, at in ends.items() if at
    ]
    if not curves:
        raise DataError(f"{', '.join(named)}: none of the arms {', '.join(ARMS)} is there")
    return curves


def draw_curves(curves: Sequence[Curve], axis: Axis) -> str:
    """A picture that stands alone."""
    places = [axis.place(x) for curve in curves for x in curve.ends]
    high = max(e.high for curve in curves for e in curve.ends.values())
    frame = Frame(left=min(places) - axis.margin, right=max(places) + axis.margin, low=0.0, high=1.05 * high)
    head = 30 + LINE * len(curves)
    parts = ['<text x="12" y="18" class="title">Greedy accuracy at the end, with 95 % intervals</text>']
    for level in axis_ticks(frame.low, frame.high):
        y = head + frame.y(level)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#e3e0d8"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="soft">{level:.2f}</text>')
    for x in sorted({x for curve in curves for x in curve.ends}):
        at = f'x="{LEFT + frame.x(axis.place(x)):.1f}" y="{head + HEIGHT + 16}"'
        parts.append(f'<text {at} text-anchor="middle" class="soft">{axis.tick.format(x)}</text>')
    foot = head + HEIGHT + 34
    parts.append(f'<text x="{LEFT + WIDTH}" y="{foot}" text-anchor="end" class="soft">{axis.meaning}</text>')
    for i, curve in enumerate(curves):
        parts += _draw_line(i, curve, axis, frame, head)
    width, height = LEFT + WIDTH + 16, foot + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="12"'
        ' fill="#1c1d20"><title>Greedy accuracy at the end</title><style>.title{font-weight:600;font-size:13px}'
        f'.soft{{fill:#5f6168}}</style><rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _draw_line(i: int, curve: Curve, axis: Axis, frame: Frame, head: int) -> list[str]:
    stroke = f'stroke="{COLOURS[i % len(COLOURS)]}" fill="none" stroke-width="2"'

    def x(share: int) -> float:
        return LEFT + frame.x(axis.place(share) + axis.beside * i)

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
    parser.add_argument("axis", choices=sorted(AXES), help="what runs from left to right")
    parser.add_argument("studies", nargs="+", metavar="[N=]STUDY.json", help="N: where a study of one part stands")
    parser.add_argument("--labels", nargs="+", metavar="LABEL", help="of the lines (default: names of parts or arms)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.svg")
    given = parser.parse_args(argv)
    try:
        curves = (curves_by_part if given.axis == "errors" else curves_by_arm)(given.studies)
        labels = given.labels or [curve.label for curve in curves]
        if len(labels) != len(curves):
            raise DataError(f"--labels: found {len(labels)}, expected one for each of {len(curves)} lines")
        named = [Curve(label=label, start=c.start, ends=c.ends) for label, c in zip(labels, curves, strict=True)]
        given.out.write_text(draw_curves(named, AXES[given.axis]), encoding="utf-8")
    except CotrainError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
