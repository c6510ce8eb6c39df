r"""Step formats of free text: how a solution is cut into steps, by the name of a format.

::

    tags         <step>3 + 4 = 7</step>                      the inside of each
    lines        3 + 4 = 7                                   a line each
    numbered     1. …   2) …   Step 3: …   **Step 4** …      from one number to the next; they count up from 1
    sentences    Three and four are 7. So it is 7.           up to . ! ? and a space, or the end of the line
    paragraphs   …                                           a blank line between them, as in PRM800K and ProcessBench

A number out of turn is text of the step it stands in, so that a list inside of a step cuts nothing. What holds no
letter and no digit, such as a rule or a lone ``\[``, is no step. Each step is a span of the text, without the number
and the white space around it.

Left out: a guess at where steps that share a sentence end, and nested steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cotrain.core.errors import UnknownName
from cotrain.core.types import Span
from cotrain.formats.solutions import blocks_of

LINES = "lines"
NUMBERED = "numbered"
STEPS_AS = ("tags", LINES, NUMBERED, "sentences", "paragraphs")
LOOK_BACK = 8  # characters in front of a full stop that may show that no sentence ends there
CLEAR = 0.75  # share of the texts that a way must cut
_NUMBER = re.compile(
    r"^[#>*_ \t]{0,12}(?:\(?(?P<bare>\d{1,3})[.)](?=[ \t*_]|$)|step[ \t]{1,4}(?P<said>\d{1,3})\b[ \t]*[:.)–—-]*)"
    r"(?P<bold>[*_: \t]*)",
    re.IGNORECASE | re.MULTILINE,
)
_LINE = re.compile("\n")
_BLANK = re.compile(r"\n[ \t\r]*\n")
_END = re.compile(r"(?<=[.!?])[\"')\]*_]*[ \t]+(?=[\"'(\[*_\\$]*[^\W_a-z])")
_SHORT = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|No|vs|etc|approx|Eq|eq|Fig|e\.g|i\.e|cf)\.$")
_ITEM = re.compile(r"\W*\d{1,3}\.")  # the number of a list


def check_steps(kind: str) -> None:
    """Raises UnknownName for what is no way to cut steps."""
    if kind not in STEPS_AS:
        raise UnknownName("way to cut steps", kind, STEPS_AS)


def steps_in(text: str, kind: str) -> tuple[Span, ...]:
    """[K] the steps of a text in order, each a part of it; () where it has none. Raises UnknownName."""
    check_steps(kind)
    if kind == "tags":
        ranges = [(block.start, block.end) for block in blocks_of(text, "step")]
    elif kind == LINES:
        ranges = _cut_at(text, _LINE)
    elif kind == "paragraphs":
        ranges = _cut_at(text, _BLANK)
    elif kind == NUMBERED:
        ranges = _cut_numbered(text)
    else:
        ranges = []
        for line_start, line_end in _cut_at(text, _LINE):
            line = text[line_start:line_end]
            for start, end in _stretches_between(line, _sentence_ends(line)):
                ranges.append((line_start + start, line_start + end))

    spans = [_trim_span(text, start, end) for start, end in ranges]
    return tuple(span for span in spans if span is not None)


def write_steps(steps: Sequence[str], kind: str) -> str:
    """Lines of text as steps that are written in this way."""
    if kind == "paragraphs":
        return "\n\n".join(steps)
    if kind == NUMBERED:
        return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    if kind == "tags":
        return "\n".join(f"<step>{step}</step>" for step in steps)
    return "\n".join(steps)


def steps_kind_of(texts: Sequence[str]) -> str:
    """The way in which these texts are cut into steps: numbered where most number them, paragraphs where those hold
    several lines, lines where there are several, else sentences."""

    if not texts:
        return LINES

    def counts_as(kind: str) -> list[int]:
        """Steps of each text that is cut in this way."""
        return [len(steps_in(text, kind)) for text in texts]

    def most_have(kind: str, least: int) -> bool:
        having = sum(count >= least for count in counts_as(kind))
        return having >= CLEAR * len(texts)

    if most_have(NUMBERED, 2):
        return NUMBERED
    if most_have("paragraphs", 3) and sum(counts_as("paragraphs")) < sum(counts_as(LINES)):
        return "paragraphs"
    return LINES if most_have(LINES, 2) else "sentences"


def _cut_numbered(text: str) -> list[tuple[int, int]]:
    """From each number that continues the count to the next one; numbers alone and "Step" are counted apart, and the
    way that the first one has holds for all."""
    marks = list[re.Match[str]]()
    way = None  # the way of the first number: "bare", or "said" behind "Step"
    for match in _NUMBER.finditer(text):
        this_way = "bare" if match["bare"] else "said"
        if way not in (None, this_way):
            continue
        continues = int(match[this_way]) == len(marks) + 1
        if continues:
            way = this_way
            marks.append(match)
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return [(_step_start(mark), end) for mark, end in zip(marks, ends, strict=False)]


def _step_start(mark: re.Match[str]) -> int:
    """Where the step of a number begins; bold that the number alone is in ends with it, other bold is the step's."""
    inside = mark[0].lstrip("#> \t").startswith(("*", "_"))
    return mark.end() if inside else mark.start("bold")


def _sentence_ends(line: str) -> list[tuple[int, int]]:
    """The gaps between sentences; none behind "Mr.", "e.g.", and the number of a list."""
    ends = []
    for match in _END.finditer(line):
        place = match.start()
        is_short_form = _SHORT.search(line, max(0, place - LOOK_BACK), place) is not None
        is_number = place < LOOK_BACK and _ITEM.fullmatch(line, 0, place) is not None
        if not is_short_form and not is_number:
            ends.append(match.span())
    return ends


def _cut_at(text: str, gap: re.Pattern[str]) -> list[tuple[int, int]]:
    return _stretches_between(text, [match.span() for match in gap.finditer(text)])


def _stretches_between(text: str, gaps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches of a text that these gaps leave."""
    starts = [0, *(end for _, end in gaps)]
    ends = [*(start for start, _ in gaps), len(text)]
    return list(zip(starts, ends, strict=True))


def _trim_span(text: str, start: int, end: int) -> Span | None:
    """The stretch without white space at its ends; None for one without letters and digits."""
    inside = text[start:end].strip()
    if not any(map(str.isalnum, inside)):
        return None
    at = text.index(inside[0], start)
    return Span(start=at, end=at + len(inside), text=inside)
