r"""Answers of several values, written as math-verify reads them.

::

    assigned_values     x = 1, y = 2                the values by letter              {"x": "1", "y": "2"}
    write_both_signs    \frac{1 \pm \sqrt{5}}{2}    both values                       \frac{1+ \sqrt{5}}{2}, \frac{1- …
    turn_brackets       ]0, 1], [0; 1[              outward brackets are round        (0, 1], [0, 1)
    write_conditions    \{x : x > 1\}               the condition alone               x > 1
                        2 \ge x \ge 1               the smaller side in front         1 \le x \le 2
                        x < 1 or x > 2              intervals                         (-\infty, 1) \cup (2, \infty)

Left out: conditions of several letters, and ± more than once in a value, which may mean two values or four.
"""

from __future__ import annotations

import re

LONGEST_CONDITION = 300  # characters
_ASSIGNMENT = re.compile(r"\s*([a-zA-Z])\s*=([^=,;()]+)")
_AND = re.compile(r"[,;]\s*(?:and\s)?|\sand\s|\s*\\text\s*\{\s*,?\s*and\s*\}")
_SET = re.compile(r"\\\{.*\\\}", re.S)
_OUTWARD_INTERVAL = re.compile(r"([\[\]])([^\[\],;]+)[,;]([^\[\],;]+)([\[\]])")  # ]0, 1[
_SEMICOLON_INTERVAL = re.compile(r"([(\[][^()\[\],;]+);\s*([^()\[\],;]+[)\]])")  # [0; 1)
_SET_OF_CONDITION = re.compile(  # \{x : x > 1\}
    r"(\\\{)?\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|\\vert|\||:|\\colon)(?![a-zA-Z])"
    r"((?=.*(?:[<>]|\\[lg]e)).+?)(?(1)\\\}|\Z)"
)
_LESS = r"(<|\\le(?:q|qslant)?(?![a-zA-Z]))"
_MORE = r"(>|\\ge(?:q|qslant)?(?![a-zA-Z]))"
_DECREASING = re.compile(rf"([^<>]+?){_MORE}([^<>]+?){_MORE}([^<>]+)")  # 2 \ge x \ge 1
_OR = re.compile(r"\s*,?\s*(?:\\text\s*\{\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])|\\(?:vee|lor)(?![a-zA-Z]))\s*")
_BOUND = r"((?:\\(?!le|ge|ne|in(?!fty)|text)[a-zA-Z]+|[^<>=\\,a-zA-Z])+?)"  # without letters
_LESS_INEQUALITY = re.compile(rf"(?:{_BOUND}{_LESS})?\s*([a-zA-Z])\s*(?:{_LESS}{_BOUND})?")  # 1 < x \le 2
_MORE_INEQUALITY = re.compile(rf"(?:([a-zA-Z])\s*{_MORE}{_BOUND}|{_BOUND}{_MORE}\s*([a-zA-Z])\s*)")  # x > 1, 2 > x
_INTERVAL = re.compile(r"[(\[][^()\[\]]+,[^()\[\]]+[)\]]")


def assigned_values(tex: str) -> dict[str, str]:
    """The values of several letters, as in ``x=1, y=2``; {} for any other text."""
    if "=" not in tex:
        return {}
    assignments = [_ASSIGNMENT.fullmatch(part) for part in _AND.split(tex)]
    values = {assignment[1]: assignment[2].strip() for assignment in assignments if assignment}
    has_letters_once = len(values) == len(assignments)
    return values if has_letters_once and len(values) > 1 else {}


def sort_assigned(tex: str) -> str:
    """``y=2 and x=1`` as ``x=1, y=2``; any other text as it is."""
    if "=" not in tex:
        return tex
    parts = _AND.split(tex)
    if len(parts) < 2 or not all(map(_ASSIGNMENT.fullmatch, parts)):
        return tex
    return ", ".join(sorted(map(str.strip, parts), key=str.casefold))


def turn_brackets(tex: str) -> str:
    """Intervals with round brackets for outward ones, ``]0, 1[`` as ``(0, 1)``, and with a comma for a semicolon.
    Outward brackets do not pair up; where all brackets do, none is turned."""
    depth = 0
    for char in tex:
        depth += (char in "([") - (char in ")]")
        if depth < 0:
            break
    if depth == 0:
        return _SEMICOLON_INTERVAL.sub(r"\1, \2", tex)
    return _OUTWARD_INTERVAL.sub(_turn_interval, tex)


def _turn_interval(match: re.Match[str]) -> str:
    left = "(" if match[1] == "]" else "["
    right = ")" if match[4] == "[" else "]"
    return f"{left}{match[2]}, {match[3].strip()}{right}"


def write_conditions(tex: str) -> str:
    """Conditions on one letter, each in one of the ways in which they are written; see the module."""
    if len(tex) > LONGEST_CONDITION:
        return tex
    set_of_condition = _SET_OF_CONDITION.fullmatch(tex)
    if set_of_condition:
        tex = set_of_condition[3].strip()
    decreasing = _DECREASING.fullmatch(tex)
    if decreasing:
        largest, first_sign, middle, second_sign, smallest = decreasing.groups()
        left = f"{smallest.strip()} {_turn_sign(second_sign)}"
        right = f"{_turn_sign(first_sign)} {largest.strip()}"
        return f"{left} {middle.strip()} {right}"
    parts = _OR.split(tex)
    if len(parts) < 2:
        return tex
    if "\\infty" in tex and all(map(_INTERVAL.fullmatch, parts)):
        return " \\cup ".join(parts)
    return _union_of(parts) or tex


def _union_of(inequalities: list[str]) -> str | None:
    """Inequalities of one letter as a union of intervals; None for anything else."""
    letters = set()
    intervals = []
    for inequality in inequalities:
        letter_and_interval = _interval_of(inequality)
        if letter_and_interval is None:
            return None
        letter, interval = letter_and_interval
        letters.add(letter)
        intervals.append(interval)
    return " \\cup ".join(intervals) if len(letters) == 1 else None


def _turn_sign(sign: str) -> str:
    return "<" if sign == ">" else "\\le"


def _interval_of(inequality: str) -> tuple[str, str] | None:
    """The letter of an inequality and the interval of its values; None for what is no inequality."""
    less = _LESS_INEQUALITY.fullmatch(inequality)
    more = _MORE_INEQUALITY.fullmatch(inequality)
    if less and (less[1] or less[5]):
        low, low_sign, letter, high_sign, high = less.groups()
    elif more:
        letter_in_front, low_sign, low, high, high_sign, letter_behind = more.groups()
        letter = letter_in_front or letter_behind
    else:
        return None

    left = "(-\\infty"
    if low_sign:
        bracket = "(" if low_sign in "<>" else "["
        left = f"{bracket}{low.strip()}"
    right = "\\infty)"
    if high_sign:
        bracket = ")" if high_sign in "<>" else "]"
        right = f"{high.strip()}{bracket}"
    return letter, f"{left}, {right}"


def write_both_signs(tex: str) -> str:
    r"""A value with ``\pm`` as the two values that it is, in a list or set of values each. The text as it is where a
    value has several ``\pm``, or a part is no value."""
    if "\\pm" not in tex:
        return tex
    is_set = _SET.fullmatch(tex.strip()) is not None
    parts = _split_list(tex.strip()[2:-2] if is_set else tex)
    if any(part.count("\\pm") > 1 or not _is_value(part) for part in parts):
        return tex
    values = []
    for part in parts:
        values.append(_choose_signs(part, pm="+", mp="-"))
        if "\\pm" in part:
            values.append(_choose_signs(part, pm="-", mp="+"))
    text = ", ".join(values)
    return "\\{" + text + "\\}" if is_set else text


def _is_value(part: str) -> bool:
    """Whether a text states a value, also of a letter (``x = 1``), and no other equation or inequality."""
    without_letter = re.sub(r"^\s*[a-zA-Z]\s*=", "", part)
    return not re.search(r"[=<>]|\\(?:[lgn]eq?|approx)(?![a-zA-Z])", without_letter)


def _choose_signs(part: str, *, pm: str, mp: str) -> str:
    r"""A value with these signs for ``\pm`` and ``\mp``, and without a plus sign in front."""
    part = re.sub(r"\\pm(?![a-zA-Z])", pm, part)
    part = re.sub(r"\\mp(?![a-zA-Z])", mp, part)
    return re.sub(r"(^|[=({,])\s*\+", r"\1", part.strip())


def _split_list(text: str) -> list[str]:
    """The parts between commas, of which those in brackets do not count."""
    parts = []
    depth = 0
    start = 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]
