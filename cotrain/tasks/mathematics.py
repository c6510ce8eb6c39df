r"""How mathematical answers are compared: math-verify, told first what needs no algebra. Loaded by ``grade_worker.py``.

1. **Read** gold and answer, by a faster way through math-verify's parser to the same trees (``latex.py``).
2. **Certainly different** by intervals (``bounds.py``): wrong, at once.
3. **math-verify's comparison**, in a sympy that refuses numbers too large to compute (``guards.py``): "too large".

What is slow after all runs into the deadline of the process. Left out: math-verify's own timeouts, since that deadline
covers parsing as well.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from cotrain.tasks.grade_worker import LEAST_PATIENCE_S, Judging, Verdict

_BARE_FRACTION = re.compile(r"\\frac\s*(\\[a-zA-Z]+|\d)\s*(\\[a-zA-Z]+|\d)(?![a-zA-Z{])")  # \frac\pi 2

_NO_MIXED = re.compile(r"(\d)\s*((?:\\left\s*)?\(\s*\\frac)")  # 2 (\frac{11}{2}) is 11; math-verify reads 2 + 11/2

_THOUSANDS = re.compile(
    r"(\d)(?:,\\!|\{,\})(?=\d{3})"
)  # 20,\!000, which is read by itself but not inside of a fraction
_POINT = re.compile(r"(\d)\.(?=/)")  # -1./3
_UNIT = re.compile(r"(?<=[\d})])\s+[a-zA-Z]+$")  # one word behind a number
_WORDS = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf|textnormal|operatorname)\s*\{[^{}]*\}")
_QUANTITY = re.compile(
    r"\\(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|lg|exp)(?![a-zA-Z])|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])"
)
_ALONE = re.compile(
    r"(?<=[^\s,;:(\[{] )([abcf-hj-zA-Z])(?![a-zA-Z{}_])"
)  # no e, i or d, which are read as something else
_SETS = re.compile(  # where {a} is read as a set
    r"\\(?:(?:in|cup|cap|setminus|subset\w*|to|int|mid)(?![a-zA-Z])|text\s*\{\s*(?:or|and)\s*\})"
)

READ = 256  # gold answers that are kept as they were read: a group's answers have one

WARM = (
    ("\\frac12", "x^2+x"),
    ("2\\sqrt{2}", "\\sqrt{8}"),
    ("(1, 2)", "(1,3)"),
    ("2x^2+1", "e^{x}\\cdot\\sin(2x)"),
    ("3!", "x=6"),
)

# What of the grammar and of sympy an answer may need. One of a kind, as the second is quick.
_KINDS = r"""\frac{x^2-1}{x+1}; \sqrt[3]{2}+\sqrt{5}; \left(\frac{1}{2}\right)^{3}; \log_{2}(x)+\ln 3; \tan(x)\cos(2x);
\sin^2(x); (1, 2); \{1, \sqrt{2}\}; (0, 1] \cup [3, \infty); x > 3; \sum_{k=1}^{9} k^2; \prod_{k=1}^{4} k;
\sum_{k=1}^{n} \frac{1}{k}; \int_0^1 x^2 dx; \lim_{x \to 0} \frac{\sin x}{x};
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}; |x-1| + \lfloor \pi \rfloor; (2+3i)^2; x_{1}^{2} + y_{2}; x^{y}; 2 \pi r;
y = 2x + 1; \pm 3; 30^\circ; e^{-x^2}; \gcd(4, 6); \Gamma(5); a \mod 7; 5! + \binom{6}{2}; 50\%; \text{yes}"""
LESSONS = tuple(("\\frac{7}{2}", kind.strip()) for kind in _KINDS.split(";"))

# What sympy raises on odd mathematics. Anything else ends the process, which the pool reports as "grader died".
_ODD = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def load_mathematics() -> Judging:
    """Math-verify, warm. Raises ImportError when it is not installed."""
    read, judge = load_judge()
    for gold, answer in WARM:  # the first comparisons load half of sympy: not at the expense of somebody's deadline
        judge(gold, answer)
    return Judging(judge=judge, read=read, least_patience_s=LEAST_PATIENCE_S, lessons=LESSONS)


def guarded(text: str) -> str:
    """``text`` with braces around variables behind a space, which math-verify drops as units: ``a + b + c``, ``x^{2}
    h``, ``\\sin t``. A single letter behind a number alone stays a unit."""
    text = " ".join(text.split())
    if not _ALONE.search(text) or _SETS.search(text):
        return text
    before, equals, last = text.rpartition("=")
    if _QUANTITY.search(_WORDS.sub("", _UNIT.sub("", last))):
        last = _ALONE.sub(r"{\1}", last)
    return before + equals + last


def load_judge() -> tuple[Callable[[str], object], Callable[[str, str], Verdict]]:
    """Import math-verify (slow) and return what reads a gold answer, for ``judge`` to find, and the comparison. Raises
    ImportError when it is not installed."""
    from math_verify import LatexExtractionConfig, parse, verify

    from cotrain.tasks import bounds, guards, latex

    guards.install()
    latex.install()
    config = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> list[Any]:
        text = guarded(_POINT.sub(r"\1", _THOUSANDS.sub(r"\1", text)))
        text = _NO_MIXED.sub(r"\1 \\cdot \2", _BARE_FRACTION.sub(r"\\frac{\1}{\2}", text))
        return parse("\\boxed{" + text + "}", config, fallback_mode="no_fallback", parsing_timeout=None)

    @functools.lru_cache(maxsize=READ)
    def read_gold(text: str) -> tuple[Any, ...] | str:
        """What it may be, or why it cannot be read."""
        try:
            return tuple(read(text))
        except guards.TooLarge:
            return "too large"
        except MemoryError:
            return "out of memory"
        except _ODD:
            return "grader error"

    def judge(gold: str, answer: str) -> Verdict:
        golds = read_gold(gold)
        if isinstance(golds, str):
            return None, golds
        if not golds:
            return None, "gold not readable"
        try:
            answers = read(answer)
            if not answers or bounds.certainly_different(golds, answers):
                return False, None
            return bool(verify(list(golds), answers, timeout_seconds=None, raise_on_error=True)), None
        except guards.TooLarge:
            return None, "too large"
        except MemoryError:
            return None, "out of memory"
        except _ODD:
            return None, "grader error"

    return read_gold, judge
