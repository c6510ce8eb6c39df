r"""Comparing two answers without algebra: equal texts, plain numbers, units, words, letters of a multiple choice.

::

    1,000 and 1000.0      True      one number
    50 and 50 %           True      but not 0.5 and 0.5 %
    1 hour and 60 min     True      measures convert
    Monday and sunday     False     words are compared as words
    C and (C) five        True      a choice, with its text
    x+1 and 1+x           two formulas, which math-verify has to compare

``compare_texts`` gives the grade, or the two formulas in one notation. Each answer is read first (``read_answer``): it
is unwrapped, written in TeX, and split into number and unit (``quantities.py``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from cotrain.core.types import Grade
from cotrain.formats.answers import last_boxed, without_alignment
from cotrain.grading.members import assigned_values, write_both_signs
from cotrain.grading.notation import has_adjacent_numbers, parts_of, plain_signs, write_tex
from cotrain.grading.quantities import PERCENT, Quantity, Unit, is_base, parse_quantity, unit_ratio

MAX_ANSWER = 10_000  # characters; a longer text is not an answer, unless it equals the gold answer
APART = Fraction(1, 10_000)  # a decimal and a fraction that are nearer are left to math-verify, which knows rounding
MOST_LAYERS = 8  # of wrapping around an answer
LONGEST_NUMBER = 60  # characters of a number with the separators of another country
CACHED_ANSWERS = 1024  # answers that are kept as they were read

RIGHT = Grade(value=True)
WRONG = Grade(value=False)
UNREADABLE_GOLD = Grade(value=None, reason="gold not readable")


def vote_key(answer: str) -> str:
    """The key under which a vote counts an answer, the same for equal answers: of a plain number its value, without the
    unit; of any other text the text, without case and spaces."""
    if len(answer) > MAX_ANSWER:
        quantity = Quantity(tex=answer)
    else:
        quantity = read_answer(answer)
    if quantity.value is None:
        return _SPACES.sub("", quantity.tex).casefold()

    numerator, denominator = quantity.value.as_integer_ratio()
    is_share = quantity.unit is PERCENT and -1 < quantity.value < 1  # 50 % counts as 50, but 0.5 % is no half
    if is_share:
        denominator *= 100
    # In hexadecimal, as Python writes no decimal of more than 4,300 digits.
    return f"{numerator:x}/{denominator:x}" if denominator > 1 else f"{numerator:x}"


def quick_grade(gold: str, answer: str) -> Grade | None:
    """The grade where it needs no algebra: blank, overlong or equal texts, plain numbers, plain words; else None.

    Numbers are compared exactly, without currency signs, thousands separators and trailing zeros. "%" is dropped only
    if the numbers are then equal and not below 1, and a unit only where the other side has none.
    """
    compared = compare_texts(gold, answer)
    return compared if isinstance(compared, Grade) else None


def compare_texts(gold_text: str, answer_text: str) -> Grade | tuple[str, str]:
    """The grade, or the two formulas that math-verify has to compare: the gold one, then the answer's."""
    gold_text = gold_text.strip()
    answer_text = answer_text.strip()
    if len(answer_text) > MAX_ANSWER and gold_text != answer_text:
        return WRONG

    gold, answer = _read_both(gold_text, answer_text)
    if not gold.tex:  # the gold answer is all wrapping, such as "$$" or a full stop
        is_same = gold_text == answer_text and bool(gold_text.strip(". "))
        return RIGHT if is_same else UNREADABLE_GOLD
    if not answer.tex:
        return WRONG
    if gold == answer:
        return RIGHT
    if not _has_balanced_braces(answer.tex) or has_adjacent_numbers(answer.tex):
        return WRONG
    if has_adjacent_numbers(gold.tex):
        return UNREADABLE_GOLD

    grade = _compare_words(gold, answer)
    if grade is not None:
        return grade
    if _is_in_base(answer.unit) and not _is_in_base(gold.unit):
        return WRONG  # a gold answer without a base is in base ten
    has_letter = bool(gold.letter or answer.letter)
    are_numbers = gold.value is not None and answer.value is not None
    if has_letter and not are_numbers:
        return _with_letter(gold), _with_letter(answer)  # 6 m may be 6 metres; beside a formula it is six times m
    return _compare_amounts(gold, answer)


def _read_both(gold_text: str, answer_text: str) -> tuple[Quantity, Quantity]:
    """Gold answer and answer. What has two readings is read by the other one: 2h is two hours if that is a time."""
    gold_alone = read_answer(gold_text)
    answer_alone = read_answer(answer_text)
    gold = _with_attached_unit(gold_alone, answer_alone)
    answer = _with_attached_unit(answer_alone, gold_alone)
    return gold, _with_other_separators(answer, gold)


def _is_in_base(unit: Unit | None) -> bool:
    return unit is not None and is_base(unit)


# -- words


def _compare_words(gold: Quantity, answer: Quantity) -> Grade | None:
    """The grade of words, and of letters of a multiple choice; None where gold answer and answer are neither."""
    answer_words = _words_in(answer.tex)
    if _is_words(gold.tex) and all(word.isalpha() for word in answer_words):
        return Grade(value=_words_in(gold.tex) == answer_words)

    has_unit = bool(gold.unit or answer.unit or gold.letter)
    if not has_unit and gold.tex.casefold() == answer.tex.casefold():
        return RIGHT  # "YES" and "yes" are too short for words; no formula is right but for its capitals

    choice = _CHOICE_WITH_TEXT.match(answer.tex)
    if choice and _CHOICE.fullmatch(gold.tex):
        text_of_choice = answer.tex[choice.end(1) + 1 :]
        names_another = bool(_OTHER_CHOICE.search(text_of_choice))
        return Grade(value=choice[1] == gold.tex and not names_another)
    return None


def _is_words(text: str) -> bool:
    """Whether a text is ordinary words ("Monday", "Mrs. Hilt's class", "北京"), and not mathematics such as ``xy``."""
    words = _words_in(text)
    is_long = any(len(word) > 3 or not word.isascii() for word in words)
    return is_long and all(word.isalpha() for word in words)


def _words_in(text: str) -> list[str]:
    """The words of a text, without case, and without dots, apostrophes and hyphens in and behind them."""
    return _WORD_MARKS.sub("", text).casefold().split()


# -- numbers and formulas


def _compare_amounts(gold: Quantity, answer: Quantity) -> Grade | tuple[str, str]:
    """``compare_texts`` for numbers and formulas, with or without units."""
    ratio: Fraction | None = Fraction(1)  # how many of the gold answer's units one unit of the answer is
    if gold.unit is not None and answer.unit is not None:
        ratio = unit_ratio(answer.unit, gold.unit)
    if ratio is None:
        return WRONG

    grade = _compare_parts(gold.tex, answer.tex, ratio)
    if grade is not None:
        return grade
    gold, answer = _points_of_assignments(gold, answer)
    if _are_set_and_point(gold.tex, answer.tex):
        return WRONG
    grade = _compare_numbers(gold, answer, ratio)
    if grade is not None:
        return grade

    if ratio == 1:
        return write_both_signs(gold.tex), write_both_signs(answer.tex)
    amount = answer.tex.rpartition("=")[2]  # the right side of v = 36 km/h
    return gold.tex, f"\\frac{{{ratio.numerator}}}{{{ratio.denominator}}} \\cdot ({amount})"


def _compare_parts(gold: str, answer: str, ratio: Fraction) -> Grade | None:
    """The grade of dates, ranges, times of day and numbers with a remainder, which are compared part by part; None
    where gold answer and answer are none of these."""
    gold_readings = parts_of(gold)  # several, such as the two orders of day and month
    answer_readings = parts_of(answer)
    if gold_readings and answer_readings:
        for reading in answer_readings:
            if tuple(part * ratio for part in reading) in gold_readings:
                return RIGHT
        return WRONG
    if not gold_readings and not answer_readings:
        return None
    with_parts = gold if gold_readings else answer
    may_be_ratio = with_parts.replace(":", "").isdigit() and ":0" not in with_parts  # 7:30 is also 7/30
    return None if may_be_ratio else WRONG


def _points_of_assignments(gold: Quantity, answer: Quantity) -> tuple[Quantity, Quantity]:
    """Gold answer and answer, where x = 1 and y = 2 become the point (1, 2) if only one of them is such an
    assignment."""
    gold_values = assigned_values(gold.tex)
    answer_values = assigned_values(answer.tex)
    if bool(gold_values) == bool(answer_values):
        return gold, answer
    return _as_point(gold, gold_values), _as_point(answer, answer_values)


def _as_point(quantity: Quantity, assigned: Mapping[str, str]) -> Quantity:
    """The point of the ``assigned`` values; the quantity as it is where there are none."""
    if not assigned:
        return quantity
    return replace(quantity, tex=f"({', '.join(assigned.values())})")


def _are_set_and_point(gold: str, answer: str) -> bool:
    gold_members = _MEMBERS.fullmatch(gold)
    answer_members = _MEMBERS.fullmatch(answer)
    if gold_members is None or answer_members is None:
        return False
    opening_brackets = {gold_members[1], answer_members[1]}
    return opening_brackets == {"(", "\\{"}


def _compare_numbers(gold: Quantity, answer: Quantity, ratio: Fraction) -> Grade | None:
    """The grade of two plain numbers. None where one of them is no plain number, and where one is a decimal that may be
    the other, a fraction, rounded."""
    if gold.value is None or answer.value is None:
        return None
    gold_value = gold.value
    answer_value = answer.value if ratio == 1 else Fraction(answer.value) * ratio
    gold_in_percent = gold.unit is PERCENT
    answer_in_percent = answer.unit is PERCENT

    may_drop_percent = gold_value == 0 or not -1 < gold_value < 1  # 50 may be 50 %, but 0.5 is not 0.5 %
    if gold_value == answer_value and (may_drop_percent or gold_in_percent == answer_in_percent):
        return RIGHT

    if gold_in_percent and not answer_in_percent:
        gold_value = Fraction(gold_value) / 100
    if answer_in_percent and not gold_in_percent:
        answer_value = Fraction(answer_value) / 100
    if gold_value == answer_value:
        return RIGHT

    both_decimals_or_fractions = isinstance(gold_value, Fraction) == isinstance(answer_value, Fraction)
    if both_decimals_or_fractions or abs(Fraction(gold_value) - Fraction(answer_value)) > APART:
        return WRONG
    return None


# -- reading an answer by the other one


def _with_attached_unit(quantity: Quantity, other: Quantity) -> Quantity:
    r"""An answer such as "2h" or "5 \mu m", read as 2 hours if the other one has a measure; else it is two times h."""
    other_is_measured = other.unit is not None and bool(other.unit.dimensions) and not other.letter
    if quantity.unit is not None or not other_is_measured:
        return quantity
    attached = _ATTACHED.fullmatch(quantity.tex)
    if attached is None:
        return quantity
    number, mu, unit, omega = attached.groups()
    prefix = "micro" if mu else ""
    suffix = "ohm" if omega else ""
    return parse_quantity(f"{number} {prefix}{unit}{suffix}".rstrip())


def _with_other_separators(answer: Quantity, gold: Quantity) -> Quantity:
    """An answer that may be a number with the separators of another country, or with a letter for its size ("1.234,5",
    "12,34,567", "1.5M"), read as this number if the gold answer is it. Else such a text may be a list or a product."""
    if gold.value is None or answer.value is not None or len(answer.tex) > LONGEST_NUMBER:
        return answer
    body = answer.tex.removesuffix("\\%")
    possible_values = []
    if _DECIMAL_COMMA.fullmatch(body):
        possible_values.append(Decimal(body.replace(".", "").replace(",", ".")))
    if _OTHER_GROUPS.fullmatch(body):
        possible_values.append(Decimal(body.replace(",", "")))
    sized = _SIZED.fullmatch(body)
    if sized:
        power = "kmb".index(sized[2].casefold()) + 1
        possible_values.append(Decimal(sized[1]) * 1000**power)
    if gold.value not in possible_values:
        return answer
    percent_sign = answer.tex[len(body) :]
    return replace(answer, tex=f"{gold.value}{percent_sign}", value=gold.value, letter="")


def _with_letter(quantity: Quantity) -> str:
    """The TeX of a quantity whose last letter is a variable, and no unit."""
    if not quantity.letter:
        return quantity.tex
    return f"{quantity.tex[:-1].rstrip()} {{{quantity.letter}}}"


# -- reading an answer by itself


@functools.lru_cache(maxsize=CACHED_ANSWERS)
def read_answer(text: str) -> Quantity:
    """An answer without its wrapping, in one notation (``notation.py``), with its unit and number apart."""
    if _NUMBER.fullmatch(text):  # as most answers are
        return Quantity(tex=text, value=Decimal(text))
    unwrapped = _unwrap_answer(plain_signs(text))
    tex = write_tex(unwrapped)
    if tex != unwrapped:  # wrapping may have come to light
        tex = _unwrap_answer(tex)
    tex = " ".join(tex.split())
    choice = _CHOICE_IN_BRACKETS.fullmatch(tex)
    return parse_quantity(choice[1] if choice else tex)


def _unwrap_answer(text: str) -> str:
    r"""An answer without its wrapping: ``\boxed{…}``, ``$…$``, ``**…**``, ``\text{…}``, "The answer is", ``\approx``, a
    full stop. There may be several layers, in any order."""
    text = without_alignment(last_boxed(text) or text).strip()
    for _ in range(MOST_LAYERS):
        before = text
        text = _without_words_around(text)
        text = _without_pairs_around(text)
        if text == before:
            break
    return text


def _without_words_around(text: str) -> str:
    """A text without a full stop, the marks of bold letters, "The answer is", a fence and dollar signs."""
    if not text.endswith(".."):
        text = text.rstrip(".,;: \n\\")
    if "**" in text or "<" in text:
        text = _BOLD.sub(r"\1", text)
    text = _PREFIX.sub("", text)

    label = _LABEL.match(text)
    if label and _PREFIX.fullmatch(label[1].strip() + " "):
        text = text[label.end() :]
    fence = _FENCE.fullmatch(text)
    if fence:
        text = fence[1].strip()
    dollars = text.count("$") - text.count("\\$")
    if dollars in range(2, MOST_DOLLARS + 1, 2):
        text = _DOLLAR.sub("", text).strip()
    return text


def _without_pairs_around(text: str) -> str:
    r"""A text without pairs of marks around it, such as quotation marks and ``\text{…}``."""
    if text[-1:] not in _LAST_CHARS:  # as in most texts
        return text
    for left, right in _PAIRS:
        has_both = text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right)
        if not has_both:
            continue
        inside = text[len(left) : -len(right)].strip()
        is_braced = left[-1] == "{"
        # The two marks may also belong to two pairs, as in "a" or "b".
        is_one_pair = _has_balanced_braces(inside) if is_braced else left not in inside
        if is_one_pair:
            text = inside
    return text


def _has_balanced_braces(text: str) -> bool:
    r"""Whether the braces of a text pair up, so that it can stand inside of ``\boxed{…}``; ``\{`` is no brace."""
    depth = 0
    is_escaped = False  # behind a backslash
    for char in text:
        if not is_escaped:
            depth += (char == "{") - (char == "}")
            if depth < 0:
                return False
        is_escaped = char == "\\" and not is_escaped
    return depth == 0 and not is_escaped


# -- patterns

MOST_DOLLARS = 16  # dollar signs of formulas in one answer
_STYLES = """
text mathbf textbf underline fbox mathrm textit emph boldsymbol bm mathit textrm mbox textnormal ensuremath mathsf
mathtt texttt textsf hbox uline
""".split()  # noqa: SIM905  a list of words is read as one
_QUOTES = ("```", "``", "`", '"', "'")
_EMPHASIS = ("__", "_", "***", "*")
_PAIRS = (  # what stands in front of an answer and behind it
    *((f"\\{style}{{", "}") for style in _STYLES),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("{", "}"),
    *((mark, mark) for mark in (*_QUOTES, *_EMPHASIS)),
)
_LAST_CHARS = frozenset(right[-1] for _, right in _PAIRS)

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_MEMBERS = re.compile(r"(\(|\\\{)[^(),]+,[^()]+(?:\)|\\\})")  # (1, 2), \{1, 2\}
_ATTACHED = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(\\mu\s*)?(?=[a-zA-Z\\])([a-zA-Z]{0,3})(\\Omega)?")  # 5 \mu m
_DOLLAR = re.compile(r"(?<!\\)\$")
_BOLD = re.compile(r"(?<![\w)\]}*])\*\*([^*\s](?:[^*]*[^*\s])?)\*\*(?![\w(\[{\\*])|</?(?:b|strong|i|em|code|u)>")
_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+")  # 1.234,5
_OTHER_GROUPS = re.compile(  # 12,34,567, 1,2345
    r"[-+]?(?:\d{1,2}(?:,\d{2})*,\d{3}(?:\.\d+)?|\d{1,4}(?:,\d{4})+(?:\.\d+)?)"
)
_SIZED = re.compile(r"([-+]?\d+(?:\.\d+)?) ?(k|K|M|B)")  # 1.5M
_PREFIX = re.compile(  # what stands in front of an answer
    r"^(?:"
    r":?=>?|->|~|#{1,6}(?=\s)"
    r"|\\(?:approx|simeq|sim|cong|equiv|therefore|implies|to|(?:R|r|Longr|longr)ightarrow"
    r"|displaystyle|bf|rm|[lL]arge|[hH]uge)(?![a-zA-Z])"
    r"|\\(?:text)?color(?:box)?\s*\{[^{}]*\}"
    r"|(?i:about|approximately|approx\.?|roughly|around|exactly|precisely)\s"
    r"|(?i:option|choice)\s*(?=\(?[A-Z]\b)"
    r"|(?i:[*_]{0,3}(?:so|thus|therefore|hence)?,?\s*(?:(?:the|my|our)\s+)?(?:final\s+|correct\s+)?"
    r"(?:answer|result|ans)\b\.?(?:\s+(?:is|was|would\s+be)\b)?\s*[:=]?[*_]{0,3})"
    r")\s*"
)
_LABEL = re.compile(r"\\(?:text\w*|mbox|mathrm)\s*\{([^{}]*)\}\s*(?=\S)")  # \text{The answer is } 42
_FENCE = re.compile(r"```\w*\n(.*)```", re.S)
_CHOICE_IN_BRACKETS = re.compile(r"[(\[]?\s*(?:\\text\s*\{\s*)?[(\[]?([A-Z])[)\]]?\s*\}?\s*[)\]]?")  # (C)
_CHOICE = re.compile(r"[A-J]")
_CHOICE_WITH_TEXT = re.compile(  # (C) five
    r"(?:\\(?:text\w*|mathbf|mathrm)\s*\{\s*)?\(?([A-J])(?:\)|[.:](?=[\s}]))\s*\}?\s*\S"
)
_OTHER_CHOICE = re.compile(  # in what follows a choice: "or C", "(C)", "C. five", and not the article of "A cat"
    r"\A(?![\s).]*[A-J]\s+\w)(?:\W++|(?:or|and|but|also|maybe|else|option|choice|text\w*)\b)*+[A-HJ](?!\w)"
    r"|(?<![\w(])(?:\([A-J]\)|[A-J](?:\)|[.:](?=[\s}]|\Z)))"
)
_WORD_MARKS = re.compile(r"(?<=[^\W\d_])[.'-](?=[^\W\d_]|\s|$)")
_SPACES = re.compile(r"\s+(?!\d)|(?<!\d)\s+")  # but none between digits: 1 2 is not 12
