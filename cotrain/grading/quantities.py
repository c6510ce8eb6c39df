r"""Plain numbers and their units: what an answer such as "$18.00", "2 1/2 cups", "3e8 m/s" or "1010_2" says.

A ``Quantity`` is an exact number with a unit, or an expression with a unit behind it. There are three kinds of units,
which ``unit_ratio`` compares:

- a **measure** (cm, km/h, square feet, €) converts into another by a factor: 1 hour is 60 minutes, not 1 minute, and 1
  hour 30 minutes are 90;
- a **counted thing** (apples, gold stickers) is the same as another if the two share a word, or if one of them has a
  word for anything (pieces, children). A measure is a counted thing only where its name may also be one (bars, pound
  cakes): such a unit has dimensions and words, and is compared by either;
- a **base** converts into no other: 1010_2 is not 1010_3.

Left out: prefixes beyond nano and giga, litres in gallons, months in days, Fahrenheit in Celsius.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from cotrain.grading.notation import without_separators

LONGEST = 500  # characters of an answer that may have a unit
MAX_DIGITS = 999  # of a fraction's numerator and denominator together


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A measure (dimensions and a factor), a counted thing (words), or what may be either (bars, pound cakes)."""

    dimensions: tuple[tuple[str, int], ...] = ()  # of a measure: name and exponent of each, sorted
    factor: Fraction = Fraction(1)  # of a measure: in the units of its dimensions that ``_MEASURES`` gives the factor 1
    words: frozenset[str] = frozenset()  # words for a counted thing, in the singular


PERCENT = Unit(dimensions=(("%", 1),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """An answer in TeX, its unit, and its value if it is a plain number."""

    tex: str  # without the unit, but for "%"
    unit: Unit | None = None
    value: Decimal | Fraction | None = None
    letter: str = ""  # a unit of one letter, which may be a variable, too: 6 m


# -- units

# A line is "dimension: NAME ALIAS … FACTOR; …". An inch is 127/5000 metres, the unit of length with the factor 1.
_MEASURES = """
length: m meter metre 1; in inch inches 127/5000; ft foot feet 381/1250; yd yard 1143/1250; mi mile 201168/125;
micron 1/1000000
mass: g gram gm 1; kilo 1000; t tonne 1000000; lb pound £ gbp 45359237/100000; oz ounce 45359237/1600000
time: s sec second 1; min minute 60; h hr hour 3600; day 86400; week wk 604800
months: month 1; year yr 12; decade 120; century centuries 1200
money: dollar $ usd buck 1; cent ¢ 1/100
cups: cup 1; pint 2; quart 4; gallon gal 16; tablespoon tbsp 1/16; teaspoon tsp 1/48
calories: cal calorie 1
electronvolts: eV electronvolt 1
frequency: Hz hertz 1
voltage: V volt 1
current: A amp ampere 1
amount: mol mole 1
resistance: ohm 1
capacity: farad 1
charge: coulomb 1
bytes: byte 1
degree: degree deg 1; arcmin arcminute 1/60; arcsec arcsecond 1/3600
"""
# Measures with a dimension of their own, which convert into no other. Names of one measure are joined by "=".
_UNCONVERTED = """ton acre euro=€=eur yen=¥=jpy rupee=₹=rs=inr=re yuan=rmb=cny peso franc radian=rad celsius=C
fahrenheit=F kelvin=K tesla atm rpm knot"""
# Names → the number and the measure that one of them is.
_COMPOUND_MEASURES = (
    ("mph", "1 mile / hour"),
    ("kph kmh kmph", "1 km / h"),
    ("l L liter litre", "1 dm ^3"),
    ("cc", "1 cm ^3"),
    ("ha hectare", "10000 m ^2"),
    ("N newton", "1 kg m / s ^2"),
    ("Nm", "1 N m"),
    ("J joule", "1 N m"),
    ("W watt", "1 J / s"),
    ("Wh", "1 W h"),
    ("Pa pascal", "1 N / m ^2"),
    ("bar", "100000 Pa"),
)
_COMPOUND = {name: measure for names, measure in _COMPOUND_MEASURES for name in names.split()}
_POWER_OF_PREFIX = {"n": -9, "u": -6, "m": -3, "c": -2, "d": -1, "k": 3, "M": 6, "G": 9}
_POWER_OF_PREFIX |= {"nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "kilo": 3, "mega": 6, "giga": 9}
# A line is "PREFIXES: UNITS". Both mg and Mg are there; us (a microsecond) is not, as it is a word.
_PREFIXED = """
n u m c d k M: m
n u m c d k M: g
n m k M: s
u m c d: l L
n u m k M G: N J W V A F C
m k M G: Wh Pa eV Hz B ohm
micro: s m g F V A
u m k: mol cal
nano micro milli centi deci kilo mega giga: meter metre gram second liter litre newton joule watt pascal hertz volt \
amp ampere byte mole electronvolt calorie ohm farad coulomb
"""
_PREFIXED_SYMBOLS = {"F": "farad", "C": "coulomb", "B": "byte"}  # units only behind a prefix: mF, and not F
LETTERS = frozenset("mgshtlLJWNVAKCF")  # units of one letter

# Words that name anything that is counted.
_ANYTHING_WORDS = """unit way value integer number digit piece item thing total object element solution time people
person child children kid student friend pupil man men woman women boy girl member candy candies sweet point case
outcome choice possibility arrangement combination different distinct possible square cubic sq cu of the in all a an
and more left each whole full old long wide tall high altogether remaining only about exactly"""
_ANYTHING = frozenset(_ANYTHING_WORDS.split())
# Words behind a unit that say of what it is the measure: 5 in wide, 6 yr old.
_EXTENT_WORDS = """wide long tall high deep thick heavy old across around apart away ago late early wider narrower
longer shorter taller higher lower deeper thicker thinner heavier lighter older younger farther further later earlier
faster slower"""
# Words behind a measure that leave it as it is: 5 kg each. In "5 in each" and "5 in all" there is no inch.
_SHARE_WORDS = "each apiece altogether total more less left remaining only"
# Words behind a number that change its value, or make it a sentence.
_VALUE_WORDS = """half halves third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth twentieth hundredth
thousandth millionth billionth mille repeating recurring squared cubed doubled tripled quadrupled halved double twice
negative inverse reciprocal choose percent than mod modulo or not but maybe perhaps could else sin cos tan log exp sqrt
root factorial plus minus over divided multiplied is are if for when where to pi answer least most wrong incorrect
unless twenty thirty forty fifty sixty seventy eighty ninety"""
# Of these, words that say only which things are counted where a plural follows: 5 third graders, 6 wrong answers.
_ADJECTIVES = frozenset(
    """third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth twentieth double negative inverse wrong
incorrect answer log root""".split()  # noqa: SIM905  a list of words is read as one
)
# Their plurals that are things themselves: 3 real roots, 24 zeros, 5 logs of wood. A score is twenty, scores are not.
_THINGS = frozenset(("answers", "inverses", "logs", "roots", "scores", "zeros", "zeroes"))
# Names of measures that are things in every house and garden, too: 5 bars of soap, 3 coffee cups.
_EVERYDAY = frozenset(("bar", "cup", "foot", "knot", "mole", "yard"))
_PREPOSITIONS = frozenset("of in on at for from with to per".split())  # noqa: SIM905  end what is counted
# Multipliers. A pair is none: "8 pairs" answers how many pairs there are.
_SCALES = {"hundred": 10**2, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7, "billion": 10**9}
_SCALES |= {"trillion": 10**12, "quadrillion": 10**15, "quintillion": 10**18, "sextillion": 10**21}
_SCALES |= {"dozen": 12, "score": 20, "gross": 144}
_DIGIT_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
_BASES = {word: str(base) for base, word in enumerate(_DIGIT_WORDS.split())}
_NO_UNITS = frozenset(_VALUE_WORDS.split()) | _SCALES.keys() | _BASES.keys()
_SIGNS = "£¥¢฿\u20a0-\u20c0"  # signs of currencies beside the dollar, for a class of characters; € and ₹ among them
_TEMPERATURE_SCALE = re.compile(r"\s*(?:celsius|fahrenheit|[CFK]\b)", re.I)  # behind "degrees"
# A token of a phrase such as "kg m / s^2" or "miles per hour".
_TOKEN = re.compile(
    r"\^\s*\{?\s*(?P<power>-?\d)\s*\}?"  # ^2, ^{-2}
    rf"|(?P<word>[a-zA-Z${_SIGNS}]+)"  # km, per, $
    r"|(?P<slash>/)"
    r"|[.,()·*\s]|\\cdot|-(?=[a-zA-Z]{3})"  # between units; a hyphen only before a word: kilowatt-hours
)


@functools.cache
def _known_units() -> dict[str, Unit]:
    """The units of ``_MEASURES`` and ``_UNCONVERTED`` by their names."""
    unit_by_name: dict[str, Unit] = {}
    for line in _MEASURES.replace(";\n", "; ").strip().splitlines():
        dimension, _, units = line.partition(":")
        for unit in units.split(";"):
            *names, factor = unit.split()
            for name in names:
                unit_by_name[name] = Unit(dimensions=((dimension, 1),), factor=Fraction(factor))
    for joined_names in _UNCONVERTED.split():
        names = joined_names.split("=")
        measure = Unit(dimensions=((names[0], 1),))
        unit_by_name |= dict.fromkeys(names, measure)
    return unit_by_name


@functools.lru_cache(maxsize=4096)
def _unit_of(word: str) -> Unit | None:
    """The measure that a word names: "km", "Hours", "lbs"; None where it names none. The word is tried as it is before
    its lower case, as mg and Mg are two units."""
    lower = word.casefold()
    spellings = (word, word.removesuffix("s"), lower, lower.removesuffix("s"), lower.removesuffix("es"))
    for name in dict.fromkeys(spellings):
        is_cut_to_a_letter = len(name) == 1 and name != word  # "ms" is no plural of "m"
        unit = None if is_cut_to_a_letter else _unit_named(name)
        if unit is not None:
            return unit
    return None


def _unit_named(name: str) -> Unit | None:
    """The measure of exactly this name; None where there is none."""
    known = _known_units().get(name)
    if known is not None:
        return known
    is_currency_sign = len(name) == 1 and unicodedata.category(name) == "Sc"
    if is_currency_sign:
        return Unit(dimensions=((name, 1),))
    if name in _COMPOUND:
        number, _, phrase = _COMPOUND[name].partition(" ")
        measure = _parse_measure(phrase)
        if measure is None:
            return None
        return replace(measure, factor=measure.factor * Fraction(number))
    if name not in _prefixed_units():
        return None
    power, base = _prefixed_units()[name]
    unit = _unit_named(_PREFIXED_SYMBOLS.get(base, base))
    if unit is None:
        return None
    return replace(unit, factor=unit.factor * Fraction(10) ** power)


@functools.cache
def _prefixed_units() -> dict[str, tuple[int, str]]:
    """Names such as km and kilometer, each with its power of ten and what it multiplies."""
    names = {}
    for line in _PREFIXED.strip().splitlines():
        prefixes, _, units = line.partition(":")
        for prefix in prefixes.split():
            for unit in units.split():
                names[prefix + unit] = (_POWER_OF_PREFIX[prefix], unit)
    return names


def _parse_measure(phrase: str) -> Unit | None:
    """The measure that a phrase states, if all its words belong to it: "square feet", "miles per hour", "m/s^2"; else
    None."""
    exponents: Counter[str] = Counter()  # dimension → its exponent so far
    factor = Fraction(1)
    position = 0
    sign = 1  # -1 behind "per" or "/"
    next_power = 1  # 2 or 3 behind "square" or "cubic"
    last: Unit | None = None  # the unit that "squared" or "^2" would belong to
    while token := _TOKEN.match(phrase, position):
        position = token.end()
        power = token["power"]
        word = token["word"]
        lower = word.casefold() if word else ""
        if token["slash"] or lower == "per":
            sign = -1  # for all that follows: m / s kg is m / (s kg)
            last = None
        elif lower in ("square", "sq", "cubic", "cu"):
            next_power = 2 if lower.startswith("sq") else 3
        elif power or lower in ("squared", "cubed"):
            if last is None:
                return None
            if power:
                last_power = int(power)
            else:
                last_power = 2 if lower == "squared" else 3
            factor = _multiply_by(last, (last_power - 1) * sign, exponents, factor)  # once it has been multiplied by
            last = None
        elif word:
            if lower in ("degree", "degrees") and _TEMPERATURE_SCALE.match(phrase, position):
                continue  # "degrees Celsius": the scale is the unit
            last = _unit_of(word)
            if last is None:
                return None
            factor = _multiply_by(last, next_power * sign, exponents, factor)
            next_power = 1

    if position < len(phrase) or not exponents:
        return None
    dimensions = sorted((name, exponent) for name, exponent in exponents.items() if exponent)
    return Unit(dimensions=tuple(dimensions), factor=factor)


def _multiply_by(unit: Unit, power: int, exponents: Counter[str], factor: Fraction) -> Fraction:
    """Multiply a measure, of these exponents and this factor, by a power of a unit: ``exponents`` changes, and the new
    factor is returned."""
    for name, exponent in unit.dimensions:
        exponents[name] += exponent * power
    return factor * unit.factor**power


_IN_UNIT = re.compile(  # (in meters), in km per h; not the inch of "in per second" and "in^2"
    r"(?P<bracket>\()?\s*in\s+(?!(?:per|squared|cubed)\b)"
    rf"(?P<unit>[a-zA-Z${_SIGNS}].*?)\s*(?(bracket)\))",
    re.IGNORECASE,
)
_INCH_POUND = re.compile(r"(?:lb|pound|oz|ounce)s?", re.IGNORECASE)  # behind "in" without a bracket, a torque


def _behind_preposition(phrase: str) -> str:
    """The phrase behind "in" where that is no inch: "meters" of "(in meters)" and of "in meters"."""
    match = _IN_UNIT.fullmatch(phrase)
    if match is None:
        return phrase
    unit_text = match["unit"]
    if match["bracket"]:
        is_unit = parse_unit(unit_text) is not None
    else:
        is_unit = _parse_measure(unit_text) is not None and not _INCH_POUND.fullmatch(unit_text)
    return unit_text if is_unit else phrase


# A measure of one word and what it is of: "in wide", "kg each", "in of rain". Many names of one word are short, and so
# words or letters too, which nothing but what follows tells apart.
_EXTENT = "|".join(_EXTENT_WORDS.split())
_SHARE = "|".join((*_SHARE_WORDS.split(), "in total", "in all"))
_DESCRIBED = re.compile(
    rf"(?P<unit>[a-zA-Z]+)\.?\s+(?:(?:{_EXTENT})|of\s+[a-zA-Z].*|(?P<share>{_SHARE}))", re.IGNORECASE
)


def _described_measure(phrase: str) -> Unit | None:
    """The measure in front of words that say of what it is; None for other phrases."""
    match = _DESCRIBED.fullmatch(phrase)
    if match is None:
        return None
    is_preposition = match["unit"].casefold() == "in" and match["share"] is not None
    return None if is_preposition else _parse_measure(match["unit"])


@functools.lru_cache(maxsize=4096)
def parse_unit(phrase: str) -> Unit | None:
    """The unit that a phrase behind a number names; None where it names none ("or 5")."""
    phrase = _behind_preposition(phrase.strip())
    if phrase.casefold() in _PER_CENT_WORDS:
        return PERCENT
    things = _things_counted(phrase)
    measure = _parse_measure(phrase) or _described_measure(phrase)
    if measure is not None:
        return replace(measure, words=things)
    phrase, n_compounds = _NUMBER_COMPOUND.subn("", phrase)  # 5 ten-dollar bills are no dollars, but five bills
    words = [word for word in _BETWEEN_WORDS.split(phrase) if word]
    is_sentence = len(words) > 6
    if not words or is_sentence or not all(word.isalpha() for word in words):
        return None
    if any(_changes_value(word, following) for word, following in zip(words, [*words[1:], ""], strict=True)):
        return None
    has_variable = any(len(word) == 1 and word not in "aA" for word in words)  # "apples x", but "dollars a day"
    if words[0] == "and" or has_variable:
        return None
    if not any(len(word) > 2 for word in words):
        return None
    # One measure among other words is the unit: "inches tall". In "feet per jump" and "square inches tall" it would be
    # a part of the unit only, so these are compared by their words.
    units = [_unit_of(word) for word in words if len(word) > 2]
    measures = [unit for unit in units if unit is not None]
    is_measured = len(measures) == 1 and "per" not in words and words[0].casefold() not in ("square", "cubic", "sq")
    if is_measured and not n_compounds:
        return replace(measures[0], words=things)
    return Unit(words=frozenset(map(_singular_word, words)))


def _changes_value(word: str, following: str) -> bool:
    """Whether a word behind a number, with another word or "" behind it, changes the number's value, or makes it a
    sentence."""
    word = word.casefold()
    if word in _THINGS:
        return False
    if word in _ADJECTIVES and _is_plural(following) and _unit_of(following) is None:
        return False
    return word in _NO_UNITS or _singular_word(word) in _NO_UNITS


def _things_counted(phrase: str) -> frozenset[str]:
    """The words of the things that a phrase with a measure may count, in the singular: of "bars of soap" and "coffee
    cups", as their names are those of things, and of "pound cakes", where the measure says which; none of "cups of
    coffee" and "pounds apples"."""
    words = [word.casefold() for word in _BETWEEN_WORDS.split(phrase) if word]
    prepositions = [place for place, word in enumerate(words) if word in _PREPOSITIONS]
    noun_phrase = words[: prepositions[0]] if prepositions else words
    if not noun_phrase:
        return frozenset()
    noun = _singular_word(noun_phrase[-1])
    is_everyday_thing = noun in _EVERYDAY and "of" not in words  # cups of coffee are a measure
    things: list[str] = []
    if noun == "bar":
        things = words  # also those behind "of", as pressure is of nothing
    elif is_everyday_thing or _measure_says_which(noun_phrase):
        things = noun_phrase
    return frozenset(map(_singular_word, things)) - _ANYTHING


def _measure_says_which(noun_phrase: Sequence[str]) -> bool:
    """Whether a measure in the singular stands in front of things in the plural: "pound cakes", "second graders"."""
    first, last = noun_phrase[0], noun_phrase[-1]
    if len(noun_phrase) < 2 or len(first) < 3 or _is_plural(first):
        return False
    return _unit_of(first) is not None and _is_plural(last) and _unit_of(last) is None


def _is_plural(word: str) -> bool:
    """Whether a word looks like a plural."""
    return len(word) > 3 and _singular_word(word) != word.casefold()


def _singular_word(word: str) -> str:
    word = word.casefold()
    if word == "feet":
        return "foot"
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("s") and not word.endswith("ss") and len(word) > 3:
        return word[:-1]
    return word


def unit_ratio(unit: Unit, other: Unit) -> Fraction | None:
    """How many of ``other`` one ``unit`` is; None where they do not convert. For counted things it is 1 where they may
    be the same."""
    if unit.dimensions and unit.dimensions == other.dimensions:
        return unit.factor / other.factor
    if unit.words and other.words:
        share_a_word = not unit.words.isdisjoint(other.words)
        one_means_anything = not _ANYTHING.isdisjoint(unit.words | other.words)
        return Fraction(1) if share_a_word or one_means_anything else None
    if unit.words or other.words:  # a measure, and words that may all stand for it, such as "units"
        means_anything = (unit.words or other.words) <= _ANYTHING
        return Fraction(1) if means_anything else None
    return None


# -- an answer with its unit

_PER_CENT_WORDS = ("%", "\\%", "percent", "per cent", "pct", "percentage", "percents")
_BETWEEN_WORDS = re.compile(r"[\s()./,-]+|\^\s*\{?-?\d\}?")
_NUMBER_COMPOUND = re.compile(  # the number of "two-liter bottles" and "twenty-dollar bills", and no half
    rf"\b(?:{'|'.join((*_BASES, 'twenty', 'thirty', 'forty', 'fifty', 'hundred', 'thousand'))})-(?=[a-zA-Z])",
    re.IGNORECASE,
)
# Parts of the patterns below.
_TEXT = r"\\(?:text|mbox|mathrm|textrm|textbf|textnormal|textit|operatorname|mathbf|rm)"
_INSIDE = r"\{((?:[^{}]|\{[^{}]*\})*)\}"  # {…}, with braces of one more level in it; what is inside is a group
_POWER = r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"  # ^2, ^{-1} or nothing

# Units in TeX.
_TEX_UNIT = re.compile(rf"(?:[\s/]*(?:\\cdot\s*|\*)?{_TEXT}\s*{_INSIDE}{_POWER})+\s*$")  # 5 \text{m}/\text{s}^2
_TEX_WORDS = re.compile(rf"{_TEXT}\s*{_INSIDE}")  # \text{cm}
_TEX_RATIO = re.compile(  # 5 \frac{\text{m}}{\text{s}^2}
    rf"\\frac\{{\s*{_TEXT}\s*{_INSIDE}\s*\}}\{{\s*{_TEXT}\s*{_INSIDE}({_POWER})\s*\}}\s*$"
)
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*(?:\{?\s*(?P<scale>[CFK])\s*\}?)?$")  # 30^\circ, 30^{\circ} C
_PER_CENT = re.compile(r"\s*(?:\\?%|(?i:percent|per cent|pct))$")  # 5\%, 5 percent

# Units in words: "3 square feet", "5 (meters)", "5(in meters)", "60 km per h". At most 61 characters, so that a long
# text stays cheap.
_WORDS_BEHIND = re.compile(
    r"(?<=[\d)}\]a-zA-Z])(?:\s+|(?=\(in\s))"
    rf"(?P<words>\(?[a-zA-Z${_SIGNS}]"
    rf"(?:[a-zA-Z{_SIGNS} ./^{{}}()\d*-]|\\cdot ){{0,60}})$"
)

# Units right behind a digit: "5cm", "90km/h", "9.8m/s^2". Two letters that are as often two variables of a formula are
# none: 5mg is 5 · m · g.
_PRODUCTS_OF_LETTERS = r"(?:m[gsNJFC]|[cd]g|[nk]s|um|[du]l|[nu][NJWVAFC])"
_ATTACHED = re.compile(
    rf"(?<=\d)\s?(?!{_PRODUCTS_OF_LETTERS}$)\\?"
    r"(?P<unit>"
    r"(?:/\s?(?=[a-zA-Z]{3}))?"  # a rate, by a word and no variable: 5/hour
    rf"[a-zA-Z${_SIGNS}]{{1,9}}(?:\^\{{?\d\}}?)?"  # cm^2
    r"(?:/[a-zA-Z]{1,6}(?:\^\{?\d\}?)?)?"  # /s^2
    r")$"
)

# The sign or the code of a currency before a number: $5, -$5, US\$5, €5, USD 5.
_CURRENCY = re.compile(
    r"^(?P<sign>[-+]?)\s*"
    r"(?:(?:[A-Z]{1,3})?\\?(?P<dollar>\$)"
    rf"|(?P<symbol>[{_SIGNS}])"
    r"|(?P<code>USD|EUR|GBP|INR|JPY|Rs\.?)\s?(?=[\d.]))"
    r"\s*(?P<sign_behind>[-+]?)(?=[\d.])"
)

# The base behind a number.
_SUBSCRIPT = re.compile(  # 1010_2, 1010_{2}, 1010_{\text{two}}, 1010_{(2)}
    rf"\s*_\s*\{{?\s*\(?\s*(?:{_TEXT}\s*\{{\s*)?(?P<base>\d+|[a-z]+)\s*\}}?\s*\)?\s*\}}?\s*\}}?$"
)
_BASE_IN_WORDS = re.compile(  # 1010 base 2, 1010 (in base two), 1010 \text{ base } 2
    rf"\s*\(?(?:{_TEXT}\s*\{{\s*)?\(?\s*(?:in\s+)?base[\s-]*\}}?\s*\{{?(?P<base>\d+|[a-z]+)\}}?\)?\s*\}}?$"
)
_DIGITS_IN_BASE = re.compile(  # 1A3, 10.1, \text{1A}
    rf"-?(?:[\dA-Z]*\d[\dA-Z]*(?:\.[\dA-Z]+)?|{_TEXT}\s*\{{[\dA-Z]+\}})"
)
# A hexadecimal number has a digit or begins with two capitals, so that no word such as "face" is one: 1a3, FACE.
_HEXADECIMAL = re.compile(rf"-?(?:(?=[\da-fA-F]*\d|[A-F]{{2}})[\da-fA-F]+|{_TEXT}\s*\{{[\da-fA-F]+\}})")

# Several quantities.
_AND = re.compile(r"\s*(?:,\s*(?:and\s|or\s)?|\s(?:and|or)\s)\s*")  # between those of a list: 5 cm, 6 cm and 7 cm
_PART = re.compile(  # a term of a sum with all up to the next: "2 hours, and " of "2 hours, and 30 minutes"
    r"(?P<number>\d{1,9}(?:,\d{3})*(?:\.\d{1,9})?)"
    r"\s*(?:\\(?:text|mathrm)\s*\{\s*)?"  # \text{
    r"(?P<unit>[a-zA-Z]+)"
    r"\.?(?:,?\s+and(?=\s*\}))?(?:\s*\})?"  # ". and}" of a unit in \text{…}
    r"(?:\s*(?:,\s*(?:and\s)?|and\s|\\text\s*\{\s*and\s*\})?\s*(?=\d)|\Z)"  # before the next number, or the end
)
_ARC = re.compile(r"(\d+)\s*\^\s*\{?\s*\\circ\s*\}?\s*(\d+)\s*'(?:\s*(\d+(?:\.\d+)?)\s*(?:''|\"))?\Z")  # 5^\circ 6' 7"
_PRIMES = re.compile(r"(\d+)\s*'\s*(\d+(?:\.\d+)?)\s*(?:''|\")?\Z")  # 5'6", 5'6, 6'30

# Numbers.
_HAS_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{3}")  # three letters that are no command of TeX
_SCALE = re.compile(  # " million dollars", " dozens", and not " scores", which are things
    rf"^[\s~]*(?:{_TEXT}\s*\{{\s*)?(?!scores\b)({'|'.join(_SCALES)})s?\b\s*", re.I
)
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s*(?:"
    r"(?P<digits>\d[\d,]*(?:\.\d*)?|\.\d+)"  # 1,234.5
    r"(?:\s*(?:\\times|\\cdot|x)\s*10\s*\^\s*\{?\s*(?P<power>[-+]?\d{1,3})\s*\}?)?"  # 3 \times 10^{8}
    r"|10\s*\^\s*\{\s*(?P<ten>[-+]?\d{1,3})\s*\}"  # 10^{-3}
    r"|\\frac\{\s*(?P<minus>-?)\s*(?P<frac_top>\d+)\s*\}\{\s*(?P<frac_bottom>\d+)\s*\}"  # \frac{-1}{2}
    r"|(?P<slash_top>\d+)\s*/\s*(?P<slash_bottom>\d+))"  # 1/2
)


_EXTENT_BEHIND = re.compile(rf"(?<=[a-zA-Z}}])\s+(?:{_EXTENT})$", re.IGNORECASE)


def parse_quantity(tex: str) -> Quantity:
    r"""Parse an answer in the TeX of ``notation.py: write_tex``. The unit is looked for behind a plain number, and in
    ``\text{…}`` or by its name behind any expression."""
    quantity = _parse_plain_quantity(tex)
    extent = _EXTENT_BEHIND.search(tex) if quantity.unit is None and len(tex) <= LONGEST else None
    if extent is None:
        return quantity
    measured = _parse_plain_quantity(tex[: extent.start()])  # 5cm wide, 5 ft 6 in tall, 5 \text{in} wide
    is_measured = measured.unit is not None and bool(measured.unit.dimensions) and not is_base(measured.unit)
    return measured if is_measured else quantity


def _parse_plain_quantity(tex: str) -> Quantity:
    """``parse_quantity`` of an answer with nothing behind its unit."""
    number_in_base = _in_a_base(tex)
    if number_in_base is not None:
        return number_in_base
    tex = _TEX_RATIO.sub(r"\\text{\1/\2\3}", tex)
    quantities_listed = _list_of(tex)
    if quantities_listed is not None:
        return quantities_listed
    measures_added = _sum_of(tex)
    if measures_added is not None:
        return measures_added
    currency = _CURRENCY.match(tex)
    if currency is None:
        return _with_unit(tex)
    return _amount_of_money(tex, currency)


def _amount_of_money(tex: str, currency: re.Match[str]) -> Quantity:
    """A number behind the sign of a currency, with what stands behind it: $18, $18 a day, $18 dollars."""
    unit = parse_unit(currency["dollar"] or currency["symbol"] or currency["code"].removesuffix("."))
    sign = currency["sign"] + currency["sign_behind"]  # -$5, $-5
    amount = _with_unit(sign + tex[currency.end() :])
    if unit is not None and amount.unit is not None:
        other_dimensions = amount.unit.dimensions
        is_rate = bool(other_dimensions) and all(exponent < 0 for _, exponent in other_dimensions)  # "per day"
        if is_rate:
            dimensions = sorted((*unit.dimensions, *other_dimensions))
            unit = Unit(dimensions=tuple(dimensions), factor=amount.unit.factor)
    return Quantity(tex=amount.tex, value=amount.value, unit=unit)


def _list_of(tex: str) -> Quantity | None:
    """Numbers with one and the same unit: "5 cm, 6 cm"."""
    parts = _AND.split(tex) if len(tex) <= LONGEST else [tex]
    if len(parts) < 2:
        return None
    unit = _with_unit(parts[0]).unit
    if unit is None:
        return None
    quantities = [_with_unit(part) for part in parts]
    if any(quantity.value is None or quantity.unit != unit or quantity.letter for quantity in quantities):
        return None
    return Quantity(tex=", ".join(quantity.tex for quantity in quantities), unit=unit)


def _sum_of(tex: str) -> Quantity | None:
    """A sum of measures that convert into each other, from the larger to the smaller, as one quantity of the largest:
    "2 hours 30 minutes", "5 ft 6 in", 5'6", 6'30"."""
    if not tex[:1].isdigit() or len(tex) > LONGEST:
        return None
    tex = _ARC.sub(_write_arc, tex)
    tex = _PRIMES.sub(_write_primes, tex)
    parts = list(_PART.finditer(tex))
    covers_all = "".join(part[0] for part in parts) == tex
    if len(parts) < 2 or not covers_all:
        return None
    units = []
    total = Fraction(0)
    for part in parts:
        unit = _unit_of(part["unit"])
        if unit is None:
            return None
        units.append(unit)
        total += Fraction(part["number"].replace(",", "")) * unit.factor
    if any(unit_ratio(unit, following) is None for unit, following in pairwise(units)):
        return None  # they are of two kinds
    if any(unit.factor <= following.factor for unit, following in pairwise(units)):
        return None  # not from the larger to the smaller
    value = total / units[0].factor
    return Quantity(tex=f"\\frac{{{value.numerator}}}{{{value.denominator}}}", unit=units[0], value=value)


def _write_arc(match: re.Match[str]) -> str:
    """Degrees, minutes and, where there are any, seconds."""
    seconds = f" {match[3]} arcsec" if match[3] else ""
    return f"{match[1]} deg {match[2]} arcmin{seconds}"


def _write_primes(match: re.Match[str]) -> str:
    """Feet and inches, of which a foot has twelve; from twelve on minutes and seconds; from sixty on neither."""
    second_number = float(match[2])
    if second_number < 12:
        return f"{match[1]} ft {match[2]} in"
    if second_number < 60:
        return f"{match[1]} min {match[2]} sec"
    return match[0]


def _in_a_base(tex: str) -> Quantity | None:
    """A number with the base that it is written in: "1010_2", "FF base 16"."""
    match = _SUBSCRIPT.search(tex) or _BASE_IN_WORDS.search(tex)
    if match is None:
        return None
    base_text = match["base"]
    base = base_text if base_text.isdigit() else _BASES.get(base_text, "")
    body = tex[: match.start()].strip().removeprefix("(").removesuffix(")")
    digits = _HEXADECIMAL if base == "16" else _DIGITS_IN_BASE
    is_known_base = bool(base) and 2 <= int(base[:4]) <= 36  # four digits show that it is too large
    if not is_known_base or not digits.fullmatch(body):
        return None
    body = _TEX_WORDS.sub(r"\1", body).upper()
    has_letters = not body.lstrip("-").replace(".", "").isdigit()
    if has_letters and any(int(digit, 36) >= int(base) for digit in body if digit.isalnum()):
        return None
    value = _plain_number(body)
    return Quantity(tex=body, unit=Unit(dimensions=((f"base {base}", 1),)), value=value)


def is_base(unit: Unit) -> bool:
    """Whether a number is written in a base other than ten."""
    if not unit.dimensions:
        return False
    name, _ = unit.dimensions[0]
    return name.startswith("base ") and name != "base 10"


def _with_unit(tex: str) -> Quantity:
    """A number or expression, with the unit behind it, if there is one."""
    value = _plain_number(tex)
    if value is not None:
        return Quantity(tex=tex, value=value)
    if len(tex) > LONGEST:
        return Quantity(tex=tex)

    per_cent = _PER_CENT.search(tex)
    if per_cent:
        body = tex[: per_cent.start()]
        return Quantity(tex=body + "\\%", unit=PERCENT, value=_plain_number(body))
    degrees = _DEGREES.search(tex)
    if degrees:
        scale = {"C": "celsius", "F": "fahrenheit", "K": "kelvin"}.get(degrees["scale"] or "", "degree")
        return _measured_quantity(tex[: degrees.start()], parse_unit(scale))
    in_tex = _TEX_UNIT.search(tex)
    if in_tex and in_tex.start() > 0:
        return _with_tex_unit(tex, in_tex)
    return _with_words_behind(tex) or _with_attached_unit(tex) or Quantity(tex=tex)


def _with_tex_unit(tex: str, unit: re.Match[str]) -> Quantity:
    r"""An expression with a unit in ``\text{…}``, which was found at ``unit``."""
    unit_text = _TEX_WORDS.sub(r" \1 ", unit[0]).replace("~", " ").replace("\\%", "%")
    body = tex[: unit.start()].rstrip().rstrip("\\").rstrip()
    is_term = body.endswith(("+", "-", "=", "(", ","))  # x + \text{C}
    if is_term:
        return Quantity(tex=tex)
    if body.endswith("^"):  # 5^\text{cm}
        body = body[:-1].rstrip()
    else:
        body = _DEGREES.sub("", body)  # 30^\circ \text{C}
    return _scaled_quantity(body, unit_text, tex)


def _with_words_behind(tex: str) -> Quantity | None:
    """A unit in words behind a blank: "3 feet", "x cm"."""
    match = _WORDS_BEHIND.search(tex)
    if match is None:
        return None
    phrase = match["words"]
    if phrase.count("(") != phrase.count(")"):
        return None
    body = tex[: match.start()]
    if _plain_number(body) is not None:
        return _scaled_quantity(body, phrase, tex)
    unit = parse_unit(phrase)
    is_measure = unit is not None and bool(unit.dimensions)
    is_letter_or_bracket = len(phrase) == 1 or phrase[0] == "("
    if not is_measure or is_letter_or_bracket or _HAS_WORD.search(body):
        return None
    return _measured_quantity(body, unit)


def _with_attached_unit(tex: str) -> Quantity | None:
    """A unit right behind a digit: "5cm", "90km/h"; no single letter, which may be a variable."""
    match = _ATTACHED.search(tex)
    if match is None:
        return None
    unit_text = match["unit"]
    unit = _parse_measure(unit_text)
    is_letter = len(unit_text) == 1 and unit_text.isalpha()
    if unit is None or is_letter:
        return None
    return _measured_quantity(tex[: match.start()], unit)


def _scaled_quantity(body: str, unit_text: str, tex: str) -> Quantity:
    """An expression with words behind it: "5 million dollars", "3 feet", "6 m". ``tex``: all of it, which is returned
    where the words are no unit."""
    value = _plain_number(body)
    unit_text = unit_text.strip()
    multiplier = 1
    while scale := _SCALE.match(unit_text):
        unit_text = unit_text[scale.end() :].strip()
        multiplier *= _SCALES[scale[1].casefold()]
    if multiplier > 1 and value is not None:
        value *= multiplier
        body = f"{value:f}" if isinstance(value, Decimal) else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
        if not unit_text:
            return Quantity(tex=body, value=value)
    is_letter = len(unit_text) == 1 and unit_text.isalpha()
    if is_letter and tex.endswith(unit_text):
        unit = parse_unit(unit_text) if unit_text in LETTERS else None
        return Quantity(tex=tex, unit=unit, value=value if unit else None, letter=unit_text)
    unit = parse_unit(unit_text)
    if unit is None:
        return Quantity(tex=tex)
    if unit is PERCENT:
        return Quantity(tex=body + "\\%", unit=unit, value=value)
    return Quantity(tex=body, unit=unit, value=value)


def _measured_quantity(body: str, unit: Unit | None) -> Quantity:
    body = body.strip()
    return Quantity(tex=body, unit=unit, value=_plain_number(body))


def _plain_number(body: str) -> Decimal | Fraction | None:
    """The value of a plain number without a unit; None for any other text, and where commas do not part groups of three
    digits ("1234,5")."""
    match = _NUMBER.fullmatch(body.strip())
    if match is None:
        return None
    sign = match["sign"]
    if match["digits"]:
        digits = without_separators(match["digits"])
        if "," in digits:
            return None
        return Decimal(f"{sign}{digits}e{match['power'] or 0}")
    if match["ten"]:
        return Decimal(f"{sign}1e{match['ten']}")
    numerator = match["frac_top"] or match["slash_top"]
    denominator = match["frac_bottom"] or match["slash_bottom"]
    if len(numerator) + len(denominator) > MAX_DIGITS or not int(denominator):
        return None
    is_negative = (sign == "-") != (match["minus"] == "-")
    value = Fraction(int(numerator), int(denominator))
    return -value if is_negative else value
