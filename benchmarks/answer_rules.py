r"""Answers made of a gold answer, of which it is known by construction whether they are right: ``SAME`` is the same
value written in another way, ``OTHER`` a value that is nearly the same. For ``grading_study.py``.

A rule says when it applies: it gives None where the answer might be right after all (a set with one member in the other
order). ``NOTATIONS`` and ``NEIGHBOURS`` have further ones, of which ``five`` takes as many for each gold answer: rules
that know its value before those that know its text alone. Nothing here is cotrain's own, so that checkouts of any age
are measured with the same pairs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction

NUMBER = re.compile(r"-?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
TUPLE = re.compile(r"\(([^()\[\],]+),\s*([^()\[\],]+)\)")
LIST = re.compile(r"[-\d./]+(,\s[-\d./]+)+")  # 3, 5, 7: several values; without a space they may be one number


def number(gold: str) -> Decimal | None:
    """A gold answer that is a plain number without unit."""
    return Decimal(gold.replace(",", "")) if NUMBER.fullmatch(gold) and len(gold) < 16 else None


def plain(value: Decimal) -> str:
    return f"{value:f}"


def fraction(gold: str) -> tuple[str, int, int] | None:
    found = FRACTION.fullmatch(gold.strip())
    if found is None or not int(found[3]):
        return None
    return found[1], int(found[2]), int(found[3])


Rule = Callable[[str], str | None]  # an answer made of a gold answer; None where the rule does not apply


def of_number(rule: Callable[[Decimal], str | None]) -> Rule:
    def made(gold: str) -> str | None:
        value = number(gold)
        return None if value is None else rule(value)

    return made


def of_fraction(rule: Callable[[str, int, int], str | None]) -> Rule:
    def made(gold: str) -> str | None:
        parts = fraction(gold)
        return None if parts is None else rule(*parts)

    return made


def of_list(rule: Callable[[list[str]], list[str] | None]) -> Rule:
    def made(gold: str) -> str | None:
        if not LIST.fullmatch(gold):
            return None
        values = re.split(r",\s", gold)
        changed = rule(values) if len(set(values)) == len(values) else None
        return None if changed is None else ", ".join(changed)

    return made


def of_pair(rule: Callable[[str, str], str | None]) -> Rule:
    def made(gold: str) -> str | None:
        found = TUPLE.fullmatch(gold)
        return None if found is None or found[1].strip() == found[2].strip() else rule(found[1], found[2])

    return made


def expression(gold: str) -> bool:
    """Algebra in one piece: something of TeX, no list, interval, equation, text or inequality."""
    bad = (
        ",",
        "=",
        "text",
        "mbox",
        "infty",
        "cup",
        "in ",
        "<",
        ">",
        "le",
        "ge",
        "pm",
        "begin",
        "^\\circ",
        "\\%",
        "_",
        "and",
        "$",
        "circ",
    )
    return ("\\" in gold or "^" in gold) and not any(word in gold for word in bad) and len(gold) < 80


def of_expression(rule: Callable[[str], str]) -> Rule:
    return lambda gold: rule(gold) if expression(gold) else None


def terminating(sign: str, top: int, bottom: int) -> str | None:
    value = Fraction(top, bottom)
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return sign + plain(Decimal(value.numerator) / Decimal(value.denominator)) if rest == 1 and bottom > 1 else None


def endless(sign: str, top: int, bottom: int) -> str | None:
    return None if terminating(sign, top, bottom) or not top % bottom else f"{sign}{top / bottom:.2f}"


def last_digit(value: Decimal) -> str | None:
    text = plain(value)
    return text[:-1] + str((int(text[-1]) + 3) % 10) if text[-1].isdigit() else None


def rounded(value: Decimal) -> str | None:
    return plain(value.to_integral_value()) if value != value.to_integral_value() else None


def transposed(value: Decimal) -> str | None:
    text = plain(value)
    tail = text[-2:]
    return text[:-2] + tail[::-1] if len(tail) == 2 and tail.isdigit() and tail[0] != tail[1] else None


SWAPS = ((r"\dfrac", r"\frac"), (r"\tfrac", r"\frac"), (r"\frac", r"\dfrac"))
SAME: dict[str, Rule] = {
    "boxed": lambda gold: f"\\boxed{{{gold}}}" if gold.count("{") == gold.count("}") else None,
    "dollars and a stop": lambda gold: f" ${gold}$. " if "$" not in gold else None,
    "an equation x =": lambda gold: f"x = {gold}" if number(gold) is not None or fraction(gold) else None,
    "trailing zeros": of_number(lambda n: plain(n) + ("0" if "." in plain(n) else ".00")),
    "thousands separators": of_number(lambda n: f"{n:,f}" if abs(n) >= 1000 else None),
    "TeX thousands separators": of_number(lambda n: f"{n:,f}".replace(",", "{,}") if abs(n) >= 1000 else None),
    "a unit behind": of_number(lambda n: f"{n:f} apples"),
    "TeX unit behind": of_number(lambda n: f"{n:f}\\text{{ cm}}"),
    "currency": of_number(lambda n: f"\\${n:f}" if n > 0 else None),
    "number as a fraction": of_number(lambda n: f"\\frac{{{n * 6:f}}}{{6}}" if n == n.to_integral_value() else None),
    "power of ten": of_number(lambda n: f"{n / 1000:f} \\times 10^{{3}}" if abs(n) >= 10 else None),
    "other fraction command": lambda gold: next((gold.replace(a, b) for a, b in SWAPS if a in gold), None),
    "fraction with a slash": of_fraction(lambda s, a, b: f"{s}{a}/{b}"),
    "scaled fraction": of_fraction(lambda s, a, b: f"{s}\\frac{{{3 * a}}}{{{3 * b}}}"),
    "fraction as a decimal": of_fraction(terminating),
    "list in another order": of_list(lambda values: values[::-1]),
    "list in braces": of_list(lambda values: ["\\{" + values[0], *values[1:-1], values[-1] + "\\}"]),
    "pair with left and right": of_pair(lambda a, b: f"\\left({a}, {b}\\right)"),
    "sum with zero": of_expression(lambda gold: f"0 + {gold}"),
    "times two over two": of_expression(lambda gold: f"\\frac{{2 \\left({gold}\\right)}}{{2}}"),
}
OTHER: dict[str, Rule] = {
    "one more": of_number(lambda n: plain(n + 1)),
    "one less": of_number(lambda n: plain(n - 1)),
    "other sign": of_number(lambda n: plain(-n) if n else None),
    "other last digit": of_number(last_digit),
    "digits transposed": of_number(transposed),
    "ten times": of_number(lambda n: plain(n * 10) if n else None),
    "rounded": of_number(rounded),
    "a percentage": of_number(lambda n: f"{n:f}\\%" if n and abs(n) < 1 else None),
    "million": of_number(lambda n: f"{n:f} million" if n else None),
    "two answers": of_number(lambda n: f"{n:f} or {n + 1:f}"),
    "a set around it": of_number(lambda n: f"\\{{{n:f}, {n + 1:f}\\}}"),
    "a variable behind": of_number(lambda n: f"{n:f}x" if n else None),
    "fraction upside down": of_fraction(lambda s, a, b: f"{s}\\frac{{{b}}}{{{a}}}" if a and a != b else None),
    "fraction, other sign": of_fraction(lambda s, a, b: f"{'' if s else '-'}\\frac{{{a}}}{{{b}}}" if a else None),
    "fraction, top plus one": of_fraction(lambda s, a, b: f"{s}\\frac{{{a + 1}}}{{{b}}}"),
    "fraction rounded": of_fraction(endless),
    "list, one missing": of_list(lambda values: values[:-1]),
    "list, one too many": of_list(lambda values: [*values, "1234567"]),
    "pair in another order": of_pair(lambda a, b: f"({b}, {a})"),
    "expression plus one": of_expression(lambda gold: f"{gold} + 1"),
    "expression doubled": of_expression(lambda gold: f"2 \\left({gold}\\right)"),
    "expression, other sign": of_expression(lambda gold: f"-\\left({gold}\\right)"),
    "nothing readable": lambda gold: "I do not know" if number(gold) is not None else None,
    "the unclosed gold": lambda gold: gold[:-1] if gold.endswith("}") and expression(gold) else None,
}

# -- notations

FULL = str.maketrans("0123456789()[],%+=<>-", "０１２３４５６７８９（）［］，％＋＝＜＞－")
UP = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
E_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)e(-?\d+)")


def of_e_number(rule: Callable[[str, int], str]) -> Rule:
    def made(gold: str) -> str | None:
        found = E_NUMBER.fullmatch(gold)
        return None if found is None else rule(found[1], int(found[2]))

    return made


def exponent(value: Decimal) -> str | None:
    """1234 → 1.234e3."""
    if not value:
        return None
    power = value.adjusted()
    return f"{value.scaleb(-power).normalize():f}e{power}"


def grouped(value: Decimal, blank: str) -> str | None:
    return f"{value:,f}".replace(",", blank) if abs(value) >= 1000 else None


def mixed(sign: str, top: int, bottom: int, form: str = "{} {}/{}") -> str | None:
    return sign + form.format(top // bottom, top % bottom, bottom) if top > bottom > 1 and top % bottom else None


def repeating(sign: str, top: int, bottom: int) -> str | None:
    r"""1/6 → 0.1\overline{6}."""
    digits, rest, seen = "", top % bottom, {}
    while rest and rest not in seen and len(seen) < 12:
        seen[rest] = len(digits)
        digits, rest = digits + str(rest * 10 // bottom), rest * 10 % bottom
    if not rest or rest not in seen:
        return None
    return f"{sign}{top // bottom}.{digits[: seen[rest]]}\\overline{{{digits[seen[rest] :]}}}"


def as_text(gold: str) -> str | None:
    """A formula as plain text: 2*pi, sqrt(3)/2, x**2."""
    text = re.sub(
        r"\\frac\{([^{}]+)\}\{([^{}]+)\}", r"((\1)/(\2))", gold.replace("dfrac", "frac").replace("tfrac", "frac")
    )
    text = re.sub(r"\\sqrt\{([^{}]+)\}", r"sqrt(\1)", text)
    text = re.sub(r"\^\{([^{}]+)\}", r"**(\1)", text)
    text = (
        text.replace("^", "**")
        .replace("\\pi", "pi")
        .replace("\\cdot", "*")
        .replace("\\left", "")
        .replace("\\right", "")
    )
    text = re.sub(r"(\d)\s*(?=[a-z(])|(?<=[)\di])\s*(?=\(|sqrt)", r"\1*", text)
    whole = re.search(r"\d\s*\\[dt]?frac", gold)  # a mixed number
    return text if "\\" not in text and "{" not in text and text != gold and not whole else None


def as_signs(gold: str) -> str | None:
    """A formula in Unicode: √3, x², π."""
    text = re.sub(r"\\sqrt\{(\d+)\}", r"√\1", gold).replace("\\pi", "π").replace("\\cdot", "·").replace("-", "−")
    text = re.sub(r"\^(?:\{(-?\d)\}|(\d)(?!\d))", lambda found: (found[1] or found[2]).translate(UP), text)
    return text if text != gold else None


NOTATIONS: dict[str, Rule] = {
    "1.5e3": of_number(exponent),
    "1.5E+03": of_number(lambda n: re.sub(r"e(\d+)$", r"E+0\1", exponent(n) or "") or None),
    "1.5 × 10³": of_number(
        lambda n: re.sub(r"e(.+)", lambda m: f" × 10{m[1].translate(UP)}", exponent(n) or "") or None
    ),
    "e: times ten to": of_e_number(lambda m, e: f"{m} \\times 10^{{{e}}}"),
    "e: in full": of_e_number(lambda m, e: f"{Decimal(f'{m}e{e}'):f}"),
    "e: other mantissa": of_e_number(lambda m, e: f"{Decimal(m) * 10:f}e{e - 1}"),
    "e: Unicode": of_e_number(lambda m, e: f"{m}×10{str(e).translate(UP)}"),
    "e: plain text": of_e_number(lambda m, e: f"{m}*10**({e})"),
    "10\\,000": of_number(lambda n: grouped(n, "\\,")),
    "10 000": of_number(lambda n: grouped(n, " ")),
    "10 000, narrow": of_number(lambda n: grouped(n, "\u202f")),
    "full-width digits": of_number(lambda n: f"{n:f}".translate(FULL)),
    "minus of Unicode": of_number(lambda n: f"−{-n:f}" if n < 0 else None),
    "thousand": of_number(lambda n: f"{n / 1000:f} thousand" if abs(n) >= 100 else None),
    "dollars behind": of_number(lambda n: f"${n:f}$ dollars"),
    "mixed number": of_fraction(mixed),
    "mixed number in TeX": of_fraction(lambda s, a, b: mixed(s, a, b, "{}\\frac{{{}}}{{{}}}")),
    "repeating decimal": of_fraction(repeating),
    "fraction of Unicode": of_fraction(lambda s, a, b: f"{s}{a}⁄{b}"),
    "fraction without braces": of_fraction(lambda s, a, b: f"{s}\\frac{a}{b}" if a < 10 and b < 10 else None),
    "plain text": of_expression(lambda gold: as_text(gold) or ""),
    "signs of Unicode": of_expression(lambda gold: as_signs(gold) or ""),
    "times one": of_expression(lambda gold: f"1 \\cdot \\left({gold}\\right)"),
    "full-width pair": of_pair(lambda a, b: f"（{a}，{b}）"),
}
WRAPPED: dict[str, Rule] = {
    "bold": lambda gold: f"**{gold}**" if "*" not in gold else None,
    "backticks": lambda gold: f"`{gold}`",
    "a comma behind": lambda gold: f"{gold},",
    "the answer is": lambda gold: f"The answer is {gold}." if "answer" not in gold else None,
    "an equals sign in front": lambda gold: f"= {gold}" if "=" not in gold else None,
    "a zero-width space": lambda gold: f"\u200b{gold}",
    "underlined": lambda gold: (
        f"\\underline{{{gold}}}" if "$" not in gold and gold.count("{") == gold.count("}") else None
    ),
    "double dollars": lambda gold: f"$${gold}$$" if "$" not in gold else None,
}
NEIGHBOURS: dict[str, Rule] = {
    "an exponent more": of_number(lambda n: f"{n:f}e1" if n else None),
    "Euler's number behind": of_number(lambda n: f"{n:f}e" if n else None),
    "itself beside it": of_number(lambda n: f"{n:f} {n:f}"),
    "two terms beside each other": of_number(
        lambda n: f"{n - 7:f} 7" if n == n.to_integral_value() and 7 < n < 10_000 and (n - 7) % 7 else None
    ),
    "the first group alone": of_number(lambda n: f"{n:,f}".split(",")[0] if abs(n) >= 1000 else None),
    "in base eight": of_number(lambda n: f"{n:f}_{{8}}" if n == n.to_integral_value() and n > 7 else None),
    "squared": of_number(lambda n: f"{n:f}²" if n > 1 else None),
    "a root": of_number(lambda n: f"√{n:f}" if n > 1 else None),
    "e: one more": of_e_number(lambda m, e: f"{m}e{e + 1}"),
    "e: other sign": of_e_number(lambda m, e: f"{m} \\times 10^{{{-e}}}"),
    "e: Euler's": of_e_number(lambda m, e: f"{m}*e^{{{e}}}"),
    "e: mantissa alone": of_e_number(lambda m, e: m),
    "e: other mantissa": of_e_number(lambda m, e: f"{Decimal(m) + 1:f} \\times 10^{{{e}}}"),
    "mixed with its own bottom": of_fraction(lambda s, a, b: f"{s}1 {a}/{b}" if 0 < a < b else None),
    "mixed number without its whole": of_fraction(lambda s, a, b: f"{s}{a % b}/{b}" if a > b and a % b else None),
    "terms beside each other": of_fraction(lambda s, a, b: f"{s}{a} {b}"),
    "its square": of_expression(lambda gold: f"\\left({gold}\\right)^2 + 3"),
    "pair as one number": of_pair(lambda a, b: f"{a}{b}" if (a + b).isdigit() else None),
    "pair plus one": of_pair(lambda a, b: f"({a}+1, {b})"),
}
BESIDE: dict[str, Rule] = {
    "another member": lambda gold: f"{gold}, 7654321",
    "another member in front": lambda gold: f"7654321, {gold}",
    "a number": lambda gold: "7654321" if "7654321" not in gold else None,
    "a sentence": lambda gold: "I do not know",
    "a bracket": lambda gold: "(",
}


def five(gold: str, tables: tuple[Mapping[str, Rule], ...], rng: random.Random) -> list[tuple[str, str]]:
    """Five (kind, answer) of a gold answer, none twice: of each table in turn what there is, in random order."""
    found: dict[str, str] = {}
    for table in tables:
        made = [(kind, answer) for kind, rule in table.items() if (answer := rule(gold)) and answer != gold]
        rng.shuffle(made)
        for kind, answer in made:
            if len(found) < 5 and answer not in found:
                found[answer] = kind
    return [(kind, answer) for answer, kind in found.items()]
