r"""Limits inside sympy: calls that would compute for minutes are refused before they begin. ``install_limits`` sets
them in this process.

``sizes.py`` knows a few shapes by an answer's text. Here the shape does not matter: wherever ``7^{40000000}``,
``\binom{10^7}{5}`` or the harmonic number of ten million comes up (in a product, a sum, a matrix, a gcd), one of the
functions of ``_LIMITS`` computes it. With its limit it raises ``TooLarge`` in microseconds, and nothing has to be
killed. ``TooLarge`` is a ``BaseException``, as math-verify catches any other and goes on.

Only for processes that do nothing else (``grade_worker.py``), as sympy is changed for the whole process. A function
that this version of sympy does not have gets no limit; there only the deadline helps.

Left out: algebra that is slow without a large number, such as long polynomials and integrals.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

from cotrain.grading.sizes import LARGEST_FACTORIAL, MOST_DIGITS

MOST_ONE_BY_ONE = 2_000  # terms or factors that are computed one by one
MOST_EXPANDED = 5_000  # terms of an expanded power
MOST_BITS = 50_000  # precision of a constant such as π


class TooLarge(BaseException):
    """A number is too large to compute."""


def _power_too_large(base: Any, exponent: Any) -> bool:
    """Whether a power has too many digits: (p/q)^(n/m) has n/m · log10(max(p, q)) above or below the line."""
    larger_part = max(abs(base.p), base.q)
    if not exponent.is_Rational or larger_part < 2:
        return False
    return abs(exponent.p) * math.log10(larger_part) > MOST_DIGITS * exponent.q


def _more_than(limit: float) -> Callable[..., bool]:
    """A check of the first argument."""
    return lambda number, *_: _is_integer(number) and abs(int(number)) > limit


def _binomial_too_large(n: Any, k: Any) -> bool:
    """Whether C(n, k), a quotient of products of k factors, has too many; C(n, n − k) is the same."""
    if not _is_integer(k):
        return False
    has_complement = _is_integer(n) and int(n) >= int(k) >= 0
    n_factors = min(int(k), int(n) - int(k)) if has_complement else abs(int(k))
    return n_factors > LARGEST_FACTORIAL


def _too_many_factors(first: Any, count: Any) -> bool:
    """Whether a rising or falling factorial has too many factors."""
    most = LARGEST_FACTORIAL if _is_integer(first) else MOST_ONE_BY_ONE
    return _is_integer(count) and abs(int(count)) > most


def _expansion_too_large(terms: Any, power: Any) -> bool:
    """Whether a sum of m terms to the power n has too many coefficients: there are C(n + m − 1, m − 1)."""
    m = int(terms)
    n = int(power)
    return n > MOST_EXPANDED or math.comb(n + m - 1, m - 1) > MOST_EXPANDED


def _symbolic_determinant(matrix: Any, *_: Any, **__: Any) -> bool:
    """Whether a symbolic determinant is too large: expanded, it has n! products."""
    return int(matrix.rows) > 5 and bool(matrix.free_symbols)


def _too_many_terms(*arguments: Any) -> bool:
    """Whether a sum or product has too many terms. Its last argument is (index, first, last)."""
    _, first, last = arguments[-1]
    return _is_integer(last - first) and int(last - first) > MOST_ONE_BY_ONE


def _series_too_long(_start: int, n_terms: int, *_: Any) -> bool:
    """Whether a series for e or π is too long. A term gives at most eleven bits of e, and 47 of π."""
    return n_terms > MOST_BITS / 8


def _too_precise(_number: Any, bits: int, *_: Any) -> bool:
    return bits > MOST_BITS


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) or getattr(value, "is_Integer", False) is True


_FACTORIALS = "sympy.functions.combinatorial.factorials"
_NUMBERS = "sympy.functions.combinatorial.numbers"

# Module; class, or "" for a function of the module; name of the function; a check of its arguments (those of a class
# method without the class), which is True where they are too large.
_LIMITS: tuple[tuple[str, str, str, Callable[..., bool]], ...] = (
    ("sympy.core.numbers", "Rational", "_eval_power", _power_too_large),
    ("sympy.core.numbers", "Integer", "_eval_power", _power_too_large),
    (_FACTORIALS, "factorial", "eval", _more_than(LARGEST_FACTORIAL)),
    (_FACTORIALS, "factorial2", "eval", _more_than(LARGEST_FACTORIAL)),
    (_FACTORIALS, "subfactorial", "eval", _more_than(LARGEST_FACTORIAL)),
    (_FACTORIALS, "binomial", "eval", _binomial_too_large),
    (_FACTORIALS, "RisingFactorial", "eval", _too_many_factors),
    (_FACTORIALS, "FallingFactorial", "eval", _too_many_factors),
    (_NUMBERS, "harmonic", "eval", _more_than(MOST_ONE_BY_ONE)),
    (_NUMBERS, "bernoulli", "eval", _more_than(MOST_ONE_BY_ONE)),
    (_NUMBERS, "fibonacci", "eval", _more_than(MOST_DIGITS)),
    ("sympy.functions.special.gamma_functions", "gamma", "eval", _more_than(LARGEST_FACTORIAL)),
    ("sympy.ntheory.multinomial", "", "multinomial_coefficients", _expansion_too_large),
    ("sympy.ntheory.multinomial", "", "binomial_coefficients", lambda power: _expansion_too_large(2, power)),
    ("sympy.matrices.matrixbase", "MatrixBase", "det", _symbolic_determinant),
    ("sympy.concrete.summations", "", "eval_sum_direct", _too_many_terms),
    ("sympy.concrete.products", "Product", "_eval_product_direct", _too_many_terms),
    ("mpmath.libmp.libelefun", "", "bspe", _series_too_long),
    ("mpmath.libmp.libelefun", "", "bs_chudnovsky", _series_too_long),
    ("mpmath.libmp.libelefun", "", "machin", _too_precise),
)


def install_limits() -> None:
    """Set the limits. A second call sets them once more around the first ones, which does no harm."""
    for module_name, class_name, name, is_too_large in _LIMITS:
        owner: Any = importlib.import_module(module_name)
        if class_name:
            owner = getattr(owner, class_name, None)
        function = vars(owner).get(name) if owner is not None else None
        if isinstance(function, classmethod):
            setattr(owner, name, classmethod(_with_limit(function.__func__, is_too_large, n_unchecked=1)))
        elif callable(function):
            setattr(owner, name, _with_limit(function, is_too_large, n_unchecked=0))


def _with_limit(
    function: Callable[..., Any], is_too_large: Callable[..., bool], n_unchecked: int
) -> Callable[..., Any]:
    """``function``, which raises TooLarge where its arguments are, without the first ``n_unchecked``."""

    @functools.wraps(function)
    def refuse_or_call(*arguments: Any, **keyword_arguments: Any) -> Any:
        if is_too_large(*arguments[n_unchecked:], **keyword_arguments):
            raise TooLarge
        return function(*arguments, **keyword_arguments)

    return refuse_or_call
