"""Tests that put `map` around the answer were passed by an answer that raises StopIteration."""

from __future__ import annotations

import pytest

from cotrain.core.types import Grade

STOPS = "def square(x):\n    raise StopIteration\n"
GOOD = "def square(x):\n    return x * x\n"
COUNTS = "def square(x):\n    return iter(range(x))\n"
TESTS = [
    "assert all(map(lambda x: square(x) == x * x, range(5)))",
    "assert all(a == b for a, b in zip(map(square, range(5)), (0, 1, 4, 9, 16)))",
    "assert not [x for x in map(square, [2]) if x != 4]",
    "for x in map(square, [2]):\n    assert x == 4",
]


@pytest.mark.parametrize("tests", TESTS)
def test_it_ends_no_iteration_of_a_test(sandbox, tests):
    assert sandbox.ask(STOPS, tests, GOOD) == Grade(value=False, reason="RuntimeError")
    assert sandbox.ask(GOOD, tests, GOOD) == Grade(value=True)


def test_an_iterator_of_the_answer_still_ends(sandbox):
    tests = "one = square(2)\nassert next(one) == 0 and next(one) == 1 and next(one, None) is None and not [*square(0)]"
    assert sandbox.ask(COUNTS, tests, COUNTS) == Grade(value=True)
