"""What is refused inside of the process that compares mathematics, and that it reads as math-verify does."""

from __future__ import annotations

import importlib
import time

import pytest

READER = importlib.import_module("latex2sympy2_extended.latex2sympy2")._Latex2Sympy
FULLY = READER.parse  # before anything is installed


def fully(text):
    return FULLY(READER(is_real=True), text)


@pytest.fixture(scope="module")
def judge():
    from cotrain.grading.mathematics import load_mathematics

    return load_mathematics().judge


LARGE = [
    "\\lfloor \\pi \\cdot 10^{10^7} \\rfloor",
    "\\gcd(10^{10^7}, 3^{10^7})",
    "\\sin(10^{10^6})",
    "\\sum_{n=1}^{10^7} \\frac{1}{n}",
    "\\sum_{k=0}^{5000} \\binom{5000}{k}",
    "\\prod_{k=1}^{99999} (k^2+1)",
    "\\Gamma(10000000)",
    "7^{7^{7^{7}}} \\mod 1000",
    "\\binom{20000000}{10000000}",
    "e^{e^{e^{e^{13}}}}",
    "(2+3i)^{1000000}",
    "\\{7^{10^8}, 1\\}",
    "x > 7^{10^8}",
]


@pytest.mark.whole
@pytest.mark.parametrize("answer", LARGE)
def test_numbers_too_large_to_compute_cost_no_deadline(judge, answer):
    start = time.process_time()
    assert judge(
        "\\{\\frac{7}{2}, 1\\}" if "\\{" in answer else "x > 3" if ">" in answer else "\\frac{7}{2}", answer
    ) == (
        None,
        "too large",
    )
    assert time.process_time() - start < 1.5


@pytest.mark.whole
@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("2^{100}", "4^{50}", True),
        ("10^{1000}", "100^{500}", True),
        ("\\binom{100}{3}", "161700", True),
        ("20!", "2432902008176640000", True),
        ("5050", "\\sum_{k=1}^{100} k", True),
        ("120", "\\prod_{k=1}^{5} k", True),
        ("\\frac{1}{3}", "\\int_0^1 x^2 dx", True),
        ("(x+1)^{10}", "x^{10}+10x^9+45x^8+120x^7+210x^6+252x^5+210x^4+120x^3+45x^2+10x+1", True),
        ("\\frac{7}{2}", "(x+y+z+1)^{200}", False),
        ("\\frac{7}{2}", "\\frac{x^{1000000}-1}{x-1}", False),
        ("\\frac{7}{2}", "\\left(3 \\cdot 3\\right)^{10^8}", False),
        ("\\sqrt{2}+\\sqrt{3}", "\\sqrt{5+2\\sqrt{6}}", True),
        ("x^2-1", "(x-1)(x+1)", True),
        ("\\cos 2x", "1-2\\sin^2 x", True),
        ("|x|", "\\sqrt{x^2}", True),
    ],
)
def test_what_can_be_computed_is_compared_as_before(judge, gold, answer, value):
    assert judge(gold, answer) == (value, None)


TEXTS = [
    "\\frac{7}{2}",
    "7x^2-11x+17",
    "4x_{1}-1",
    "(x^2-1)",
    "x^{2}x^{3}",
    "C_1 e^{t}+C_2 x^2",
    "\\omega_{n}^{2} e^{-\\zeta t}",
    "x_1+x_2",
    "x_1^2+x_2^2",
    "x^{2}_{1}",
    "x^y_1",
    "2^{x_1}",
    "x^{y_1}",
    "\\alpha_n+1",
    "x^{2}^{3}",
    "-x^2",
    "x!-1",
    "x'-1",
    "f(x)-1",
    "\\sqrt{x^2-1}",
    "\\frac{x^2-1}{2}",
    "\\pi^2-1",
    "{x}^2+1",
    "((x))",
    "(((x^2)))",
    "(3, 4)",
    "(-\\infty,3)\\cup[4,5)",
    "\\{1,2\\}",
    "1,2,3",
    "x=3",
    "x^2+y^2=1",
    "1 \\leq x<5",
    "x \\in (0,1)",
    "|x-1|",
    "5!",
    "\\binom{5}{2}",
    "\\int_0^1 x^2 dx",
    "\\int x dx",
    "\\int_0^\\pi \\sin x \\, dx",
    "\\lim_{x\\to 0}\\frac{\\sin x}{x}",
    "\\sum_{k=1}^{10} k^2",
    "\\prod_{k=1}^{5} k",
    "\\log_2 8",
    "\\log_{2}(x+1)",
    "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
    "\\sin^2 x",
    "\\cos 2\\theta",
    "3+4i",
    "10^\\circ",
    "\\pm\\sqrt{3}",
    "x=\\pm 2",
    "e^{x_1}-1",
    "\\frac{d}{dx} x^2",
    "2(x+1)(x-1)",
    "3x^{4}-2x^{3}+x^{2}-7",
    "a_{1}^{2}+b_{2}",
    "\\frac{x_{1}}{y^{2}}",
    "\\sqrt[3]{x^2}",
    "x^{-1}",
    "x^{\\frac{1}{2}}",
    "50\\%",
    "1.5x^2",
    "\\frac12 x^2",
    "\\frac",
    "x^",
    "x_",
    "^2",
    "x^{2",
    "(x",
    "x)",
    "+",
    "\\frac{1}{}",
    "x^{}_{}",
    "\\unknown{x}",
    "a=b=c",
    "x<y>z",
    "\\text{yes}",
    "A,B",
    "the answer is 7",
]


@pytest.mark.whole
@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_read_as_with_full_context(judge, monkeypatch, text):
    def read(parse):
        try:
            return parse(text)
        except Exception as error:  # noqa: BLE001  what no way reads
            return type(error)

    found = read(READER(is_real=True).parse)
    monkeypatch.setattr("cotrain.grading.latex.STEPS", 10**9)
    expected = read(fully)
    assert found == expected and str(found) == str(expected)


@pytest.mark.whole
def test_a_text_that_needs_too_many_steps_is_given_up(judge, monkeypatch):
    monkeypatch.setattr("cotrain.grading.latex.STEPS", 2000)
    assert judge("3", "+".join(f"|y-{k}|" for k in range(30))) == (None, "too large")


@pytest.mark.whole
def test_long_polynomials_are_read_in_linear_time(judge):
    start = time.process_time()
    READER(is_real=True).parse("+".join(f"{k}x^{{{k}}}" for k in range(100)))
    assert time.process_time() - start < 3.0  # with full context this takes ten times as long
