r"""Is an answer certainly not the gold one? Interval arithmetic at a point says so in a millisecond, without algebra.

Two expressions that differ at one point are different. Each is given an interval that certainly holds its value there
(mpmath's, 80 bits; symbols stand at fixed positive numbers), and where the two intervals are apart, the answer is
wrong. So ``(x+y+z+1)^{200}``, ``\frac{7^{10000000}}{3^{10000000}}`` and thirteen trigonometric powers, which keep sympy
busy for minutes, are distinguished from ``\frac{7}{2}`` at once, and most ordinary wrong answers too. Whatever has no
interval here (sets, relations, matrices, integrals, percentages, complex numbers, sizes past ``MOST``) is left to
math-verify: this never says that two answers are equal.

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
ROUNDED = 0.01  # most by which two numbers of an equation may differ
MOST = 1e12  # |log2| of a number that still has an interval
EXACT = 1000  # the largest argument of a factorial that is computed exactly
SCALES = (1.0, 7.0)  # symbols stand near these

_NOT_PLAIN = {"i", "j", "e"}  # symbols that may be meant as a number


def certainly_different(golds: Sequence[Any], answers: Sequence[Any]) -> bool:
    """Whether no reading of the gold answer can equal any reading of the answer. Both are what math-verify's ``parse``
    returns."""
    return all(_are_apart(gold, answer) for gold in golds for answer in answers)


def states_falsehood(answer: Any) -> bool:
    """Whether an equation in an answer, as ``parse`` returns it, has numbers on both sides of which one is certainly
    not the other, be it rounded: 3 = 4. Sines may be of degrees, and state nothing."""
    return isinstance(answer, Basic) and any(
        not atom.free_symbols and not atom.has(TrigonometricFunction) and _are_apart(atom.lhs, atom.rhs, ROUNDED)
        for atom in answer.atoms(Eq)
    )


def _are_apart(gold: Any, answer: Any, part: float = 0.0) -> bool:
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
            reading = _IntervalReader(scale)
            a = reading.interval_of(gold)
            b = None if a is None else reading.interval_of(answer)
            if a is not None and b is not None:
                near = APART + part * (abs(a).b + abs(b).b)
                if a.a - b.b > near or b.a - a.b > near:
                    return True
            if not reading.symbols:
                return False
    except (ArithmeticError, RecursionError, TypeError, ValueError):  # no interval: mpmath's word for it
        return False
    finally:
        iv.prec = precision
    return False


class _IntervalReader:
    """Intervals of expressions; None where there is none."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self.symbols = False  # True once there was a symbol

    def interval_of(self, node: Any) -> Any:
        if node.is_Integer:
            return iv.mpf(node.p)
        if node.is_Rational:
            return iv.mpf(node.p) / node.q
        if node.is_Float:
            return iv.mpf(make_mpf(node._mpf_))
        kind = type(node).__name__
        if kind in ("Pi", "Exp1"):
            return iv.pi + 0 if kind == "Pi" else iv.exp(1)
        if node.is_Symbol:
            self.symbols = True
            return None if node.name in _NOT_PLAIN else self._symbol_value(node.name)
        if isinstance(type(node), UndefinedFunction) or kind not in _KINDS:
            return None
        values = []
        for part in node.args:
            if (value := self.interval_of(part)) is None:
                return None
            values.append(value)
        return _KINDS[kind](*values)

    def _symbol_value(self, name: str) -> Any:
        """A number between half of the scale and twice of it, the same for a name always."""
        hashed = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=4).digest(), "big")
        return iv.mpf(self._scale * (0.5 + 1.5 * hashed / 2**32))


def _sum(*parts: Any) -> Any:
    return sum(parts, iv.mpf(0))


def _product(*parts: Any) -> Any:
    return math.prod(parts, start=iv.mpf(1))


def _power(base: Any, exponent: Any) -> Any:
    power = _as_integer(exponent)
    if power is not None and abs(power) <= EXACT:
        return base**power if power >= 0 or 0 not in base else None
    if base.a > 0:
        return _exp(exponent * iv.log(base))
    if power is not None and base.b < 0:
        value = _exp(exponent * iv.log(-base))
        return value if value is None or power % 2 == 0 else -value
    return None


def _exp(value: Any) -> Any:
    return iv.exp(value) if abs(value).b < MOST else None


def _log(value: Any, base: Any = None) -> Any:
    if not value.a > 0 or (base is not None and not base.a > 0):
        return None
    return iv.log(value) if base is None else iv.log(value) / iv.log(base)


def _bounded_argument(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: function(value) if abs(value).b < MOST else None


def _hyperbolic(function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """The intervals of e^x and e^-x."""

    def on_interval(value: Any) -> Any:
        up = _exp(value)
        return None if up is None else function(up, 1 / up)

    return on_interval


def _rounding(function: Callable[[Any], int]) -> Callable[[Any], Any]:
    def on_interval(value: Any) -> Any:
        if abs(value).b >= MOST or function(value.a) != function(value.b):
            return None
        return iv.mpf(function(value.a))

    return on_interval


def _factorial(value: Any) -> Any:
    n = _as_integer(value)
    if n is None or n < 0 or n > MOST / 64:
        return None
    if n <= EXACT:
        return iv.mpf(math.factorial(n))
    # Stirling's formula with bounds (Robbins 1955).
    below = iv.mpf(1) / (12 * n + 1)
    above = iv.mpf(1) / (12 * n)
    return iv.sqrt(2 * iv.pi * n) * iv.exp(n * (iv.log(n) - 1) + iv.mpf([below.a, above.b]))


def _binomial(n: Any, k: Any) -> Any:
    top = _as_integer(n)
    chosen = _as_integer(k)
    if top is None or chosen is None or not 0 <= chosen <= top:
        return None
    parts = [_factorial(iv.mpf(part)) for part in (top, chosen, top - chosen)]
    return None if None in parts else parts[0] / (parts[1] * parts[2])


def _as_integer(value: Any) -> int | None:
    """The integer that an interval is, if it is one point."""
    low = value.a
    return int(low) if low == value.b and abs(low) < MOST and low == int(low) else None


_KINDS: dict[str, Callable[..., Any]] = {
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
