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
    if (reply := behind_thoughts(text)) is None:
        return None
    reply = _BESIDE.sub("\n", reply)
    blocks, fenced = _fenced_blocks(reply)
    ends = _tag_places(reply, "</answer>", fenced)[-1:]
    starts = [at + len("<answer>") for at in _tag_places(reply, "<answer>", fenced) if at < max(ends, default=-1)]
    answers = [reply[start : ends[0]] for start in starts[-ENDINGS:]]
    if answers:
        answer_blocks = [_fenced_blocks(inside)[0] or [_without_fences(inside)] for inside in answers]
        blocks = next((some for some in reversed(answer_blocks) if any(map(is_python, some))), answer_blocks[-1])
    elif fenced and entry and not any(defines_name(block, entry) for block in blocks):
        before = reply[: fenced[0][0]].strip("\n")
        blocks = [before] if defines_name(before, entry) and is_python(before) else blocks

    blocks = [_dedent_block(block, entry) for block in blocks if block.strip()]
    defining = [block for block in blocks if defines_name(block, entry)]
    sound = [block for block in defining if is_python(block)]
    return next((some[-1] for some in (sound, defining, blocks) if some), None)


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
    closing = [i for i, line in enumerate(lines) if _CLOSING.fullmatch(line)]
    talking = [i for i, line in enumerate(lines) if _TALKING.fullmatch(line)]
    blocks = list[str]()
    fenced = list[tuple[int, int]]()
    position = 0
    while position < len(lines):
        opening = _OPENING.fullmatch(lines[position]) if len(lines[position]) <= LONGEST else None
        start = position
        position = position + 1
        if opening is None:
            continue
        fence = opening["fence"] or opening["late"]
        width = len(opening["indent"]) + len(opening["marker"] or "")
        near = closing[(at := bisect_left(closing, position)) : at + NEAR]
        endings = (i for i in near if _closes_fence(lines[i], fence, width))
        ends = list(islice(endings, ENDINGS))
        if len(ends) < ENDINGS:  # so that what is tried is not all of the text, time and again
            ends += talking[(at := bisect_left(talking, position)) : at + 1]
        ends = ends or [len(lines)]
        tried = (_remove_indent(lines[position:end], width) for end in ends)
        end, block = next(
            ((end, block) for end, block in zip(ends, tried, strict=True) if block.strip() and is_python(block)),
            (ends[0], _remove_indent(lines[position : ends[0]], width)),
        )
        block = _without_glued_fence(block, fence)
        inner = [] if depth == NESTED or is_python(block) else _fenced_blocks(block, depth + 1)[0]
        blocks += inner or ([block] if block.strip() else [])
        fenced.append((line_starts[start], line_starts[min(end + 1, len(lines)) if end < len(lines) else start]))
        position = end + 1
    return blocks, fenced


def _closes_fence(line: str, fence: str, width: int) -> bool:
    match = _CLOSING.fullmatch(line)
    return match is not None and match["fence"].startswith(fence) and len(match["indent"]) <= width + 3


def _without_glued_fence(block: str, fence: str) -> str:
    """A block without the fence behind its last line, and the byte order mark in front of it, where it is Python so."""
    bare = block.rstrip().removesuffix(fence).removeprefix("\ufeff")
    return bare if len(bare) < len(block.rstrip()) and not is_python(block) and is_python(bare) else block


def _remove_indent(lines: Sequence[str], width: int) -> str:
    return "\n".join(line[min(width, len(line) - len(line.lstrip(" \t"))) :] for line in lines)


def _dedent_block(block: str, entry: str) -> str:
    """A block all of whose lines are indented, without that, where it is more than the body of a function."""
    level = textwrap.dedent(block)
    return level if level != block and defines_name(level, entry) and is_python(level) else block


def _without_fences(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not _CLOSING.fullmatch(line)).strip("\n")


def _tag_places(text: str, tag: str, fenced: Sequence[tuple[int, int]]) -> list[int]:
    """The places of a tag outside of blocks, in order."""

    def is_fenced(place: int) -> bool:
        return any(start <= place < end for start, end in fenced)

    places = [match.start() for match in re.finditer(re.escape(tag), text)]
    return [place for place in places if not is_fenced(place)]
