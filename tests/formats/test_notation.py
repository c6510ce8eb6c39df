"""Whatever an answer is written in becomes TeX with one reading."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.grading.notation import has_adjacent_numbers, plain_signs, write_tex


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "tex"),
    [
        # signs of Unicode
        ("2√3", "2\\sqrt{3}"),
        ("∛(x+1)", "\\sqrt[3]{x+1}"),
        ("³√8", "\\sqrt[3]{8}"),
        ("x²+x⁻¹", "x^{2}+x^{-1}"),
        ("a₁₂", "a_{12}"),
        ("2½", "\\frac{5}{2}"),
        ("⅓x", "\\frac{1}{3}x"),
        ("（1，－２）", "(1,-2)"),
        ("{−–—‒}", "{----}"),
        ("90°", "90^\\circ"),
        ("𝟒٢", "42"),
        ("\u200b4\ufeff2\u2060", "42"),
        ("(−∞, 3]", "(-\\infty , 3]"),
        ("3 × 10⁵", "3 \\times  10^{5}"),
        ("2θ∪Δ", "2\\theta \\cup \\Delta"),
        # plain text
        ("2*pi*r**2", "2\\cdot \\pi \\cdot r^{2}"),
        ("exp(-2*x)", "e^{-2\\cdot x}"),
        ("sqrt((x+1)/(x-1))", "\\sqrt{(x+1)/(x-1)}"),
        ("x^(1/2)", "x^{1/2}"),
        ("abs(x-1) <= 3", "|x-1| \\le  3"),
        ("(-inf, 3) U (5, oo)", "(-\\infty , 3) \\cup (5, \\infty )"),
        ("math.atan(2)", "\\arctan (2)"),
        ("\\text{pi sqrt}", "\\text{pi sqrt}"),
        ("a^* + b^{*}", "a^* + b^{*}"),
        # arguments
        ("\\dfrac12", "\\frac{1}{2}"),
        ("\\frac 3 8", "\\frac{3}{8}"),
        ("\\frac{\\sqrt6}2", "\\frac{\\sqrt{6}}{2}"),
        ("\\frac\\pi 2", "\\frac{\\pi}{2}"),
        ("\\sqrt[3]2", "\\sqrt[3]{2}"),
        ("\\sqrt12", "\\sqrt{12}"),
        ("10^-5", "10^{-5}"),
        ("\\log_28", "\\log_{2} 8"),
        ("2 \\left(\\frac{11}{2}\\right)", "2 \\cdot (\\frac{11}{2})"),
        # groups of digits
        ("10\\,000", "10000"),
        ("1\u202f000\u00a0000.5", "1000000.5"),
        ("-2~500.75", "-2500.75"),
        ("20,\\!000", "20000"),
        ("9{,}500", "9500"),
        ("0{,}5", "0,5"),
        ("\\frac{2\\,500}{1,000}", "\\frac{2500}{1000}"),
        ("2,500\\pi", "2500\\pi"),
        ("(100,200)", "(100, 200)"),
        ("(1 000,2e3)", "(1000, 2000)"),
        ("3.141 592", "3.141592"),
        ("12 345 6", "12 345 6"),
        ("12\n345", "12\n345"),
        # powers of ten
        ("1e-05", "0.00001"),
        ("-1.5E+3 m", "-1500 m"),
        ("6.02e23", "602000000000000000000000"),
        ("2/3e8", "2/300000000"),
        ("1e400", "{1 \\times 10^{400}}"),
        ("e-5", "e-5"),
        ("2e^{3}", "2e^{3}"),
        ("3x10^8", "3 \\times 10^{8}"),
        # mixed numbers and repeating decimals
        ("-2 1/2", "-\\frac{5}{2}"),
        ("2\\frac12 x", "\\frac{5}{2} x"),
        ("2 3/2", "2 3/2"),
        ("2.5 1/2", "2.5 1/2"),
        ("2-1/2", "2-1/2"),
        ("0.\\overline{36}", "\\frac{4}{11}"),
        ("0.1\\bar6", "\\frac{1}{6}"),
        ("-1.(3)", "-\\frac{4}{3}"),
        ("0.\\dot{1}4285\\dot{7}", "\\frac{1}{7}"),
        ("0.3\u0305", "\\frac{1}{3}"),
        ("0.1666...", "\\frac{1}{6}"),
        ("3.14159...", "3.14159..."),
    ],
)
def test_one_reading(text, tex):
    assert write_tex(text) == tex


@pytest.mark.parametrize(
    ("text", "adjacent"),
    [
        *((text, True) for text in ("5 7", "1 2 3", "5\\,7", "5\n7", "12 345 6", "2 3/2", "2.5 1/2", "1/2 1/3")),
        *((text, True) for text in ("\\frac12 \\frac13", "2\\frac32", "\\frac12 3", "5\\!7", "3 .5")),
        *((text, False) for text in ("10 000", "2 1/2", "5 - 7", "5 x 7", "2 \\cdot 3", "\\log_2 8", "\\sin^2 3")),
        *((text, False) for text in ("x_1 2", "(5, 7)", "5 & 7 \\\\ 8", "2 \\sqrt 3", "2 (3)", "\\frac 1 2")),
    ],
)
def test_numbers_beside_each_other(text, adjacent):
    assert has_adjacent_numbers(write_tex(text)) is adjacent


@pytest.mark.whole
@given(st.text(max_size=60))
def test_every_text_is_written(text):
    assert plain_signs(plain_signs(text)) == plain_signs(text)
    write_tex(text)


@given(st.text(alphabet="0123456789 .,eE^_\\{}()/*+-|!xfracsqt√²½", max_size=40))
def test_every_odd_formula_is_written(text):
    has_adjacent_numbers(write_tex(text))


@pytest.mark.whole
def test_time_is_linear_in_the_text():
    pieces = (
        "1 234",
        "\\frac{",
        "\\frac{1}",
        "\\sqrt{",
        "sqrt(",
        "**",
        "0.",
        "1e5",
        "2^",
        "_",
        "\\!",
        "{,}",
        "1,234",
        "~",
    )
    pieces += ("0.3\\dot{3}", "exp(", "1/2 ", "\\text{", "²", "√", ".333", "a ", "$", "(", "1 ", "\\frac1", "0.1(")
    for piece in pieces:
        text = piece * (10_000 // len(piece))
        took = min(_time_of(text) for _ in range(2))
        assert took < 1.0, piece


def _time_of(text: str) -> float:
    began = time.process_time()
    has_adjacent_numbers(write_tex(text))
    return time.process_time() - began
