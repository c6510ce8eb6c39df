r"""Answers in a model's own words: where the answer of a free text stands, by the format that one names.

::

    tags         <step>…</step> … <answer>39</answer>        the project's own, read by ``parsers.tagged_solution``
    boxed        … \boxed{39}                                the last one
    hash         … #### 39                                   GSM8K's
    phrase       The answer is 39.  Final answer: **39**     the last such phrase or ####, or bold text that ends the
                                                             solution
    last-number  … so she pays $39 in all.                   the last number, whatever it counts
    PATTERN      a regular expression with one group         the group of its last match

A free text becomes a ``Solution`` as a tagged one does: it is cut into steps as one says (``steps.py``; by default its
lines), and ``tagged`` is the same solution in tags, for graders and verifiers. A text in which the format finds nothing
is a ``ParseFailure``, never a guess by another format. A thought in front, ``… </think>``, is neither steps nor answer;
where nothing else stands before ``<answer>``, as in R1's format, it is what the steps are cut from.

Left out: answers in words ("thirty-nine"), and several answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cotrain.core.types import ParseFailure
from cotrain.text.parsers import (
    MAX_CHARS,
    Solution,
    behind_thoughts,
    blocks_of,
    last_boxed,
    tagged_solution,
    without_thought,
    write_solution,
)
from cotrain.text.patterns import pattern_of
from cotrain.text.steps import LINES, steps_in, write_steps

TAGS = "tags"
LONGEST = 200  # characters of a line after "the answer is" that are still an answer
_NUMBER = re.compile(r"(?<![\w.])-?\$?(?:\d+(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?%?|-?\.\d+")
_SAYS = re.compile(
    r"####|\banswer\b[*_]*(?: (?:to|of) [^.:\n]{1,80}?)?(?: (?:is|was|would be)\b|\s?[:=])[*_]*\s?:?", re.I
)
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*[.!]?\s*\Z")
_MARKS = re.compile(r"</?(?:step|answer|final)>")


def parse_solution(text: str, fields: Mapping[str, Any]) -> Solution | ParseFailure:
    """The parser of roles that write solutions: in tags, unless ``Role.answer`` says otherwise."""
    return tagged_solution(text)


def free_solution(text: str, answer: str, steps: str | None = None) -> Solution | ParseFailure:
    """A solution whose answer is written as ``answer`` says (see the module), cut into steps as ``steps`` says (None:
    its lines). Reasons of failure: those of ``without_thought``, "no answer", "several answers" (in tags), "no
    steps"."""
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        said = behind_thoughts(text) if len(text) <= MAX_CHARS else None
        return _naming(spoken, None if said is None else _named(said, answer))
    if answer == TAGS:
        blocks = [block for block in blocks_of(spoken, "answer") if block.text.strip()]
        if len(blocks) > 1:
            return _naming(ParseFailure(reason="several answers"), blocks[-1].text)
        found, body = (blocks[0].text, spoken[: blocks[0].start - len("<answer>")]) if blocks else (None, "")
        if not body.strip():  # all but the answer is a thought
            body = text[: len(body)].replace("<think>", " " * 7).replace("</think>", " " * 8)
    else:
        found, body = reader(answer)(spoken), spoken
    said = _clean(found or "")
    if not said:
        return ParseFailure(reason="no answer")
    cut = steps_in(body, steps or LINES)
    if not cut:
        return _naming(ParseFailure(reason="no steps"), said)
    return Solution(steps=cut, answer=said, tagged=write_solution([_clean(step.text) for step in cut], said))


def _named(spoken: str, answer: str) -> str | None:
    """The answer in a text without thoughts."""
    if answer != TAGS:
        return reader(answer)(spoken)
    blocks = [block.text for block in blocks_of(spoken, "answer") if block.text.strip()]
    return blocks[-1] if blocks else None


def _naming(failure: ParseFailure, answer: str | None) -> ParseFailure:
    """The failure of a text that names this answer all the same."""
    said = _clean(answer or "")
    return replace(failure, tagged=write_solution((), said)) if said else failure


def reader(answer: str) -> Callable[[str], str | None]:
    """What finds the answer in a text. Raises UnknownName, and ConfigError for a pattern that cannot be used."""
    if answer in READERS:
        return READERS[answer]
    pattern = pattern_of(answer, "answer", "format of an answer", (TAGS, *READERS), "A: (.*)")
    return lambda text: _last(pattern, text)


def check_answer(answer: str) -> None:
    """Raise as ``reader`` does where ``answer`` is no format."""
    if answer != TAGS:
        reader(answer)


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found = None
    for match in pattern.finditer(text):
        found = match[1]
    return found


def _hash(text: str) -> str | None:
    _, mark, after = text.rpartition("####")
    return after.strip().split("\n", 1)[0] if mark else None


def _phrase(text: str) -> str | None:
    """What follows the last "answer is", "answer:" or "####", on that line or the next; or else bold text at the very
    end."""
    for match in reversed(list(_SAYS.finditer(text))):
        rest = text[match.end() : match.end() + 2 * LONGEST].lstrip(" \t*_\n")
        if (said := _value(rest.split("\n", 1)[0])) is not None:
            return said
    bold = _BOLD.search(text[-LONGEST:])
    return None if bold is None else _value(bold[1])


def _value(line: str) -> str | None:
    """The answer that a line begins with: mathematics as it stands, of a sentence the number in it, else the words."""
    line = line[:LONGEST]
    if line.startswith("\\boxed{"):
        return last_boxed(line)
    for left, right in (("\\(", "\\)"), ("\\[", "\\]"), ("$", "$")):
        end = line.find(right, len(left))
        if line.startswith(left) and end > 0 and not (left == "$" and line[1:2].isdigit() and " " in line[1:end]):
            return line[len(left) : end]
    said = re.split(r"(?<=[^.\d])\.(?:\s|$)|\.\s|\*\*|__", line, maxsplit=1)[0].strip().rstrip(".!,;: ")
    numbers = _NUMBER.findall(said)
    if numbers and (len(said.split()) > 3 or "=" in said):
        return numbers[-1] if "=" in said else numbers[0]
    return said or None


def _last_number(text: str) -> str | None:
    found = None
    for match in _NUMBER.finditer(text):
        found = match[0]
    return found


READERS: Mapping[str, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "hash": _hash,
    "phrase": _phrase,
    "last-number": _last_number,
}


ENDS: Mapping[str, str] = {  # how a solution ends that is read in a format; a pattern is not written
    TAGS: "<answer>ANSWER</answer>",
    "boxed": "The answer is \\boxed{ANSWER}.",
    "hash": "#### ANSWER",
    "phrase": "The answer is ANSWER.",
    "last-number": "ANSWER",
}


def write_answer(answer: str, form: str) -> str:
    """The end of a solution from which the reader of this format takes this answer, as far as it can say it."""
    end = ENDS[form].replace("ANSWER", answer)
    if form == "phrase" and _phrase(end) != answer:
        return ENDS["boxed"].replace("ANSWER", answer)
    return end


def write_own(steps: Sequence[str], answer: str, form: str, cut: str | None) -> str:
    """The text of a solution in words; ``free_solution`` reads its answer back, and its steps, which are lines."""
    lines = [line for step in steps if (line := " ".join(step.split()))]
    return f"{write_steps(lines, cut or LINES)}\n{write_answer(answer, form)}".strip()


def _clean(text: str) -> str:
    """A text that can stand between tags."""
    return _MARKS.sub("", text).strip()
