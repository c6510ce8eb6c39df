"""Answers that are certainly not the gold one, told by intervals: never where they might be equal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import iv
from sympy import (
    Abs,
    Add,
    Eq,
    FiniteSet,
    Float,
    Function,
    Integer,
    Mul,
    Pow,
    Rational,
    Symbol,
    UnevaluatedExpr,
    binomial,
    ceiling,
    cos,
    cosh,
    cot,
    csc,
    exp,
    factorial,
    floor,
    log,
    pi,
    sec,
    sin,
    sinh,
    tan,
    tanh,
)

from cotrain.grading.bounds import EXACT, _IntervalReader, _power, certainly_different

x, y = Symbol("x", real=True), Symbol("y", real=True)
HALF = Rational(7, 2)


def power(base, exponent):
    return Pow(base, exponent, evaluate=False)


def test_hand_picked_pairs():
    ten = power(Integer(10), Integer(7))
    for gold, answer in (
        (HALF, Rational(10, 3)),
        (HALF, power(Integer(3), ten)),  # three and a half million digits
        (HALF, Mul(power(Integer(7), ten), power(power(Integer(3), ten), -1), evaluate=False)),
        (HALF, factorial(Add(ten, 3, evaluate=False), evaluate=False)),
        (HALF, binomial(ten, power(Integer(10), Integer(6)), evaluate=False)),
        (HALF, power(Add(x, y, 1, evaluate=False), Integer(200))),  # no constant is a polynomial of x and y
        (2 * x + 1, x + 1),
        (HALF, Eq(x, 3, evaluate=False)),  # math-verify takes the right side
        (Eq(x, 3, evaluate=False), HALF),
        (Float("3.14"), pi),
        (power(Integer(2), Rational(1, 2)), Float("1.5")),
        (exp(1), pi),
    ):
        assert certainly_different([gold], [answer]), (gold, answer)
    assert certainly_different([HALF, Integer(4)], [Integer(3), -2 * x])
    assert not certainly_different([HALF, Integer(4)], [Integer(3), Integer(4)])  # one of the readings is equal


def test_what_may_be_equal_is_left_to_algebra():
    for gold, answer in (
        (HALF, Float("3.5")),
        (Rational(1, 3), Float("0.33333")),  # rounding is not decided here
        (Integer(1), Add(power(sin(x), Integer(2)), power(cos(x), Integer(2)), evaluate=False)),
        (x**2 - 1, Mul(x - 1, x + 1, evaluate=False)),
        (HALF, Mul(350, UnevaluatedExpr(Rational(1, 100)), evaluate=False)),  # a percentage
        (HALF, FiniteSet(HALF, 4)),
        (HALF, x > 3),
        (HALF, Symbol("answer")),
        (HALF, Function("f")(x)),
        (HALF, 3 + Symbol("i")),  # perhaps not a variable
        (HALF, power(Integer(-8), Rational(1, 3))),  # complex, or −2
        (HALF, log(Integer(-1), evaluate=False)),
        (HALF, exp(exp(exp(Integer(40), evaluate=False), evaluate=False), evaluate=False)),  # past every size
        (Integer(0), power(Integer(0), Integer(-1))),
        (HALF, Mul(Integer(0), power(Add(x, -x, evaluate=False), Integer(-1)), evaluate=False)),
        (HALF, "no expression"),
        (Eq(x, 1, evaluate=False), Eq(x, 2, evaluate=False)),
        (10**50 + HALF - 10**50, Add(Integer(10) ** 50, HALF, -(Integer(10) ** 50), evaluate=False)),
        (HALF, Add(power(Integer(3), Rational(1, 2)), HALF, -power(Integer(3), Rational(1, 2)), evaluate=False)),
    ):
        assert not certainly_different([gold], [answer]), (gold, answer)


def leaves():
    numbers = st.integers(-9, 9).map(Integer) | st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(
        lambda t: Rational(*t)
    )
    return numbers | st.sampled_from([x, y, pi])


def grown(inner):
    pairs = st.tuples(inner, inner)
    return (
        pairs.map(lambda t: Add(*t, evaluate=False))
        | pairs.map(lambda t: Mul(*t, evaluate=False))
        | st.tuples(inner, st.integers(-3, 5)).map(lambda t: power(t[0], Integer(t[1])))
        | st.tuples(st.sampled_from([sin, cos, exp, Abs]), inner).map(lambda t: t[0](t[1], evaluate=False))
    )


@pytest.mark.whole
@settings(max_examples=200, deadline=None)
@given(tree=st.recursive(leaves(), grown, max_leaves=8))
def test_an_expression_differs_from_no_form_of_itself(tree):
    forms = [tree, Add(tree, 0, evaluate=False), Mul(tree, 1, evaluate=False), Add(tree, 3, -3, evaluate=False)]
    try:
        forms.append(tree.doit())
    except (ArithmeticError, TypeError, ValueError, RecursionError, AttributeError):
        return
    for form in forms:
        assert not certainly_different([tree], [form]), (tree, form)


@pytest.mark.parametrize(
    "function", [sin, cos, tan, cot, sec, csc, sinh, cosh, tanh, exp, log, floor, ceiling, Abs, factorial]
)
def test_intervals_hold_the_value(function):
    for argument in (Integer(3), Rational(7, 3), Integer(20)):
        if function is factorial and not argument.is_Integer:
            continue
        found = _IntervalReader(1.0).interval_of(function(argument, evaluate=False))
        expected = iv.mpf(str(function(argument).evalf(40)))
        assert found.a <= expected.b and expected.a <= found.b
        assert found.delta < 1e-12 * max(1, abs(float(found.b)))


def test_a_large_power_of_a_negative_number_has_the_sign_of_its_parity():
    """Beyond EXACT by a logarithm, which has no sign."""
    negative = iv.mpf([-1.5, -1.25])
    for exponent in (EXACT + 4, EXACT + 5):
        value = _power(negative, iv.mpf(exponent))
        assert (value.a > 0) if exponent % 2 == 0 else (value.b < 0)


def test_large_factorials_by_stirlings_bounds():
    for n in (1001, 5000, 100_000):
        found = _IntervalReader(1.0).interval_of(factorial(Integer(n), evaluate=False))
        exact = iv.log(iv.mpf(math.factorial(n)))
        assert iv.log(found).a <= exact.b and exact.a <= iv.log(found).b
        assert iv.log(found).delta < 1e-6
