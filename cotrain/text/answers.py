r"""Answers in a model's own words: where the answer of a free text stands, by the format that one names.

::

    tags         <step>…</step> … <answer>39</answer>        the project's own, read by ``parsers.tagged_solution``
    boxed        … \boxed{39}                                the last one
    hash         … #### 39                                   GSM8K's
    phrase       The answer is 39.  Final answer: **39**     the last such phrase or ####, or bold text that ends the
                                                             solution
    last-number  … so she pays $39 in all.                   the last number, whatever it counts
    PATTERN      a regular expression with one group         the group of its last match

A free text becomes a ``Solution`` as a tagged one does: its lines are the steps, and ``tagged`` is the same solution in
tags, for graders and verifiers. A text in which the format finds nothing is a ``ParseFailure``, never a guess by
another format.

Left out: answers in words ("thirty-nine"), several answers, and a guess at where steps that share a line end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.types import ParseFailure, Span
from cotrain.text.parsers import MAX_CHARS, Solution, last_boxed, tagged_solution, write_solution

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


def free_solution(text: str, answer: str) -> Solution | ParseFailure:
    """A solution whose answer is written as ``answer`` says (see the module). Reasons of failure: "too long", "no
    answer"."""
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    found = _clean(reader(answer)(text) or "")
    if not found:
        return ParseFailure(reason="no answer")
    steps = _lines(text)
    tagged = write_solution([_clean(step.text) for step in steps], found)
    return Solution(steps=steps, answer=found, tagged=tagged)


def reader(answer: str) -> Callable[[str], str | None]:
    """What finds the answer in a text. Raises UnknownName, and ConfigError for a pattern that cannot be used."""
    if answer in READERS:
        return READERS[answer]
    if "(" not in answer:
        raise UnknownName(
            "format of an answer", answer, (TAGS, *READERS, "a pattern with one group, such as 'A: (.*)'")
        )
    try:
        pattern = re.compile(answer)
    except re.error as error:
        raise ConfigError(f"answer {answer!r}: not a regular expression ({error}); mend it, or name a format") from None
    if pattern.groups != 1:
        raise ConfigError(f"answer {answer!r}: has {pattern.groups} groups, expected one around the answer")
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


def _clean(text: str) -> str:
    """A text that can stand between tags."""
    return _MARKS.sub("", text).strip()


def _lines(text: str) -> tuple[Span, ...]:
    """The lines of a text that are not blank, without the space around them."""
    spans, at = [], 0
    for line in text.split("\n"):
        if inside := line.strip():
            start = at + line.index(inside[0])
            spans.append(Span(start=start, end=start + len(inside), text=inside))
        at += len(line) + 1
    return tuple(spans)
