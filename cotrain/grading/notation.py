r"""One notation for answers: whatever an answer is written in, ``write_tex`` writes it in TeX that has one reading.

::

    √2, x², ½, （1，2）, －5           signs of Unicode              \sqrt{2}, x^{2}, \frac{1}{2}, (1,2), -5
    2*pi*r, x**2, sqrt(2), exp(2)     plain text                    2\cdot \pi \cdot r, x^{2}, \sqrt{2}, e^{2}
    \frac12, \sqrt[3]2, x^10          arguments without braces      \frac{1}{2}, \sqrt[3]{2}, x^{10}
    10\,000, 9{,}500, 12 345, 1'000   groups of three digits        10000, 9500, 12345, 1000
    1e-05, 6.02e23                    a power of ten                0.00001, 602000000000000000000000
    2 1/2, 2\frac12                   mixed numbers                 \frac{5}{2}
    0.\overline{3}, 0.1(6)            repeating decimals            \frac{1}{3}, \frac{1}{6}

Two numbers next to each other that are neither a group of digits nor a mixed number have no reading, and neither have
two with nothing but quotation marks between them, as in 5'7 (``has_adjacent_numbers``). All patterns take a time that
is linear in the text: a model wrote it, and may have made it hostile.

Left out: decimal commas of gold answers, numbers in words, calligraphic letters that NFKC knows no plain letter for.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from fractions import Fraction

from cotrain.grading.members import sort_assigned, turn_brackets, write_conditions

_SIGNS_OF_TEX = {  # TeX or ASCII → the signs of Unicode that are written so
    "-": "−–—‐‑‒―➖˗⁃",
    "/": "÷∕⁄",
    ":": "∶",
    "|": "∣｜",
    ", ": "、",  # parts the members of a list, and no thousands
    ".": "。",
    "'": "′‘’",
    "''": "″",
    '"': "“”„«»「」",
    "[": "【",
    "]": "】",
    "\\{": "｛",
    "\\}": "｝",
    "^\\circ ": "°º˚",
    "\\cdot ": "·⋅∙•∗",
    "\\times ": "×✕✖⨯",
    "\\infty ": "∞",
    "\\le ": "≤⩽≦",
    "\\ge ": "≥⩾≧",
    "\\ne ": "≠",
    "\\approx ": "≈≃≅",
    "\\pm ": "±",
    "\\mp ": "∓",
    "\\in ": "∈",
    "\\notin ": "∉",
    "\\cup ": "∪",
    "\\cap ": "∩",
    "\\emptyset ": "∅⌀",
    "\\Delta ": "∆",
    "%": "٪",
    "\\subset ": "⊂",
    "\\subseteq ": "⊆",
    "\\setminus ": "∖",
    "\\mathbb{R}": "ℝ",
    "\\mathbb{Z}": "ℤ",
    "\\mathbb{N}": "ℕ",
    "\\mathbb{Q}": "ℚ",
    "\\mathbb{C}": "ℂ",
    "\\sum ": "∑",
    "\\prod ": "∏",
    "\\int ": "∫",
    "\\partial ": "∂",
    "\\lfloor ": "⌊",
    "\\rfloor ": "⌋",
    "\\lceil ": "⌈",
    "\\rceil ": "⌉",
    "\\langle ": "⟨〈",
    "\\rangle ": "⟩〉",
    "\\to ": "→",
    "\\Rightarrow ": "⇒",
    "\\therefore ": "∴",
    "\\angle ": "∠",
    "\\hbar ": "ħ",
    "\\epsilon ": "ϵ",
    "\\theta ": "ϑ",
    "\\phi ": "ϕ",
}
_SIGNS = {sign: tex for tex, signs in _SIGNS_OF_TEX.items() for sign in signs}
_GREEK = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi
psi omega"""
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ"
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"
_PLAIN_SUPERSCRIPTS = str.maketrans(_SUPERSCRIPTS, "0123456789+-()abcdefghijklmnoprstuvwxyz")
_PLAIN_SUBSCRIPTS = str.maketrans(_SUBSCRIPTS, "0123456789+-()aehijklmnoprstuvx")
_ROOTS = {"√": "\\sqrt", "∛": "\\sqrt[3]", "∜": "\\sqrt[4]"}
_ROOT = re.compile(r"(?:(?:^|(?<=[-+*/(,=\s]))([²³⁴⁵⁶⁷⁸⁹]))?([√∛∜])\s*(\d+(?:\.\d+)?)?")  # ³√2: degree, sign, radicand
_SMALL_FRACTION = re.compile(r"(?<![⁰¹²³⁴-⁹])([⁰¹²³⁴-⁹]+)[/⁄∕]([₀-₉]+)")  # ¹⁄₂
_ENTITY = re.compile(r"&(?:#\d{1,6}|[a-zA-Z]{2,8});")  # &le;
_HTML_SCRIPT = re.compile(r"<su([pb])>([^<>]{1,60})</su\1>")  # x<sup>2</sup>
_OVERLINES = "\u0304\u0305\u0307"  # lines and a dot that stand above the character before them
_OVERLINED = re.compile(r"\d[\u0304\u0305\u0307](?:\d[\u0304\u0305\u0307]?)*")
_WITHOUT_OVERLINES = str.maketrans("", "", _OVERLINES)


def plain_signs(text: str) -> str:
    """Signs, digits and letters of Unicode as TeX and ASCII have them: "√2", "x²", "½", "５", "–5", "∞", "90°". What is
    not seen (zero-width spaces) is dropped."""
    if "&" in text or "<su" in text:
        text = _HTML_SCRIPT.sub(_write_script, text)
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    if text.isascii():
        return text
    text = unicodedata.normalize("NFC", text)
    text = _OVERLINED.sub(_write_overline, text)
    text = _SMALL_FRACTION.sub(_write_small_fraction, text)
    text = _ROOT.sub(_write_root, text)
    text = re.sub(f"([{_SUPERSCRIPTS}]+)", r"^{\1}", text).translate(_PLAIN_SUPERSCRIPTS)
    text = re.sub(f"([{_SUBSCRIPTS}]+)", r"_{\1}", text).translate(_PLAIN_SUBSCRIPTS)
    return "".join(map(_plain_sign, text))


def _write_script(match: re.Match[str]) -> str:
    """<sup> and <sub> as ^ and _."""
    return f"{'^' if match[1] == 'p' else '_'}{{{match[2]}}}"


def _write_overline(match: re.Match[str]) -> str:
    """From the first to the last digit with a line or dot above: 0.1̇42857̇ repeats 142857."""
    end = max(match[0].rfind(overline) for overline in _OVERLINES) + 1
    repeated = match[0][:end].translate(_WITHOUT_OVERLINES)
    return f"\\overline{{{repeated}}}{match[0][end:]}"


def _write_small_fraction(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", f"\\frac{{{match[1]}}}{{{match[2]}}}")  # NFKC: digits of the usual size


def _write_root(match: re.Match[str]) -> str:
    degree, sign, radicand = match.groups()
    if degree and sign == "√":
        root = f"\\sqrt[{degree.translate(_PLAIN_SUPERSCRIPTS)}]"
    else:
        root = _ROOTS[sign]
    argument = f"{{{radicand}}}" if radicand else " "
    return root + argument


@functools.lru_cache(maxsize=4096)
def _plain_sign(char: str) -> str:
    if char.isascii():
        return char
    if char in _SIGNS:
        return _SIGNS[char]
    category = unicodedata.category(char)
    is_variation_selector = "\ufe00" <= char <= "\ufe0f"
    if category == "Cf" or is_variation_selector:  # Cf: signs of format, such as zero-width spaces
        return ""
    if category == "Nd":  # digits of any script
        return str(unicodedata.decimal(char))
    if unicodedata.decomposition(char).startswith("<fraction>"):
        numerator, _, denominator = unicodedata.normalize("NFKC", char).partition("⁄")
        return f"\\frac{{{numerator}}}{{{denominator}}}" if denominator else char
    name = unicodedata.name(char, "").split()  # such as GREEK SMALL LETTER PI
    is_letter = len(name) == 4 and name[0] == "GREEK" and name[2] == "LETTER"
    if is_letter and name[3].lower() in _TEX_LETTERS:
        letter = name[3].lower() if name[1] == "SMALL" else name[3].capitalize()
        return f"\\{letter} "
    plain = unicodedata.normalize("NFKC", char)
    if plain == char:
        return char
    return "".join(map(_plain_sign, plain))


_TEX_LETTERS = frozenset(_GREEK.split())


# -- plain text

_FUNCTIONS = """sin cos tan cot csc sinh cosh tanh arcsin arccos arctan ln log lg sqrt exp frac cdot"""
_COMMANDS = {word: word for word in (_FUNCTIONS + " " + _GREEK).split()}  # plain word → TeX command
_COMMANDS |= {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "cbrt": "sqrt[3]", "Pi": "pi", "PI": "pi"}
_COMMANDS |= {"infinity": "infty", "Infinity": "infty", "inf": "infty", "oo": "infty"}
_WITH_BRACKETS = """sec min max gcd abs floor ceil"""  # commands only before a bracket: 5 sec and 5 min are times
_CALLED_COMMANDS = {word: word for word in _WITH_BRACKETS.split()}
_CALLED_COMMANDS |= {"log2": "log_{2}", "log10": "log_{10}"}
_WORD = re.compile(
    r"\\(?:text\w*|mbox|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[a-zA-Z]+"  # TeX already
    r"|(?<![a-zA-Z])(?:(?:np|math|sympy)\.)?(?:(?P<called>log2|log10|[a-zA-Z]+)(?=\s*\()"
    r"|(?P<word>[a-zA-Z]{2,}))(?![a-zA-Z])"
)
_POWER = re.compile(r"(?<![\^_{\\*])\*\*(?!\*)")
_TIMES = re.compile(r"(?<![\^_{\\*])\*(?![*}])")
_RELATIONS = (("<=", "\\le "), (">=", "\\ge "), ("+/-", "\\pm "), ("+-", "\\pm "), ("->", "\\to "))
_BY_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")  # 3 x 10^8
_IMAGINARY = re.compile(r"(?<=\d)\s*(?:\*\s*)?(?=i(?![a-zA-Z]))")  # 3*i and 3 i, which math-verify knows as 3i
_PRIMED = re.compile(r"(?<![a-zA-Z])([a-zA-Z])('{1,3})(?![a-zA-Z'])")  # y', of which math-verify drops the mark
_UNEQUAL = re.compile(r"(?<!\d)!=")  # 5!=120 is no inequality
_UNION = re.compile(r"([\])])\s*(?:U|union)\s*(?=[\[(])")  # [0,1] U [2,3]
_CALL = re.compile(r"\\?(?<![a-zA-Z])(sqrt(?:\[\d+\])?|exp|abs|floor|ceil)\s*[({]|(\^)\s*\(")  # sqrt(, ^(
_OPEN_CLOSE = {
    "exp": ("e^{", "}"),
    "abs": ("|", "|"),
    "floor": ("\\lfloor ", "\\rfloor "),
    "ceil": ("\\lceil ", "\\rceil "),
    "^": ("^{", "}"),
}


def _write_commands(text: str) -> str:
    text = _BY_TEN.sub(r" \\times ", text)
    text = _WORD.sub(_write_command, text)
    for plain, tex in _RELATIONS:
        text = text.replace(plain, tex)
    text = _UNEQUAL.sub(r"\\ne ", text)
    text = _IMAGINARY.sub("", text)
    text = _PRIMED.sub(lambda match: match[1] + "^{" + "\\prime" * len(match[2]) + "}", text)
    text = _POWER.sub("^", text)
    text = _TIMES.sub(r"\\cdot ", text)
    text = _UNION.sub(r"\1 \\cup ", text)
    return _write_calls(text)


def _write_command(match: re.Match[str]) -> str:
    called = match["called"] or ""
    command = _CALLED_COMMANDS.get(called) or _COMMANDS.get(called or match["word"] or "")
    return f"\\{command} " if command else match[0]


def _write_calls(text: str) -> str:
    r"""``\sqrt (x+1)``, ``\exp (2)``, ``x^(1/2)`` with their arguments in braces or bars."""
    calls = list(_CALL.finditer(text))
    if not calls:
        return text
    closing_places = _closing_places(text)
    replacements = {}  # start of what is replaced → (its end, what is written there)
    for call in calls:
        name = call[1] or call[2]
        opening = call.end() - 1
        is_tex = name.startswith("sqrt") and text[opening] == "{"
        if opening not in closing_places or is_tex:
            continue
        before, after = _OPEN_CLOSE.get(name) or (f"\\{name}{{", "}")
        closing = closing_places[opening]
        replacements[call.start()] = (call.end(), before)
        replacements[closing] = (closing + 1, after)

    parts = []
    position = 0
    for start in sorted(replacements):
        end, written = replacements[start]
        parts += [text[position:start], written]
        position = end
    return "".join(parts) + text[position:]


def _closing_places(text: str) -> dict[int, int]:
    """The place of each opening bracket → the place of the one that closes it."""
    opening_of = {")": "(", "}": "{"}
    closing_places = {}
    open_places = []
    for place, char in enumerate(text):
        if char in opening_of.values():
            open_places.append(place)
        elif char in opening_of and open_places and text[open_places[-1]] == opening_of[char]:
            closing_places[open_places.pop()] = place
    return closing_places


# -- TeX

_LAYOUT = re.compile(
    r"(?<=\\\\)\[\s*-?[\d.]+\s*(?:pt|e[mx]|[cm]m)\s*\]|\\(?:left|right)\s*\.|"
    r"\\(?:displaystyle|textstyle|left|right|[bB]igg?[lrm]?|n?o?limits)(?![a-zA-Z])\s*"
)
_FRACTIONS = re.compile(r"\\(?:[dtcsx]|nice)frac(?![a-zA-Z])")  # \dfrac, \nicefrac
_SI = re.compile(r"\\(?:(?:SI|qty)\s*\{([^{}]*)\}|(?:si|unit))\s*\{([^{}]*)\}")  # \SI{5}{\km\per\hour}
_UNIT_NAME = re.compile(r"\\[a-zA-Z]+|\.")
_ONLY_NUMBER = re.compile(r"\\num\s*\{([^{}]*)\}")  # \num{5}
_ANGLE = re.compile(r"\\ang\s*\{([\d.]+)\}")  # \ang{30}
_UPRIGHT = re.compile(r"\\(?:mathrm|text|operatorname)\s*\{([ei])\}")  # \mathrm{e}^{x}, 3\mathrm{i}
_BLANK = re.compile(r"(?<!\\)\\(?:[,;:> ]|(?:q?quad|(?:thin|med|thick)?space|enspace)(?![a-zA-Z]))|(?<!\\)~|&nbsp;|\t")
_NARROW_BLANK = re.compile(r"(?<=\d)\\!(?=\d)")
_GROUPED = re.compile(r"(?<=\d)(?:,\\!|(?:\\mathord\s*)?\{\\?[, ]\})(?=\d{3}(?!\d))")  # 9{,}500
_BY_MARKS = re.compile(r"(?<![\w.])[1-9]\d{0,2}(?:(?:_\d{3})+(?:\.\d+)?|(?:\.\d{3}){2,})(?![\w.])")  # 1_234, 1.234.567
_BY_APOSTROPHES = re.compile(r"(?<![\d.'])[1-9]\d{0,2}(?:'\d{3})+(?![\d'])")  # 1'234'567
_IN_BRACES = re.compile(r"(?<!\\)\{([1-9]\d{0,2}(?:,\d{3})+)\}")  # {1,234}
_ARGUMENT = r"(?:\\[a-zA-Z]+(?![a-zA-Z\[{])|[a-zA-Z\d])"  # one command, letter or digit
_NESTED = r"\{(?:[^{}]|\{[^{}]*\})*\}"  # {…}, with braces of one more level in it
_BARE_ARGUMENTS = (  # commands with arguments without braces, and what is written for them
    (re.compile(r"(?:\{|^)([^{}\\]++)\\choose(?![a-zA-Z])([^{}\\]++)(?:\}|$)"), r"\\binom{\1}{\2}"),
    (re.compile(rf"\\(frac|binom)\s*({_ARGUMENT})\s*({_ARGUMENT})"), r"\\\1{\2}{\3}"),  # \frac12
    (re.compile(rf"\\(frac|binom)\s*({_ARGUMENT})\s*(?=\{{)"), r"\\\1{\2}"),  # \frac1{2}
    (re.compile(rf"\\(frac|binom)\s*({_NESTED})\s*({_ARGUMENT})"), r"\\\1\2{\3}"),  # \frac{1}2
    (  # \sqrt2, \sqrt[3]x
        re.compile(r"\\sqrt\s*(\[[^\[\]]{1,9}\])?\s*(\d+(?:\.\d+)?|[a-zA-Z]|\\[a-zA-Z]+(?![a-zA-Z\[{]))"),
        r"\\sqrt\1{\2}",
    ),
    (re.compile(rf"\\sqrt\s*(\\frac{_NESTED}{_NESTED})"), r"\\sqrt{\1}"),  # \sqrt\frac{1}{2}
    (re.compile(r"\^\s*([-+]?\d+(?:\.\d+)?|-[a-zA-Z](?![a-zA-Z]))"), r"^{\1}"),  # x^10, x^-y
    (re.compile(r"(\\log)\s*_\s*(10(?!\d)|\d)"), r"\1_{\2} "),  # \log_28: 2 is the base of log 8
    (re.compile(r"_\s*(\d+)"), r"_{\1}"),  # x_12
)
_PRODUCT = re.compile(  # 2(3), (2)(3), (2)3: math-verify would add the numbers
    r"(?<=[\d)])\s*(?=\(\s*[-\d\\(]|\\(?:binom|gcd)(?![a-zA-Z]))|(?<=\))\s*(?=\d)"
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")  # to math-verify 30° is 30
_DEGREES = re.compile(r"(\d+(?:\.\d+)?|(?<![a-zA-Z])[a-zA-Z])\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))")
_FRACTION_OF = re.compile(r"(\\(?:frac|binom)\{[^{}]*\}\{[^{}]*\})\s*(?=\(\s*[-\d\\(])")  # \frac{1}{2} (3)
_LISTED = re.compile(r"\s{0,3},?\s{0,3}\\text\s*\{\s*,?\s*(?:and|or)\s*\}")  # 1 \text{ and } 2


def _write_siunitx(text: str) -> str:
    """Numbers and units of the package siunitx, and upright letters, as TeX without packages has them."""
    text = _SI.sub(lambda match: f"{match[1] or ''} \\text{{ {_UNIT_NAME.sub(_unit_name, match[2])} }}", text)
    text = _ONLY_NUMBER.sub(r"\1", text)
    text = _ANGLE.sub(r"\1^\\circ ", text)
    return _UPRIGHT.sub(r"\1", text)


def _unit_name(match: re.Match[str]) -> str:
    return {"\\per": "/", ".": " "}.get(match[0], f" {match[0][1:]}")


def _write_arguments(text: str) -> str:
    for pattern, with_braces in _BARE_ARGUMENTS:
        text = pattern.sub(with_braces, text)
    return text


# -- numbers

_PLAIN = re.compile(r"[-+$]{0,2}\d+(?:\.\d+)?((?: [a-z]{2,})*)")  # 5 red apples
_SENTENCE = re.compile(r"(?!(?:a?r?c?(?:sin|cos|tan)|cot|log|exp|sqrt) )[a-zA-Z]{3,}(?: [a-zA-Z]{3,})+")
_RANGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(?:--?|to)\s*(\d{1,9}(?:\.\d{1,9})?)")  # 10-20
_DATE = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\6(\d{4})")
_REMAINDER = re.compile(r"(\d{1,9})\s*(?:\\text\s*\{\s*)?(?:R|r|remainder)\s*\}?\s*(\d{1,9})")  # 7 R 2
_CLOCK = re.compile(  # 7:30 p.m., 7 PM, 7:30:05 am, 7:05, 19:30
    r"(\d{1,2})(?::([0-5]\d)(?::([0-5]\d))?)?\s*+(?:\\(?:text|mathrm)\s*\{\s*)?(?:([aApP])\.?\s?[mM]\.?)?\s*\}?"
)
_RATIO_PART = r"((?:\\[a-zA-Z]+|[^:,;=\\a-zA-Z]|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z]))+)"  # no word
_RATIO = re.compile(rf"{_RATIO_PART}((?::{_RATIO_PART}){{2,}})")  # 1:2:3
_ORDINAL = re.compile(r"(?<=\d)(?:\^\s*)?(?:\{\s*)?(?:\\(?:text|mathrm)\s*\{\s*)?(?:st|nd|rd|th)\s*\}{0,2}(?![a-zA-Z])")
_BY_THREES = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?: {1,3}\d{3})+)(?! {0,3}\d)")  # 12 345
_DECIMALS = re.compile(r"(?<=\d)\.\d{3}(?: \d{3})*(?: \d{1,3})(?!\d)")  # 3.141 592
_E_NOTATION = re.compile(
    r"(?<![a-zA-Z\d._])(?!(?<=\d,)\d{3}[.eE])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,3})(?![\d.]|\s*_)"
)
_REPEATING = re.compile(
    r"(?<![\d.,])(\d*)\.(\d*)(?:\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))"
    r"|\\dot\s*(?:\{(\d)\}|(\d))(?:(\d*)\\dot\s*(?:\{(\d)\}|(\d)))?|\((\d+)\))"
)
_DECIMAL_POWER = re.compile(r"\^\{(-?)(\d{0,9})\.(\d{1,9})\}")  # 2^{0.5}, of which math-verify knows no value
_REPEATING_WITH_DOTS = re.compile(  # 0.1666...
    r"(?<![\d.,])(\d{0,9})\.(\d{0,6}?)(\d{1,9}?)\3+(?:\.\.\.|\\[lc]?dots)"
)
_MIXED = re.compile(r"(?<![\d./^_a-zA-Z])(\d+)(?:\s*\\frac\{(\d+)\}\{(\d+)\}| +(\d+)/(\d+)(?![\d.]))(?!\s*[\d/^!])")
_ADJACENT = re.compile(
    r"\d\.?\s+\.?\d|\d\s*\\frac\{\d+\}\{\d+\}|\\frac\{\d+\}\{\d+\}\s*(?:\.?\d|\\frac\{\d)"
    r"|\d\s*(?:\\?['\"$]|\\text\s*\{\s*\}|\^\s*\{?\s*\\prime\s*\}?)(?:[\s'\"$])*\d"  # marks that math-verify drops
)
_POINT = re.compile(r"(?<=\d)\.(?=\s*[/)}])")  # -1./3
_OPENING = ("(", "[", "\\{")
_CLOSING = (")", "]", "\\}")
_BRACKET_OR_COMMA = re.compile(r"\\?[\[\](){}]|(?<=\d),(?=\d)")
_COMMA_GROUP = re.compile(r"(?<![\d,.])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")  # 1,234,567
MOST_DIGITS = 60  # of a number that is written as a fraction, or in full digits


def has_adjacent_numbers(tex: str) -> bool:
    r"""Whether two numbers stand next to each other without a sign, as in ``5 7``, ``5'7`` and
    ``\frac{1}{2} \frac{1}{3}``, in a text of ``write_tex``."""
    return _ADJACENT.search(tex) is not None


def without_separators(text: str) -> str:
    """A text without the commas of groups of three digits: "1,234,567.5" → "1234567.5". Lists, pairs and intervals keep
    their commas: "3,11,33", "(1,2)", "[100,200)"."""
    if "," not in text or any(sign in text for sign in "([{"):
        return text
    return _COMMA_GROUP.sub(lambda match: match[0].replace(",", ""), text)


def _spread_commas(text: str) -> str:
    """A text with a blank behind each comma in brackets, as in (100,200), so that it is not taken for one in a group of
    three digits."""
    parts = []
    depth = 0
    start = 0
    for match in _BRACKET_OR_COMMA.finditer(text):
        depth += (match[0] in _OPENING) - (match[0] in _CLOSING)
        if match[0] == "," and depth > 0:
            parts.append(text[start : match.end()])
            start = match.end()
    return " ".join((*parts, text[start:]))


def write_tex(text: str) -> str:
    """The same answer in TeX with one reading; see the module. Words and what is not known stay as they are."""
    text = plain_signs(text)
    number_and_words = _PLAIN.fullmatch(text)
    if number_and_words and _COMMANDS.keys().isdisjoint(number_and_words[1].split()):
        return text
    if _SENTENCE.fullmatch(text):
        return text
    ratio = _RATIO.fullmatch(text)
    if ratio and not parts_of(text):  # 1:2:3 as the point (2/1, 3/1), which equal ratios share
        first = ratio[1]
        others = ratio[2].removeprefix(":").split(":")
        quotients = [f"\\frac{{{other}}}{{{first}}}" for other in others]
        text = f"({', '.join(quotients)})"

    # Brackets, fractions and layout.
    if "{" in text:
        text = _write_siunitx(text)
    text = _FRACTIONS.sub(r"\\frac", text)
    text = _LAYOUT.sub("", text)
    text = text.replace("\\lbrace", "\\{").replace("\\rbrace", "\\}")
    text = turn_brackets(text)
    text = write_conditions(text)
    text = _LISTED.sub(", ", text)
    text = text.replace("\\varnothing", "\\emptyset").replace("\\langle", "(").replace("\\rangle", ")")

    # Groups of three digits.
    text = _BY_MARKS.sub(lambda match: match[0].replace("_" if "_" in match[0] else ".", ""), text)
    text = _BY_APOSTROPHES.sub(lambda match: match[0].replace("'", ""), text)
    text = _GROUPED.sub("", text)
    text = _IN_BRACES.sub(lambda match: "{" + match[1].replace(",", "") + "}", text)
    text = _NARROW_BLANK.sub(" ", text)
    text = text.replace("\\!", "").replace("{,}", ",")

    # Commands, arguments, numbers and products.
    text = _BLANK.sub(" ", text)
    text = _write_commands(text)
    text = _write_arguments(text)
    if any(char.isdigit() for char in text):
        text = _write_numbers(text)
    if "\\circ" in text and _TRIGONOMETRY.search(text):
        text = _DEGREES.sub(r"{\\frac{\1 \\pi}{180}}", text)
    text = _FRACTION_OF.sub(r"\1 \\cdot ", text)
    text = _PRODUCT.sub(r" \\cdot ", text)
    return sort_assigned(text.strip())


def parts_of(tex: str) -> frozenset[tuple[Fraction, ...]]:
    """The readings of a date, a range, a time of day or a number with a remainder, each as the tuple of its parts; none
    for any other text. Read as a difference or quotient, 10-20 would equal 20-30. A time without a.m. or p.m. has two
    readings."""
    clock = _CLOCK.fullmatch(tex)
    if clock and (clock[2] or clock[4]):  # minutes, or a.m. or p.m.: an hour alone is a number
        hour_text, minute_text, second_text, am_or_pm = clock.groups()
        minutes = Fraction(minute_text or 0)
        seconds = Fraction(second_text or 0)
        hours = _hours_meant(int(hour_text), am_or_pm)
        return frozenset((Fraction(hour), minutes, seconds) for hour in hours)

    match = _RANGE.fullmatch(tex) or _DATE.fullmatch(tex) or _REMAINDER.fullmatch(tex)
    if match is None:
        return frozenset()
    parts = tuple(Fraction(part) for part in match.groups() if part and part[0].isdigit())
    is_difference = match.re is _RANGE and parts[0] >= parts[1]  # 20-10
    if not parts or is_difference:
        return frozenset()
    return frozenset((parts,))


def _hours_meant(hour: int, am_or_pm: str | None) -> set[int]:
    """The hours of 24 that an hour of a clock may be. ``am_or_pm``: the first letter of either; None where the text has
    neither."""
    if am_or_pm:
        is_afternoon = am_or_pm in "pP"
        return {hour % 12 + (12 if is_afternoon else 0)}
    if hour <= 12:
        return {hour, (hour + 12) % 24}
    return {hour}


def _write_numbers(text: str) -> str:
    text = _ORDINAL.sub("", text)
    text = _POINT.sub("", text)
    text = _spread_commas(text)
    text = _COMMA_GROUP.sub(lambda match: match[0].replace(",", ""), text)
    text = _BY_THREES.sub(lambda match: match[1].replace(" ", ""), text)
    text = _DECIMALS.sub(lambda match: match[0].replace(" ", ""), text)
    text = _E_NOTATION.sub(_power_of_ten, text)
    text = _REPEATING_WITH_DOTS.sub(lambda match: _repeating_fraction(match[0], match[1], match[2], match[3]), text)
    text = _REPEATING.sub(_repeating_decimal, text)
    text = _DECIMAL_POWER.sub(_fraction_power, text)
    return _MIXED.sub(_mixed_fraction, text)


def _power_of_ten(match: re.Match[str]) -> str:
    """In full digits, or in braces where there would be too many."""
    mantissa = match[1]
    exponent = int(match[2])
    if abs(exponent) > MOST_DIGITS:
        return f"{{{mantissa} \\times 10^{{{exponent}}}}}"
    whole, _, decimals = mantissa.partition(".")
    digits = whole + decimals
    point = len(whole) + exponent  # number of digits before the decimal point
    if point < 0:
        digits = "0" * -point + digits
        point = 0
    digits = digits.ljust(point, "0")
    written = (digits[:point].lstrip("0") or "0") + "." + digits[point:]
    if decimals or exponent < 0:
        written = written.rstrip("0")
    return written.rstrip(".")


def _fraction_power(match: re.Match[str]) -> str:
    value = Fraction(f"{match[2] or 0}.{match[3]}")
    return f"^{{{match[1]}\\frac{{{value.numerator}}}{{{value.denominator}}}}}"


def _repeating_decimal(match: re.Match[str]) -> str:
    """The period is the digits under a line, from the first to the last digit with a dot, or those in brackets."""
    whole, before, overlined, single_overlined, *dotted, in_brackets = match.groups()
    period = overlined or single_overlined or "".join(digit or "" for digit in dotted) or in_brackets
    return _repeating_fraction(match[0], whole, before, period)


def _repeating_fraction(written: str, whole: str, before: str, period: str) -> str:
    """The fraction of a decimal with these digits; ``written``, the text as it is, where there are too many."""
    if len(whole) + len(before) + len(period) > MOST_DIGITS:
        return written
    # 0.1(6) = (16 - 1) / 90
    all_digits = int((whole + before + period) or "0")
    digits_before = int((whole + before) or "0")
    denominator = 10 ** len(before) * (10 ** len(period) - 1)
    value = Fraction(all_digits - digits_before, denominator)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _mixed_fraction(match: re.Match[str]) -> str:
    whole = match[1]
    numerator = match[2] or match[4]
    denominator = match[3] or match[5]
    is_too_long = len(whole) + len(numerator) + len(denominator) > MOST_DIGITS
    if is_too_long or not 0 < int(numerator) < int(denominator):
        return match[0]
    return f"\\frac{{{int(whole) * int(denominator) + int(numerator)}}}{{{denominator}}}"
