"""Programs in a model's answer: fenced blocks, as CommonMark has them, and the one of them that is meant.

::

    1. So:
       ```python
       def f(text):
           return text.split("```")
       ```

By CommonMark

- a block begins with a line of three or more ` or ~, with anything behind them;
- it ends with a line of at least as many of the same sign, indented by at most three more than the opening, with
  nothing behind them; or with the text;
- its lines lose the indentation of the opening.

In answers of models, differently from CommonMark,

- words may stand in front of an opening;
- a block may be indented as deeply as it likes;
- programs have fences in their docstrings: of the lines that could end a block, the first is taken that makes it
  Python. The last one that is tried has words behind its fence;
- a block that is no Python and has blocks in it stands for these.

Left out: blocks by indentation alone, and quotations.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from cotrain.formats.solutions import behind_thoughts

MAX_PROGRAM = 100_000  # characters
MOST_ENDINGS = 8  # lines that could end a block and are tried
MOST_CLOSING_LINES = 100  # lines of a fence alone, behind an opening, that are looked at for these
MOST_NESTED = 3  # blocks in blocks
LONGEST_OPENING = 400  # characters of a line that opens a block
_OPENING = re.compile(  # a fence with anything behind it; or words, a fence, and at most a language behind it
    r"(?P<indent>[ \t]*+)(?P<marker>(?:[-*+]|\d{1,3}[.)])[ \t]++)?"
    r"(?:(?P<fence>`{3,}+|~{3,}+)[^`<]*|\S.*?(?<![`~])(?P<late>`{3,}+|~{3,}+)[ \t]*+[\w+#.-]*+\s*+)"
)
# Where a line break is missing between an answer tag and a fence: <answer>```python, ```</answer>.
_TAG_BESIDE_FENCE = re.compile(r"(?<=<answer>)[ \t]*(?=```|~~~)|(?:(?<=```)|(?<=~~~))[ \t]*(?=</answer>)")
_CLOSING = re.compile(r"(?P<indent>[ \t]*+)(?P<fence>`{3,}+|~{3,}+)\s*+")
_CLOSING_WITH_WORDS = re.compile(r"[ \t]*+(?:`{3,}+|~{3,}+)(?![ \t]*[\w+#.-]*\s*$).{0,400}", re.S)


def program_of(text: str, entry: str = "") -> str | None:
    """The program in an answer; None where there is none, or it is blank or in a thought.

    The candidates are

    - the fenced blocks, those in the last ``<answer>`` where there is one;
    - all of the ``<answer>`` if it has no block;
    - without an ``<answer>``, the text before the first fence, if it defines ``entry`` and no block does: the opening
      fence is missing.

    Of these it is the last that is Python and defines ``entry``, else the last that defines it, else the last."""
    reply = behind_thoughts(text)
    if reply is None:
        return None
    reply = _TAG_BESIDE_FENCE.sub("\n", reply)
    blocks, block_places = _fenced_blocks(reply)
    answers = _answers_in(reply, block_places)
    if answers:
        blocks = _blocks_of_answers(answers)
    elif block_places and entry and not any(defines_name(block, entry) for block in blocks):
        first_fence, _ = block_places[0]
        before = reply[:first_fence].strip("\n")
        if defines_name(before, entry) and is_python(before):
            blocks = [before]

    blocks = [_dedent_block(block, entry) for block in blocks if block.strip()]
    defining = [block for block in blocks if defines_name(block, entry)]
    defining_python = [block for block in defining if is_python(block)]
    for candidates in (defining_python, defining, blocks):
        if candidates:
            return candidates[-1]
    return None


def _answers_in(reply: str, block_places: Sequence[tuple[int, int]]) -> list[str]:
    """What stands between each ``<answer>`` and the last ``</answer>``, the innermost last."""
    ends = _tag_places(reply, "</answer>", block_places)
    if not ends:
        return []
    end = ends[-1]
    starts = [place + len("<answer>") for place in _tag_places(reply, "<answer>", block_places) if place < end]
    return [reply[start:end] for start in starts[-MOST_ENDINGS:]]


def _blocks_of_answers(answers: Sequence[str]) -> list[str]:
    """The blocks of the innermost answer that has one in Python; of the innermost one where none has."""
    blocks_by_answer = []
    for answer in answers:
        blocks, _ = _fenced_blocks(answer)
        blocks_by_answer.append(blocks or [_without_fences(answer)])
    for blocks in reversed(blocks_by_answer):
        if any(is_python(block) for block in blocks):
            return blocks
    return blocks_by_answer[-1]


def is_python(program: str) -> bool:
    """Whether this can be compiled: a program, or the indented body of a function. It is read and never run."""
    if len(program) > MAX_PROGRAM:
        return False
    is_indented = program.lstrip("\n")[:1].isspace()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(f"def body():\n{program}" if is_indented else program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def defines_name(program: str, entry: str) -> bool:
    """Whether a line of a program defines this name, as a function, a class or a variable, or imports it."""
    name = rf"\b{re.escape(entry)}\b"
    names = (
        rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{name}"
        rf"|^(?:\w[\w,= \t]{{0,200}}?)?{name}[\w, \t]{{0,200}}(?::[^=\n]*)?=(?!=)"
        rf"|^from[ \t]+[\w.]+[ \t]+import\b[\w,( \t]{{1,200}}?{name}[ \t]*(?:[,);#]|$)"
    )
    return bool(entry) and re.search(names, program, re.MULTILINE) is not None


def _fenced_blocks(text: str, depth: int = 0) -> tuple[list[str], list[tuple[int, int]]]:
    """The blocks of a text that are not blank, and the place of each block (start, end), with its fences. The place of
    an open block is empty, so that no tag counts as within it."""
    lines = text.split("\n")
    line_starts = [0, *accumulate(len(line) + 1 for line in lines)]
    endings = _Endings(lines)
    blocks = list[str]()
    places = list[tuple[int, int]]()
    next_line = 0
    while next_line < len(lines):
        opening_line = next_line
        next_line += 1
        is_short = len(lines[opening_line]) <= LONGEST_OPENING
        opening = _OPENING.fullmatch(lines[opening_line]) if is_short else None
        if opening is None:
            continue
        fence = opening["fence"] or opening["late"]
        width = len(opening["indent"]) + len(opening["marker"] or "")

        ends = endings.after(next_line, fence, width)
        end, block = _first_program(lines, next_line, ends, width)
        block = _without_glued_fence(block, fence)
        inner_blocks = list[str]()
        if depth < MOST_NESTED and not is_python(block):
            inner_blocks, _ = _fenced_blocks(block, depth + 1)
        if inner_blocks:
            blocks += inner_blocks
        elif block.strip():
            blocks.append(block)

        start = line_starts[opening_line]
        is_closed = end < len(lines)
        places.append((start, line_starts[end + 1] if is_closed else start))
        next_line = end + 1
    return blocks, places


class _Endings:
    """The lines of a text that may end a block, by their numbers."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._closing = [i for i, line in enumerate(lines) if _CLOSING.fullmatch(line)]
        self._closing_with_words = [i for i, line in enumerate(lines) if _CLOSING_WITH_WORDS.fullmatch(line)]

    def after(self, first_line: int, fence: str, width: int) -> list[int]:
        """Those that may end a block from ``first_line`` on, in the order in which they are tried; the end of the text
        where there is none. ``width``: of the opening's indentation. There are few, as each costs an attempt to compile
        all up to it."""
        first = bisect_left(self._closing, first_line)
        following = self._closing[first : first + MOST_CLOSING_LINES]
        ends = [i for i in following if _closes_fence(self._lines[i], fence, width)][:MOST_ENDINGS]
        if len(ends) < MOST_ENDINGS:
            first = bisect_left(self._closing_with_words, first_line)
            ends += self._closing_with_words[first : first + 1]
        return ends or [len(self._lines)]


def _first_program(lines: Sequence[str], first_line: int, ends: Sequence[int], width: int) -> tuple[int, str]:
    """The first end at which the block from ``first_line`` on is Python, and that block; the first of ``ends`` where it
    is Python at none."""
    for end in ends:
        block = _remove_indent(lines[first_line:end], width)
        if block.strip() and is_python(block):
            return end, block
    return ends[0], _remove_indent(lines[first_line : ends[0]], width)


def _closes_fence(line: str, fence: str, width: int) -> bool:
    match = _CLOSING.fullmatch(line)
    return match is not None and match["fence"].startswith(fence) and len(match["indent"]) <= width + 3


def _without_glued_fence(block: str, fence: str) -> str:
    """A block without a fence at the end of its last line and a byte order mark in front, where only that makes it
    Python."""
    bare = block.rstrip().removesuffix(fence).removeprefix("\ufeff")
    is_shorter = len(bare) < len(block.rstrip())
    if is_shorter and not is_python(block) and is_python(bare):
        return bare
    return block


def _remove_indent(lines: Sequence[str], width: int) -> str:
    """The lines, each without its first ``width`` characters as far as they are indentation."""
    shortened = []
    for line in lines:
        indentation = len(line) - len(line.lstrip(" \t"))
        shortened.append(line[min(width, indentation) :])
    return "\n".join(shortened)


def _dedent_block(block: str, entry: str) -> str:
    """A block all of whose lines are indented, without that indentation, where it is a program that defines ``entry``.
    Any other one may be the body of a function, and stays as it is."""
    dedented = textwrap.dedent(block)
    if dedented != block and defines_name(dedented, entry) and is_python(dedented):
        return dedented
    return block


def _without_fences(text: str) -> str:
    """A text without the lines that are a closing fence."""
    lines = [line for line in text.split("\n") if not _CLOSING.fullmatch(line)]
    return "\n".join(lines).strip("\n")


def _tag_places(text: str, tag: str, block_places: Sequence[tuple[int, int]]) -> list[int]:
    """The places of a tag outside of blocks, in order."""

    def is_in_block(place: int) -> bool:
        return any(start <= place < end for start, end in block_places)

    places = [match.start() for match in re.finditer(re.escape(tag), text)]
    return [place for place in places if not is_in_block(place)]
