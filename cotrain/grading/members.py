r"""Answers of several values, written as math-verify reads them.

::

    x = 1, y = 2                the values by name                    (1, 2)
    \frac{1 \pm \sqrt{5}}{2}    both values                           \frac{1+ \sqrt{5}}{2}, \frac{1- \sqrt{5}}{2}
    ]0, 1], [0; 1[              brackets that point away are open     (0, 1], [0, 1)
    \{x : x > 1\}               the condition alone                   x > 1
    2 \ge x \ge 1               the smaller side in front             1 \le x \le 2
    x < 1 or x > 2              intervals                             (-\infty, 1) \cup (2, \infty)

Left out: conditions of several letters, and ± more than once in a value, which may mean two values or four.
"""

from __future__ import annotations

import re

LONGEST = 300  # characters of a condition that is read here
_ASSIGNED = re.compile(r"\s*([a-zA-Z])\s*=([^=,;()]+)")
_AND = re.compile(r"[,;]\s*(?:and\s)?|\sand\s|\s*\\text\s*\{\s*,?\s*and\s*\}")
_SET = re.compile(r"\\\{.*\\\}", re.S)
_GROUP = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_TURNED = re.compile(r"([\[\]])([^\[\],;]+)[,;]([^\[\],;]+)([\[\]])")
_PARTED = re.compile(r"([(\[][^()\[\],;]+);\s*([^()\[\],;]+[)\]])")
_IN_SET = re.compile(
    r"(\\\{)?\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|\\vert|\||:|\\colon)(?![a-zA-Z])"
    r"((?=.*(?:[<>]|\\[lg]e)).+?)(?(1)\\\}|\Z)"
)
_LESS = r"(<|\\le(?:q|qslant)?(?![a-zA-Z]))"
_MORE = r"(>|\\ge(?:q|qslant)?(?![a-zA-Z]))"
_DECREASES = re.compile(rf"([^<>]+?){_MORE}([^<>]+?){_MORE}([^<>]+)")
_OR = re.compile(r"\s*,?\s*(?:\\text\s*\{\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])|\\(?:vee|lor)(?![a-zA-Z]))\s*")
_SIDE = r"((?:\\(?!le|ge|ne|in(?!fty)|text)[a-zA-Z]+|[^<>=\\,a-zA-Z])+?)"  # without letters
_BELOW = re.compile(rf"(?:{_SIDE}{_LESS})?\s*([a-zA-Z])\s*(?:{_LESS}{_SIDE})?")
_ABOVE = re.compile(rf"(?:([a-zA-Z])\s*{_MORE}{_SIDE}|{_SIDE}{_MORE}\s*([a-zA-Z])\s*)")
_INTERVAL = re.compile(r"[(\[][^()\[\]]+,[^()\[\]]+[)\]]")


def assigned_values(tex: str) -> dict[str, str]:
    """The values of several letters, as in ``x=1, y=2``; empty for all else."""
    pairs = [_ASSIGNED.fullmatch(part) for part in _AND.split(tex)] if "=" in tex else []
    values = {pair[1]: pair[2].strip() for pair in pairs if pair}
    return values if 1 < len(values) == len(pairs) else {}


def sort_assigned(tex: str) -> str:
    """``y=2 and x=1`` by the names of its letters, all else as it is."""
    if "=" not in tex:
        return tex
    parts = _AND.split(tex)
    if len(parts) < 2 or not all(map(_ASSIGNED.fullmatch, parts)):
        return tex
    return ", ".join(sorted(map(str.strip, parts), key=str.casefold))


def turn_brackets(tex: str) -> str:
    """Intervals with brackets that point away, ``]0, 1[``, with round ones, where the others do not pair up; and with
    a comma for a semicolon."""
    depth = 0
    for char in tex:
        depth += (char in "([") - (char in ")]")
        if depth < 0:
            break
    return _PARTED.sub(r"\1, \2", tex) if depth == 0 else _TURNED.sub(_turn_interval, tex)


def _turn_interval(match: re.Match[str]) -> str:
    left = "(" if match[1] == "]" else "["
    right = ")" if match[4] == "[" else "]"
    return f"{left}{match[2]}, {match[3].strip()}{right}"


def write_conditions(tex: str) -> str:
    """Conditions on one letter with one reading; see the module."""
    if len(tex) > LONGEST:
        return tex
    in_set = _IN_SET.fullmatch(tex)
    if in_set:
        tex = in_set[3].strip()
    decreases = _DECREASES.fullmatch(tex)
    if decreases:
        largest, sign, middle, second_sign, smallest = decreases.groups()
        return f"{smallest.strip()} {_turn_sign(second_sign)} {middle.strip()} {_turn_sign(sign)} {largest.strip()}"
    parts = _OR.split(tex)
    if len(parts) < 2:
        return tex
    if "\\infty" in tex and all(map(_INTERVAL.fullmatch, parts)):
        return " \\cup ".join(parts)
    return _union_of(parts) or tex


def _union_of(conditions: list[str]) -> str | None:
    """Inequalities of one letter as intervals; None where one of them is none, and for several letters."""
    letters = set()
    intervals = []
    for condition in conditions:
        read = _interval_of(condition)
        if read is None:
            return None
        letter, interval = read
        letters.add(letter)
        intervals.append(interval)
    return " \\cup ".join(intervals) if len(letters) == 1 else None


def _turn_sign(sign: str) -> str:
    return "<" if sign == ">" else "\\le"


def _interval_of(condition: str) -> tuple[str, str] | None:
    """The letter of an inequality, and the interval that it lies in."""
    if (match := _BELOW.fullmatch(condition)) and (match[1] or match[5]):
        low, below, letter, above, high = match.groups()
    elif match := _ABOVE.fullmatch(condition):
        letter = match[1] or match[6]
        low = match[3]
        below = match[2]
        above = match[5]
        high = match[4]
    else:
        return None

    left = "(-\\infty"
    if below:
        bracket = "(" if below in "<>" else "["
        left = f"{bracket}{low.strip()}"
    right = "\\infty)"
    if above:
        bracket = ")" if above in "<>" else "]"
        right = f"{high.strip()}{bracket}"
    return letter, f"{left}, {right}"


def write_both_signs(tex: str) -> str:
    r"""Values with ``\pm`` as the two that they are; all as it is where one has several, or is no value."""
    if "\\pm" not in tex:
        return tex
    inside = tex.strip()[2:-2] if _SET.fullmatch(tex.strip()) else tex
    parts = _split_list(inside)
    if any(part.count("\\pm") > 1 or not _is_value(part) for part in parts):
        return tex
    values = []
    for part in parts:
        values.append(_choose_signs(part, "+-"))
        if "\\pm" in part:
            values.append(_choose_signs(part, "-+"))
    text = ", ".join(values)
    return text if inside is tex else "\\{" + text + "\\}"


def _is_value(part: str) -> bool:
    """Whether a text states a value, of a letter or none, and no equation or inequality."""
    return not re.search(r"[=<>]|\\(?:[lgn]eq?|approx)(?![a-zA-Z])", re.sub(r"^\s*[a-zA-Z]\s*=", "", part))


def _choose_signs(part: str, signs: str) -> str:
    r"""A part with these two for ``\pm`` and ``\mp``."""
    for command, sign in zip(("pm", "mp"), signs, strict=True):
        part = re.sub(rf"\\{command}(?![a-zA-Z])", sign, part)
    return re.sub(r"(^|[=({,])\s*\+", r"\1", part.strip())


def _split_list(text: str) -> list[str]:
    """The parts between commas that stand in no bracket."""
    parts = []
    depth = 0
    start = 0
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
