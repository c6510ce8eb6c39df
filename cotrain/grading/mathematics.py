r"""How mathematical answers are compared: math-verify, told first what needs no algebra. Loaded by ``grade_worker.py``.

1. **Read** gold and answer, by a faster way through math-verify's parser to the same trees (``latex.py``).
2. **Certainly different** by intervals (``bounds.py``): wrong, at once.
3. **math-verify's comparison**, in a sympy that refuses numbers too large to compute (``guards.py``): "too large".

What is slow after all runs into the deadline of the process. Left out: math-verify's own timeouts, since that deadline
covers parsing as well.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cotrain.grading.grade_worker import LEAST_PATIENCE_S, Judging, Verdict

_TINY_DECIMAL = re.compile(r"(?<![\d.])0*\.(0{4}\d{1,60})(?!\d)")  # read as a fraction: math-verify rounds it off

CACHED_GOLDS = 256  # gold answers that are kept as they were read: all answers of a group have the same

WARM_UP = (  # comparisons that load half of sympy, so that no answer has to wait for that
    ("\\frac12", "x^2+x"),
    ("2\\sqrt{2}", "\\sqrt{8}"),
    ("(1, 2)", "(1,3)"),
    ("2x^2+1", "e^{x}\\cdot\\sin(2x)"),
    ("3!", "x=6"),
)

# Answers that need different parts of the grammar and of sympy: one of each kind, as the second is quick.
_KINDS = r"""\frac{x^2-1}{x+1}; \sqrt[3]{2}+\sqrt{5}; \left(\frac{1}{2}\right)^{3}; \log_{2}(x)+\ln 3; \tan(x)\cos(2x);
\sin^2(x); (1, 2); \{1, \sqrt{2}\}; (0, 1] \cup [3, \infty); x > 3; \sum_{k=1}^{9} k^2; \prod_{k=1}^{4} k;
\sum_{k=1}^{n} \frac{1}{k}; \int_0^1 x^2 dx; \lim_{x \to 0} \frac{\sin x}{x};
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}; |x-1| + \lfloor \pi \rfloor; (2+3i)^2; x_{1}^{2} + y_{2}; x^{y}; 2 \pi r;
y = 2x + 1; \pm 3; 30^\circ; e^{-x^2}; \gcd(4, 6); \Gamma(5); a \mod 7; 5! + \binom{6}{2}; 50\%; \text{yes}"""
LESSONS = tuple(("\\frac{7}{2}", kind.strip()) for kind in _KINDS.split(";"))

# Errors that sympy raises on odd mathematics. Anything else ends the process, which the pool reports as "grader died".
SYMPY_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def load_mathematics() -> Judging:
    """Load math-verify, and compare a few answers with it. Raises ImportError when it is not installed."""
    read, judge = load_judge()
    for gold, answer in WARM_UP:
        judge(gold, answer)
    return Judging(judge=judge, read=read, least_patience_s=LEAST_PATIENCE_S, lessons=LESSONS)


def load_judge() -> tuple[Callable[[str], object], Callable[[str, str], Verdict]]:
    """Import math-verify (slow). Return a function that reads a gold answer, whose result is cached, and the function
    that compares an answer with one. Raises ImportError when it is not installed."""
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Add, Eq, Expr

    from cotrain.grading import bounds, guards, latex

    guards.install_limits()
    latex.install_parser()
    # Its own reading of units would drop the t of "6 t"; units have been read in grading/quantities.py.
    plain = replace(LatexExtractionConfig().normalization_config, units=False)
    config = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=plain)]

    def parse_answer(text: str) -> list[Any]:
        text = _TINY_DECIMAL.sub(lambda match: f"\\frac{{{int(match[1])}}}{{1{'0' * len(match[1])}}}", text)
        return parse("\\boxed{" + text + "}", config, fallback_mode="no_fallback", parsing_timeout=None)

    @functools.lru_cache(maxsize=CACHED_GOLDS)
    def read_gold(text: str) -> tuple[Any, ...] | str:
        """Return the meanings that a gold answer may have, or the reason why it cannot be read."""
        try:
            return tuple(parse_answer(text))
        except guards.TooLarge:
            return "too large"
        except MemoryError:
            return "out of memory"
        except SYMPY_ERRORS:
            return "grader error"

    def is_same(golds: Sequence[Any], answers: Sequence[Any]) -> bool:
        return bool(
            verify(list(golds), list(answers), timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True)
        )

    def is_right(golds: Sequence[Any], answer: str) -> bool:
        answers = parse_answer(answer)
        if not answers:
            return False
        may_have_a_base = "_" in answer  # 17_{10} = 10001_2 states no falsehood
        if not may_have_a_base and any(map(bounds.states_falsehood, answers)):
            return False
        if bounds.certainly_different(golds, answers):
            return False
        is_equation_of_sum = isinstance(golds[0], Eq) and isinstance(golds[0].lhs, Add)  # x + y + z = 0, a plane
        if is_equation_of_sum and isinstance(answers[0], Expr):
            return False  # math-verify would take its right side, 0, for the same, as in x = 0
        if is_same(golds, answers):
            return True
        with contextlib.suppress(*SYMPY_ERRORS):  # raised for intervals and inequalities, which have no complex numbers
            if any(map(_has_letter_i, (*golds, *answers))):
                return is_same(_with_imaginary_unit(golds), _with_imaginary_unit(answers))
        return False

    def judge(gold: str, answer: str) -> Verdict:
        golds = read_gold(gold)
        if isinstance(golds, str):
            return None, golds
        if not golds:
            return None, "gold not readable"
        try:
            return is_right(golds, answer), None
        except guards.TooLarge:
            return None, "too large"
        except MemoryError:
            return None, "out of memory"
        except SYMPY_ERRORS:
            return None, "grader error"

    return read_gold, judge


def _has_letter_i(parsed: Any) -> bool:
    """Whether an expression of ``parse`` has the letter i, and is no equation i = …, where i is a current."""
    has_i = any(map(_is_i, getattr(parsed, "free_symbols", ())))
    return has_i and not _is_i(getattr(parsed, "lhs", None))


def _is_i(symbol: Any) -> bool:
    return str(symbol) == "i"


def _with_imaginary_unit(parsed: Sequence[Any]) -> list[Any]:
    """The results of ``parse`` with √−1 for the letter i, which math-verify takes for a variable: (1 + i)^2 is 2i. It
    takes all letters for real numbers; here they may be complex."""
    from sympy import I, Symbol

    results = []
    for result in parsed:
        if hasattr(result, "xreplace"):
            letters = {}
            for symbol in result.free_symbols:
                letters[symbol] = I if _is_i(symbol) else Symbol(symbol.name)
            result = result.xreplace(letters)
        results.append(result)
    return results
