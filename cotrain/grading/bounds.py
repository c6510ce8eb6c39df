r"""Is an answer certainly not the gold one? Interval arithmetic at a point says so in a millisecond, without algebra.

Two expressions that differ at one point are different. Here each symbol gets a fixed positive value, and each
expression an interval that certainly holds its value then (mpmath's intervals, 80 bits). Where the two intervals are
apart, the answer is wrong. So ``(x+y+z+1)^{200}``, ``\frac{7^{10000000}}{3^{10000000}}`` and thirteen trigonometric
powers, which keep sympy busy for minutes, are distinguished from ``\frac{7}{2}`` at once, and most ordinary wrong
answers too.

Whatever has no interval here (sets, relations, matrices, integrals, percentages, complex numbers, numbers past
``LARGEST_LOG``) is left to math-verify: this never says that two answers are equal.

Left out: bisection of wide intervals, zeros of denominators, sums and products term by term.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from mpmath import iv, make_mpf
from sympy import Basic, Eq, Expr, Pow, Symbol
from sympy.core.function import UndefinedFunction
from sympy.functions.elementary.trigonometric import TrigonometricFunction

PRECISION = 80  # bits
APART = 1e-4  # answers that are nearer to one another are left to math-verify, which rounds decimals to six places
ROUNDED = 0.01  # relative difference of the sides of an equation up to which it may be true but for rounding
LARGEST_LOG = 1e12  # |log2| of a number that still has an interval
EXACT = 1000  # largest exponent of an exact power, and argument of an exact factorial
SCALES = (1.0, 7.0)  # the values of symbols are near these: two points, as expressions may be equal at one

_MAY_BE_NUMBERS = {"i", "j", "e"}  # symbols that may be meant as a number, the imaginary unit or Euler's


def certainly_different(golds: Sequence[Any], answers: Sequence[Any]) -> bool:
    """Whether no reading of the gold answer can equal any reading of the answer. Both are what math-verify's ``parse``
    returns."""
    return all(_are_apart(gold, answer) for gold in golds for answer in answers)


def states_falsehood(answer: Any) -> bool:
    """Whether an equation between numbers in an answer, as ``parse`` returns it, is certainly false, also if one side
    was rounded: 3 = 4. Equations with sines and the like may mean degrees, and are not looked at."""
    if not isinstance(answer, Basic):
        return False
    for equation in answer.atoms(Eq):
        is_of_numbers = not equation.free_symbols and not equation.has(TrigonometricFunction)
        if is_of_numbers and _are_apart(equation.lhs, equation.rhs, ROUNDED):
            return True
    return False


def _are_apart(gold: Any, answer: Any, relative: float = 0.0) -> bool:
    """Whether two expressions certainly differ at a point, by more than ``APART`` plus this part of their size."""
    if isinstance(answer, Eq) and not isinstance(gold, Eq):  # as math-verify takes them: "x = 3" is 3
        answer = answer.rhs
    elif isinstance(gold, Eq) and isinstance(gold.lhs, Symbol) and not isinstance(answer, Eq):
        gold = gold.rhs
    if (
        not isinstance(gold, Expr)
        or not isinstance(answer, Expr)
        or isinstance(gold, Symbol)
        or isinstance(answer, Symbol)
    ):
        return False

    precision = iv.prec
    iv.prec = PRECISION
    try:
        for scale in SCALES:
            reader = _IntervalReader(scale)
            gold_interval = reader.interval_of(gold)
            answer_interval = None if gold_interval is None else reader.interval_of(answer)
            if answer_interval is not None and _intervals_are_apart(gold_interval, answer_interval, relative):
                return True
            if not reader.has_symbols:
                return False  # another point would give the same
    except (ArithmeticError, RecursionError, TypeError, ValueError):  # by which mpmath says that there is no interval
        return False
    finally:
        iv.prec = precision
    return False


def _intervals_are_apart(one: Any, other: Any, relative: float) -> bool:
    """An interval of mpmath goes from ``.a`` to ``.b``."""
    least_distance = APART + relative * (abs(one).b + abs(other).b)
    return bool(one.a - other.b > least_distance or other.a - one.b > least_distance)


class _IntervalReader:
    """Intervals of expressions at one point; None where an expression has none here."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self.has_symbols = False  # True once an expression had a symbol

    def interval_of(self, node: Any) -> Any:
        """The interval of a sympy expression."""
        if node.is_Integer:
            return iv.mpf(node.p)
        if node.is_Rational:
            return iv.mpf(node.p) / node.q
        if node.is_Float:
            return iv.mpf(make_mpf(node._mpf_))
        class_name = type(node).__name__
        if class_name == "Pi":
            return iv.pi + 0  # + 0 makes an interval of the constant
        if class_name == "Exp1":
            return iv.exp(1)
        if node.is_Symbol:
            self.has_symbols = True
            return None if node.name in _MAY_BE_NUMBERS else self._symbol_value(node.name)
        is_named_by_answer = isinstance(type(node), UndefinedFunction)  # f(x), which may be called "sin"
        if is_named_by_answer or class_name not in _INTERVAL_FUNCTIONS:
            return None
        arguments = []
        for argument in node.args:
            interval = self.interval_of(argument)
            if interval is None:
                return None
            arguments.append(interval)
        return _INTERVAL_FUNCTIONS[class_name](*arguments)

    def _symbol_value(self, name: str) -> Any:
        """A number from half the scale to twice the scale, always the same for a name."""
        digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=4).digest()
        share = int.from_bytes(digest, "big") / 2**32
        return iv.mpf(self._scale * (0.5 + 1.5 * share))


# -- Functions of intervals. Each returns None where it has no interval.


def _sum(*parts: Any) -> Any:
    return sum(parts, iv.mpf(0))


def _product(*parts: Any) -> Any:
    return math.prod(parts, start=iv.mpf(1))


def _power(base: Any, exponent: Any) -> Any:
    whole = _as_integer(exponent)
    if whole is not None and abs(whole) <= EXACT:
        divides_by_zero = whole < 0 and 0 in base
        return None if divides_by_zero else base**whole
    if base.a > 0:
        return _exp(exponent * iv.log(base))
    if whole is not None and base.b < 0:
        value = _exp(exponent * iv.log(-base))
        return value if value is None or whole % 2 == 0 else -value
    return None


def _exp(value: Any) -> Any:
    return iv.exp(value) if abs(value).b < LARGEST_LOG else None


def _log(value: Any, base: Any = None) -> Any:
    if not value.a > 0 or (base is not None and not base.a > 0):
        return None
    return iv.log(value) if base is None else iv.log(value) / iv.log(base)


def _bounded_argument(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``function``, without an interval for arguments that are too large."""
    return lambda value: function(value) if abs(value).b < LARGEST_LOG else None


def _hyperbolic(function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A function of x from one of e^x and e^-x."""

    def on_interval(value: Any) -> Any:
        exp = _exp(value)
        return None if exp is None else function(exp, 1 / exp)

    return on_interval


def _rounding(function: Callable[[Any], int]) -> Callable[[Any], Any]:
    """A rounding function on intervals, both ends of which it has to round to the same."""

    def on_interval(value: Any) -> Any:
        if abs(value).b >= LARGEST_LOG or function(value.a) != function(value.b):
            return None
        return iv.mpf(function(value.a))

    return on_interval


def _factorial(value: Any) -> Any:
    n = _as_integer(value)
    if n is None or n < 0 or n > LARGEST_LOG / 64:  # log2(n!) < 64 n
        return None
    if n <= EXACT:
        return iv.mpf(math.factorial(n))
    # Stirling's formula with bounds (Robbins 1955).
    below = iv.mpf(1) / (12 * n + 1)
    above = iv.mpf(1) / (12 * n)
    return iv.sqrt(2 * iv.pi * n) * iv.exp(n * (iv.log(n) - 1) + iv.mpf([below.a, above.b]))


def _binomial(n: Any, k: Any) -> Any:
    total = _as_integer(n)
    chosen = _as_integer(k)
    if total is None or chosen is None or not 0 <= chosen <= total:
        return None
    of_all, of_chosen, of_others = (_factorial(iv.mpf(number)) for number in (total, chosen, total - chosen))
    if of_all is None or of_chosen is None or of_others is None:
        return None
    return of_all / (of_chosen * of_others)


def _as_integer(value: Any) -> int | None:
    """The integer that an interval consists of; None for any other interval."""
    low = value.a
    is_point = low == value.b and abs(low) < LARGEST_LOG
    return int(low) if is_point and low == int(low) else None


_INTERVAL_FUNCTIONS: dict[str, Callable[..., Any]] = {  # by the names of sympy's classes
    "Add": _sum,
    "Mul": _product,
    Pow.__name__: _power,
    "exp": _exp,
    "log": _log,
    "Abs": abs,
    "sin": _bounded_argument(iv.sin),
    "cos": _bounded_argument(iv.cos),
    "tan": _bounded_argument(lambda value: iv.sin(value) / iv.cos(value)),
    "cot": _bounded_argument(lambda value: iv.cos(value) / iv.sin(value)),
    "sec": _bounded_argument(lambda value: 1 / iv.cos(value)),
    "csc": _bounded_argument(lambda value: 1 / iv.sin(value)),
    "sinh": _hyperbolic(lambda up, down: (up - down) / 2),
    "cosh": _hyperbolic(lambda up, down: (up + down) / 2),
    "tanh": _hyperbolic(lambda up, down: (up - down) / (up + down)),
    "floor": _rounding(lambda end: math.floor(float(end))),
    "ceiling": _rounding(lambda end: math.ceil(float(end))),
    "factorial": _factorial,
    "binomial": _binomial,
}
