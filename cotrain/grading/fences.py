"""Programs in a model's answer: fenced blocks, as CommonMark has them, and the one of them that is meant.

::

    1. So:                                    a block is ended by at least as many of the same sign (` or ~), indented
       ```python                              by at most three more than its opening, with nothing behind them; its
       def f(text):                           lines lose the opening's indentation; at the end of the text it may be
           return text.split("```")           open
       ```

Other than there, words may stand in front of an opening, a block may be indented as deeply as it likes, and of lines
that could end a block, last one with words behind its fence, the first is taken that makes it Python: programs have
fences in their docstrings. A block that is none and holds others gives these.

Left out: blocks by indentation alone, and quotations.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, islice

from cotrain.formats.solutions import behind_thoughts

MAX_PROGRAM = 100_000  # characters
ENDINGS = 8  # lines that could end a block and are tried
NEAR = 100  # lines of a fence alone, among which these are looked for
NESTED = 3  # blocks in blocks
LONGEST = 400  # characters of a line that opens a block
_OPENING = re.compile(  # with anything behind it, or behind words and with a language alone behind it
    r"(?P<indent>[ \t]*+)(?P<marker>(?:[-*+]|\d{1,3}[.)])[ \t]++)?"
    r"(?:(?P<fence>`{3,}+|~{3,}+)[^`<]*|\S.*?(?<![`~])(?P<late>`{3,}+|~{3,}+)[ \t]*+[\w+#.-]*+\s*+)"
)
_BESIDE = re.compile(r"(?<=<answer>)[ \t]*(?=```|~~~)|(?:(?<=```)|(?<=~~~))[ \t]*(?=</answer>)")
_TALKING = re.compile(
    r"[ \t]*+(?:`{3,}+|~{3,}+)(?![ \t]*[\w+#.-]*\s*$).{0,400}", re.S
)  # a closing with words behind it
_CLOSING = re.compile(r"(?P<indent>[ \t]*+)(?P<fence>`{3,}+|~{3,}+)\s*+")


def program_of(text: str, entry: str = "") -> str | None:
    """The program in an answer: of the fenced blocks (in the last ``<answer>``, where there is one) the last that is
    Python and defines ``entry``, else the last that defines it, else the last; without a block all of the ``<answer>``,
    or what a lone closing fence ends. None where there is none of these, or it is blank or in a thought."""
    reply = behind_thoughts(text)
    if reply is None:
        return None
    reply = _BESIDE.sub("\n", reply)
    blocks, fenced = _fenced_blocks(reply)
    answers = _answers_in(reply, fenced)
    if answers:
        blocks = _blocks_of_answers(answers)
    elif fenced and entry and not any(defines_name(block, entry) for block in blocks):
        before = reply[: fenced[0][0]].strip("\n")
        is_meant = defines_name(before, entry) and is_python(before)
        if is_meant:  # the fence behind it closes, and nothing opened
            blocks = [before]

    blocks = [_dedent_block(block, entry) for block in blocks if block.strip()]
    defining = [block for block in blocks if defines_name(block, entry)]
    sound = [block for block in defining if is_python(block)]
    for candidates in (sound, defining, blocks):
        if candidates:
            return candidates[-1]
    return None


def _answers_in(reply: str, fenced: Sequence[tuple[int, int]]) -> list[str]:
    """What stands between each ``<answer>`` and the last ``</answer>``, the innermost last."""
    ends = _tag_places(reply, "</answer>", fenced)
    if not ends:
        return []
    end = ends[-1]
    starts = [place + len("<answer>") for place in _tag_places(reply, "<answer>", fenced) if place < end]
    return [reply[start:end] for start in starts[-ENDINGS:]]


def _blocks_of_answers(answers: Sequence[str]) -> list[str]:
    """The blocks of the innermost answer that has one in Python; of the innermost one where none has."""
    blocks_of_each = [_fenced_blocks(answer)[0] or [_without_fences(answer)] for answer in answers]
    for blocks in reversed(blocks_of_each):
        if any(is_python(block) for block in blocks):
            return blocks
    return blocks_of_each[-1]


def is_python(program: str) -> bool:
    """Whether this can be compiled: a program, or the body of a function. It is read and never run."""
    if len(program) > MAX_PROGRAM:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(f"def body():\n{program}" if program.lstrip("\n")[:1].isspace() else program)
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
    """The blocks of a text that are not blank, and where they stand, fences included; an open one hides nothing."""
    lines = text.split("\n")
    line_starts = [0, *accumulate(len(line) + 1 for line in lines)]
    endings = _Endings(lines)
    blocks = list[str]()
    fenced = list[tuple[int, int]]()
    position = 0
    while position < len(lines):
        start = position
        position += 1
        opening = _OPENING.fullmatch(lines[start]) if len(lines[start]) <= LONGEST else None
        if opening is None:
            continue
        fence = opening["fence"] or opening["late"]
        width = len(opening["indent"]) + len(opening["marker"] or "")

        end, block = _first_program(lines, position, endings.after(position, fence, width), width)
        block = _without_glued_fence(block, fence)
        inner = list[str]()
        if depth < NESTED and not is_python(block):
            inner, _ = _fenced_blocks(block, depth + 1)
        if inner:
            blocks += inner
        elif block.strip():
            blocks.append(block)

        is_closed = end < len(lines)
        fenced.append((line_starts[start], line_starts[end + 1] if is_closed else line_starts[start]))
        position = end + 1
    return blocks, fenced


class _Endings:
    """The lines of a text that may end a block."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._closing = [i for i, line in enumerate(lines) if _CLOSING.fullmatch(line)]
        self._talking = [i for i, line in enumerate(lines) if _TALKING.fullmatch(line)]

    def after(self, position: int, fence: str, width: int) -> list[int]:
        """Those that may end a block from ``position`` on, in the order in which they are tried; the end of the text
        where there is none. ``width``: of the opening's indentation."""
        first = bisect_left(self._closing, position)
        near = self._closing[first : first + NEAR]
        ends = list(islice((i for i in near if _closes_fence(self._lines[i], fence, width)), ENDINGS))
        if len(ends) < ENDINGS:  # so that what is tried is not all of the text, time and again
            first = bisect_left(self._talking, position)
            ends += self._talking[first : first + 1]
        return ends or [len(self._lines)]


def _first_program(lines: Sequence[str], position: int, ends: Sequence[int], width: int) -> tuple[int, str]:
    """The first end at which the block from ``position`` on is Python, and that block; else the first end of all."""
    for end in ends:
        block = _remove_indent(lines[position:end], width)
        if block.strip() and is_python(block):
            return end, block
    return ends[0], _remove_indent(lines[position : ends[0]], width)


def _closes_fence(line: str, fence: str, width: int) -> bool:
    match = _CLOSING.fullmatch(line)
    return match is not None and match["fence"].startswith(fence) and len(match["indent"]) <= width + 3


def _without_glued_fence(block: str, fence: str) -> str:
    """A block without the fence behind its last line, and the byte order mark in front of it, where it is Python so."""
    bare = block.rstrip().removesuffix(fence).removeprefix("\ufeff")
    is_shorter = len(bare) < len(block.rstrip())
    if is_shorter and not is_python(block) and is_python(bare):
        return bare
    return block


def _remove_indent(lines: Sequence[str], width: int) -> str:
    """The lines without ``width`` characters of indentation, or what each has of it."""
    shortened = []
    for line in lines:
        indentation = len(line) - len(line.lstrip(" \t"))
        shortened.append(line[min(width, indentation) :])
    return "\n".join(shortened)


def _dedent_block(block: str, entry: str) -> str:
    """A block all of whose lines are indented, without that, where it is more than the body of a function."""
    level = textwrap.dedent(block)
    if level != block and defines_name(level, entry) and is_python(level):
        return level
    return block


def _without_fences(text: str) -> str:
    lines = [line for line in text.split("\n") if not _CLOSING.fullmatch(line)]
    return "\n".join(lines).strip("\n")


def _tag_places(text: str, tag: str, fenced: Sequence[tuple[int, int]]) -> list[int]:
    """The places of a tag outside of blocks, in order."""

    def is_fenced(place: int) -> bool:
        return any(start <= place < end for start, end in fenced)

    places = [match.start() for match in re.finditer(re.escape(tag), text)]
    return [place for place in places if not is_fenced(place)]
