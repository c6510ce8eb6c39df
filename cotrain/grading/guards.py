r"""Limits inside sympy: calls that would compute for minutes are refused before they begin. ``install_limits`` sets
them in this process.

``sizes.py`` looks at an answer's text and knows a few shapes. This knows none: whichever way ``7^{40000000}``,
``\binom{10^7}{5}`` or the harmonic number of ten million come about (in a product, a sum, a matrix, a gcd), they come
about in one of the functions of ``_LIMITS``, which then raises ``TooLarge`` in microseconds, and nothing has to be
killed. It is a ``BaseException``: math-verify goes on after any other.

For a process that is of no other use (``grade_worker.py``). A function that this version of sympy does not have is
passed over: there the deadline is all. Left out: algebra that is slow without a large number, such as long polynomials
and integrals.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

from cotrain.grading.sizes import FACTORIAL, POWER

FEW = 2_000  # terms or factors that are computed one by one
EXPANDED = 5_000  # terms of an expanded power
BITS = 50_000  # precision of a constant such as π


class TooLarge(BaseException):
    """A number is too large to compute."""


def _power_too_large(base: Any, exponent: Any) -> bool:
    """Whether a power with a rational base and a rational exponent is too large."""
    if not exponent.is_Rational or max(abs(base.p), base.q) < 2:
        return False
    return abs(exponent.p) * math.log10(max(abs(base.p), base.q)) > POWER * exponent.q


def _more_than(limit: float) -> Callable[..., bool]:
    return lambda number, *_: _is_integer(number) and abs(int(number)) > limit


def _binomial_too_large(n: Any, k: Any) -> bool:
    if not _is_integer(k):
        return False
    chosen = min(int(k), int(n) - int(k)) if _is_integer(n) and int(n) >= int(k) >= 0 else abs(int(k))
    return chosen > FACTORIAL


def _too_many_factors(first: Any, count: Any) -> bool:
    """Whether a rising or falling factorial has too many factors."""
    return _is_integer(count) and abs(int(count)) > (FACTORIAL if _is_integer(first) else FEW)


def _expansion_too_large(variables: Any, power: Any) -> bool:
    """Whether a sum of m terms to the power n has too many coefficients: there are C(n + m − 1, m − 1)."""
    return int(power) > EXPANDED or math.comb(int(power) + int(variables) - 1, int(variables) - 1) > EXPANDED


def _symbolic_determinant(matrix: Any, *_: Any, **__: Any) -> bool:
    """Whether a symbolic determinant is too large: expanded, it has n! products."""
    return int(matrix.rows) > 5 and bool(matrix.free_symbols)


def _too_many_terms(*arguments: Any) -> bool:
    _, first, last = arguments[-1]
    return _is_integer(last - first) and int(last - first) > FEW


def _series_too_long(_: int, terms: int, *__: Any) -> bool:
    """Whether a series for e or π is too long. It has a term for at most eleven bits (e) or 47 (π)."""
    return terms > BITS / 8


def _too_precise(_: Any, bits: int, *__: Any) -> bool:
    return bits > BITS


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) or getattr(value, "is_Integer", False) is True


_FACTORIALS = "sympy.functions.combinatorial.factorials"
_NUMBERS = "sympy.functions.combinatorial.numbers"

# Where: module, class or "", function; whether its arguments (without a class) are too large.
_LIMITS: tuple[tuple[str, str, str, Callable[..., bool]], ...] = (
    ("sympy.core.numbers", "Rational", "_eval_power", _power_too_large),
    ("sympy.core.numbers", "Integer", "_eval_power", _power_too_large),
    (_FACTORIALS, "factorial", "eval", _more_than(FACTORIAL)),
    (_FACTORIALS, "factorial2", "eval", _more_than(FACTORIAL)),
    (_FACTORIALS, "subfactorial", "eval", _more_than(FACTORIAL)),
    (_FACTORIALS, "binomial", "eval", _binomial_too_large),
    (_FACTORIALS, "RisingFactorial", "eval", _too_many_factors),
    (_FACTORIALS, "FallingFactorial", "eval", _too_many_factors),
    (_NUMBERS, "harmonic", "eval", _more_than(FEW)),
    (_NUMBERS, "bernoulli", "eval", _more_than(FEW)),
    (_NUMBERS, "fibonacci", "eval", _more_than(POWER)),
    ("sympy.functions.special.gamma_functions", "gamma", "eval", _more_than(FACTORIAL)),
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
    """Put the limits in; a second call puts them in again, which does no harm."""
    for module, owner, name, large in _LIMITS:
        place: Any = importlib.import_module(module)
        if owner:
            place = getattr(place, owner, None)
        function = vars(place).get(name) if place is not None else None
        if isinstance(function, classmethod):
            setattr(place, name, classmethod(_with_limit(function.__func__, large, 1)))
        elif callable(function):
            setattr(place, name, _with_limit(function, large, 0))


def _with_limit(function: Callable[..., Any], large: Callable[..., bool], skip: int) -> Callable[..., Any]:
    """``function``, which refuses what is large by its arguments after the first ``skip``."""

    @functools.wraps(function)
    def refuse_or_call(*arguments: Any, **settings: Any) -> Any:
        if large(*arguments[skip:], **settings):
            raise TooLarge
        return function(*arguments, **settings)

    return refuse_or_call
