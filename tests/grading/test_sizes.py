from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.core.types import Grade
from cotrain.grading.pool import GradingPool
from cotrain.grading.sizes import too_large


@pytest.mark.parametrize(
    "text",
    [
        *(
            "9^{9^{9^9}}",
            "9^9^9",
            "7^{40000000}",
            "(10^9)!",
            "100000!",
            "2^{10 \\cdot 10^{7}}",
            "\\left(10^{6}\\right)^{10^6}",
        ),
        *("\\sum_{n=1}^{10^9} \\frac{1}{n^2}", "\\prod_{k=1}^{1000000} k", "(" * 3000 + "1" + ")" * 3000),
        *("\\frac{1}{9^{9^9}}", "x + 10!!", "\\frac{" * 400 + "1" + "}{2}" * 400),
    ],
)
def test_bombs_are_seen_without_a_process(text):
    if text == "x + 10!!":
        assert too_large(text)  # 3628800!
        return
    assert too_large(text)
    with GradingPool() as pool:
        assert pool.grade("6", text) == Grade(value=None, reason="too large")
        assert pool._idle.get() is None  # nothing was started
        pool._idle.put(None)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "2^{2023}",
            "10^{100}",
            "x^{100000000}",
            "100!",
            "\\frac{2^{100}-1}{3}",
            "2^{-3}",
            "1^{10^9}",
            "0.5^{10^9}",
            "n!",
        ),
        *(
            "\\sum_{n=1}^{100} n^2",
            "\\sum_{n=1}^{\\infty} \\frac{1}{n^2}",
            "3 \\times 10^8",
            "5}{^",
            "^",
            "!",
            "^^!",
            "2^",
            "((1)",
        ),
    ],
)
def test_what_can_be_computed_is_left_alone(text):
    assert not too_large(text)


@given(text=st.text(alphabet="019.^!(){}[]x\\sumcdot \u0663", max_size=60))
def test_any_text_is_read(text):
    assert too_large(text) in (True, False)


def test_time_is_linear():
    start = time.process_time()
    too_large("2^(" * 50 + "3!" * 4900)
    for deep in ("2^" * 950 + "2", "x^" * 950 + "x", "(" * 99 + "2^" * 600 + "2" + ")" * 99, "(2^2^2^2^" * 90 + "2"):
        assert too_large(deep)  # no RecursionError
    too_large("(1)" * 3300)
    assert time.process_time() - start < 0.5
