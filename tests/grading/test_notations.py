"""Answers by notation: what a notation means, in gold and answer. ``docs/grading.md`` has the table and the reasons."""

from __future__ import annotations

import time

import pytest

from cotrain.grading.compare_texts import read_answer, vote_key
from cotrain.grading.pool import GradingPool

SAME = {  # gold: answers that are right
    # powers of ten
    "3e8": ["3 \\times 10^8", "300000000", "3E+08", "3x10^8 m/s", "3*10**8", "3 × 10⁸"],
    "1e-05": ["0.00001", "10^{-5}", "1.0E-5", "\\frac{1}{100000}", "10**-5"],
    "-1.5e3": ["-1500", "-1,500.0"],
    "(1e3, 2)": ["(1000, 2)"],
    "1000": ["1e3", "1e3 m", "1 000", "10^3"],
    "e-5": ["e - 5", "-2.281718171540955"],
    # blanks between digits
    "10\\,000": ["10000", "10 000", "10,000", "10{,}000", "10~000 dollars"],
    "1000000": ["1\\ 000\\ 000", "1\u202f000\u00a0000", "1\\:000\\:000.0"],
    "\\frac{2500}{3}": ["\\frac{2\\,500}{3}", "833 1/3", "2 500/3"],
    "(1000,2)": ["(1\\,000, 2)"],
    "2.5": ["2 1/2", "2\\frac12", "2½", "1 ½ + 1", "2 1/2 cups"],
    "-\\frac54": ["-1 1/4", "-1\\,\\tfrac14"],
    "6": ["2(3)", "(2)(3)", "\\frac{6}{3}(3)", "2 \\cdot 3"],
    "30": ["3\\binom{5}{2}"],
    # Unicode
    "\\sqrt[3]{2}": ["∛2", "\\sqrt[3]2", "cbrt(2)", "2^(1/3)"],
    "x^{2}+1": ["x²+1", "x**2+1", "x^2 + 1"],
    "(-\\infty, 3]": ["(−∞, 3]", "（−∞，3]", "(-inf, 3]", "(-oo,3]"],
    "42": ["４２", "4\u200b2", "𝟒𝟐", "٤٢"],
    "-5": ["–5", "－5", "−5", "-5"],
    "90^\\circ": ["90°", "90 degrees", "90", "90^{\\circ}"],
    "\\{1,2\\}": ["｛2，1｝", "{1, 2}"],
    # plain text
    "2\\pi r": ["2*pi*r", "2 pi r", "2πr"],
    "\\frac{\\pi}{3}": ["pi/3", "π/3"],
    "e^{-x}": ["exp(-x)", "e^(-x)", "1/exp(x)"],
    "\\frac{\\sqrt{2}}{2}": ["1/sqrt(2)", "sqrt(2)/2", "√2/2"],
    "\\ln 2": ["ln(2)", "ln2"],
    "\\log_2 9": ["log2(9)", "log_2(9)"],
    "|x-1|": ["abs(x-1)"],
    "(-\\infty,3)\\cup(5,\\infty)": ["(-inf, 3) U (5, oo)"],
    "x\\le 3": ["x <= 3"],
    "2+3i": ["2+3*i", "2 + 3 i"],
    # repeating decimals
    "\\frac13": ["0.\\overline{3}", "0.\\bar3", "0.(3)", "0.333...", "0.3\u0305", "33.\\overline{3}\\%"],
    "0.1\\overline{6}": ["\\frac16", "1/6"],
    "0.\\overline{36}": ["\\frac{4}{11}"],
    # wrapping
    "18": ["**18**", "`18`", "18,", "$18$ dollars", "USD 18", "18 dollars per day", "\\approx 18", "= 18", "'18'"],
    "60": ["5 dozen", "5\\text{ dozen}", "5 dozen eggs", "5 dozens", "3 score"],
    "5000000": ["5 million", "$5 million", "5\\text{ million}", "5 million people"],
    "y''+y=0": ["y'' + y = 0", "y^{\\prime\\prime}+y=0"],
    "17": ["The answer is 17", "Answer: $17$.", "\\underline{17}", "\\mathbf{17}", "{17}", "\\textcolor{red}{17}"],
    "B": [
        "B)",
        "(B)",
        "**B**",
        "\\textbf{(B)}",
        "B. four",
        "Option B",
        "B. A cat",
        "(B) P(A) = 1/2",
        "B. I, II and III",
    ],
    "1, 2": ["\\boxed{1} and \\boxed{2}", "$\\boxed{1}$, $\\boxed{2}$", "(1,2)"],
    "6th": ["6", "6^{\\text{th}}"],
    # units and bases
    "2 hours": ["2", "120 minutes", "2 hrs", "7200 s"],
    "5 cm": ["5", "5cm", "0.05 m", "5 centimeters", "5\\text{ cm}"],
    "10\\pi\\text{ cm}": ["10\\pi", "10\\pi cm", "100\\pi\\text{ mm}"],
    "864 \\mbox{ inches}^2": ["864\\text{ square inches}", "6 square feet"],
    "50 cents": ["$0.50", "50"],
    "36 km/h": ["10 m/s", "36 kilometers per hour"],
    "9 (gold stickers)": ["9 stickers", "9", "9 pieces"],
    "6m": ["6 m", "6*m"],
    "Mrs. Doyle's class": ["mrs. Doyle's class.", "**Mrs Doyle's Class**"],
    "C_{1} \\sin (t)": ["C_1*sin(t)"],
    "\\sin (2 t)": ["\\sin(2t)", "sin(2*t)"],
    "1010_2": ["1010", "1010_{\\text{two}}", "1010 base 2", "1010₂"],
    "12": ["12_{10}", "12 (base 10)"],
    "5 \\text{ units}^2": ["5", "5 square units", "5 units^2"],
    "1 m/s": ["1\\,\\frac{\\text{m}}{\\text{s}}", "1 m·s⁻¹", "1\\ \\mathrm{m\\,s^{-1}}"],
    "9.8 m/s^2": ["9.8\\ \\mathrm{m/s^2}", "9.8\\,\\text{m/s}^{2}"],
    "€5": ["5 €", "5€"],
    "$18 per hour": ["$18/hour", "18 dollars / hour", "18"],
    "2.5 hours": ["2.5h", "150 min"],
    "5m": ["5 meters", "5 m"],
    # more separators, scripts and commands
    "1234567": ["1.234.567", "1_234_567", "1{\\,}234{\\,}567", "1\\thinspace 234\\thinspace 567", "1'234'567"],
    "a^{b}": ["aᵇ"],
    "a_i": ["aᵢ"],
    "0.5": ["¹⁄₂", "¹/₂"],
    "café": ["cafe\u0301", "CAFÉ"],
    "yes": ["YES", "Yes."],
    "\\emptyset": ["\\varnothing", "∅", "{}"],
    "120": ["{10 \\choose 3}", "\\boxed {120}", "\\fbox{120}", "the answer would be 120"],
    "\\begin{pmatrix}1\\\\2\\end{pmatrix}": ["\\begin{bmatrix} 1 \\\\[2pt] 2 \\end{bmatrix}"],
    "x=1,y=2": ["\\begin{cases}x=1\\\\y=2\\end{cases}", "\\begin{aligned}x&=1\\\\y&=2\\end{aligned}"],
    "43": ["\\begin{equation}43\\end{equation}", "\\begin{aligned}x&=40+3\\\\&=43\\end{aligned}"],
    "[0,\\infty)": ["x \\ge 0", "x >= 0"],
    "2\\sqrt{2}": ["2^1.5", "2**1.5", "8**0.5"],
    "\\langle 1,2\\rangle": ["(1,2)", "⟨1, 2⟩"],
    "\\frac{x^2}{2}+C": ["\\frac12x^2+\\text{C}"],
    "5 cm, 6 cm": ["5, 6", "6 cm and 5 cm"],
    "30^\\circ, 60^\\circ": ["60°, 30°", "30, 60"],
    "(1, 2)": ["y=2, x=1", "x=1,y=2"],
    "10 m/s": ["v = 36 km/h", "v = 10\\,\\mathrm{m/s}"],
    "30°": ["∠A = 30°"],
    # prefixes, derived units, sums of measures and degrees
    "5 mg": ["0.005 g", "5mg", "5 MG", "5 milligrams"],
    "5 \\mu m": ["5 μm", "5 um", "5 microns", "0.005 mm"],
    "5000 ohms": ["5 kΩ", "5 kiloohm"],
    "5 kWh": ["18 MJ", "5 kilowatt-hours"],
    "5 N": ["5 kg·m/s²", "0.005 kN"],
    "5 Nm": ["5 J", "5 N m"],
    "$5": ["5 US dollars", "5 us dollars"],
    "1 hour 30 minutes": [
        "90 minutes",
        "1.5 hours",
        "1h30min",
        "1\\text{ hour and }30\\text{ minutes}",
        "1 hr. 30 min.",
    ],
    "66 inches": ["5 ft 6 in", "5′6″", "5.5 feet"],
    "$5.50": ["5 dollars and 50 cents"],
    "30°15'": ["30.25°", "30^{\\circ}15'"],
    "\\tan 15^\\circ": ["2-\\sqrt{3}", "tan(15°)", "\\tan\\frac{\\pi}{12}"],
    "\\sqrt{3}": ["2\\sin 60^\\circ"],
    # marks of other countries, sizes, currencies, wrappers and packages
    "1234567.89": ["1.234.567,89", "1 234 567,89", "1_234_567.89", "12,34,567.89"],
    "0.5 km": ["0,5 km", "0,5", "500 m"],
    "12.5\\%": ["12,5%"],
    "100,000,000": ["1,0000,0000", "100M", "$100M"],
    "1,500": ["1.5k", "1.5K", "1.500,00 €"],
    "₩5": ["5", "5 ₩"],
    "5 dollars": ["A$5", "NT$ 5"],
    "-42": [
        "```python\n-42\n```",
        "#### -42",
        "→ -42",
        "∴ x = -42",
        ":= -42",
        "\\text{The answer is } -42",
        "\\text{Answer: }-42",
        "Ans: -42",
        "The result is -42",
        "\\num{-42}",
    ],
    "x \\le 3": ["x &le; 3", "x&#8804;3"],
    "x^{2}": ["x<sup>2</sup>"],
    "0.75": ["\\nicefrac{3}{4}", "\\sfrac34"],
    "5\\text{ m/s}": ["\\SI{5}{m/s}", "\\qty{5}{\\meter\\per\\second}"],
    "FF_{16}": ["\\text{FF}_{16}", "\\mathrm{FF}_{16}"],
    # complex numbers
    "2i": ["(1+i)^2", "\\sqrt{-4}", "z = 2i"],
    "5i": ["|3+4i|i"],
    "-1": ["i^2", "e^{i\\pi}"],
    "\\frac{1+i}{2}": ["\\frac{1}{1-i}", "\\frac12+\\frac{\\mathrm{i}}{2}"],
    "\\sum_{i=1}^{4} i": ["10"],
    # dates, times and ratios
    "7:30 p.m.": ["7:30 PM", "7:30\\text{ pm}", "19:30", "7:30"],
    "5:45": ["5:45 pm", "5:45 a.m.", "17:45"],
    "5 pm": ["5:00 p.m."],
    "6/2/2024": ["06/02/2024"],
    "3:4:5": ["3 : 4 : 5", "6:8:10"],
    "1:\\sqrt3:2": ["√3:3:2√3"],
    "3 R 2": ["3 remainder 2", "3R2"],
    "4 times": ["4"],
    "0.333": ["\\frac13 = 0.333"],
    "1": ["\\sin 90^\\circ = 1", "3 - 2 = 1"],
    "x=y+2": ["x-y=2"],
    "3:4": ["6:8", "3 : 4", "\\frac34"],
    # points, both signs, intervals and conditions
    "x=2,y=1": ["(2,1)", "2, 1", "y=1 and x=2", "x = 2; y = 1", "$x = 2$ and $y = 1$", "(2;1)"],
    "x = \\frac{1 \\pm \\sqrt{5}}{2}": ["(1 ± √5)/2", "\\frac{1-\\sqrt5}{2} \\text{ or } \\frac{1+\\sqrt5}{2}"],
    "\\{1\\pm\\sqrt{5},-2\\}": ["-2, 1+\\sqrt5, 1-\\sqrt5"],
    "(3,0), (-3,0)": ["(\\pm 3, 0)"],
    "[1,200)": ["[1;200[", "[1,200[", "\\{x : 1 \\le x < 200\\}", "200 > x \\ge 1"],
    "(-\\infty,0)\\cup(0,\\infty)": ["]-∞;0[ ∪ ]0;+∞[", "(-\\infty, 0) or (0, \\infty)", "x < 0 or 0 < x"],
    "x > 1 \\text{ or } x < -1": ["(-\\infty,-1)\\cup(1,\\infty)", "|x| > 1", "x<-1 or x>1"],
    "x + y + z = 0": ["z = -x - y", "x+y=-z"],
    "1000.0": ["1'000", "1’000", "1'000 m", "1′000"],
    "1234567.5": ["1'234'567.5", "$1'234'567.5"],
    "5.5": ["5'6\"", "5'6''", "5′6″", "5'6"],
    "6.5": ["6'30\"", "6'30"],
    "5,7": ["5、7", "5，7"],
    "10-20": ["10–20", "10 - 20", "10--20 km", "10 to 20"],
}
OTHER = {  # gold: answers that are wrong
    "3e8": ["3e9", "3e-8", "3e", "2.998e8"],
    "1e-05": ["e-5", "0", "1e-06", "2e-05"],
    "1.5": ["1.5e3", "2 1/2", "1 5"],
    "(1e-10, 2)": ["(2e-10, 2)"],
    "10\\,000": ["0", "10", "10001"],
    "12": ["5 7", "5\\,7", "5\n7", "12 12", "12_3", "3 4"],
    "6": ["1 2 3", "6 x", "6t", "6m", "2 6/2", "\\frac12 12"],
    "357": ["12 345"],
    "5": ["(2)(3)", "2 (3)", "６", "5 squared", "5 more than x", "5 million", "5 dozen", "5 gross"],
    "13": ["3\\binom{5}{2}"],
    "2": ["\\sqrt12", "2 thirds", "½", "2mg"],
    "\\sqrt{2}": ["√3", "sqrt(3)"],
    "x^2": ["x2", "x³", "x*2", "2*x"],
    "0.\\overline{3}": ["0.3", "0.333"],
    "0.\\overline{36}": ["0.3\\overline{6}", "0.36"],
    "42": ["**43**", "`43`", "\\approx 43"],
    "B": ["(C)", "C) B", "A"],
    "500": ["5 hundred thousand"],
    "2 hours": ["2 minutes", "2 kg", "60 minutes"],
    "5 cm": ["5 km", "5 kg", "5 m", "5 apples", "50 cm"],
    "5 m": ["5 s", "5 m^2", "5 \\text{ m/s}"],
    "5\\text{ m}^2": ["5\\text{ m}^3", "5 m"],
    "$5": ["€5", "5 cents", "5 euros"],
    "20^\\circ C": ["20^\\circ F"],
    "10\\pi\\text{ cm}": ["10\\pi\\text{ m}"],
    "5 apples": ["5 oranges"],
    "6m": ["6"],
    "1010_2": ["1010_3", "1011_2", "10"],
    "52_8": ["52_9"],
    "\\text{A5}_{11}": ["A5_{12}"],
    "(1,2)": ["12", "(2,1)"],
    "101_2": ["101_{10}"],
    "5 cm, 6 cm": ["5 km, 6 km", "5 cm, 7 cm", "5 cm"],
    "(3, 5)": ["b=3, a=5", "a=5, b=3"],
    "10 m/s": ["v = 37 km/h"],
    "100": ["100 at least", "100 and more", "100 (wrong)", "not 100", "100 or so", "100 feet 5 inches"],
    "\\langle 1,2\\rangle": ["(2,1)"],
    "3": ["3 sevenths", "3 thousandths", "3 divided by 4", "3 but maybe six", "3 point five", "3 less two", "3 ninety"],
    "0.3": ["0.3 repeating", "0.3 recurring"],
    "15 cm": ["5 \\text{ 3 cm}", "5 \\text{3}"],
    "ab": ["aᵇ"],
    "A": [
        "(A) or (B)",
        "A) 5 B) 6",
        "\\textbf{(A)} \\text{ or } \\textbf{(B)}",
        "(A), B",
        "(A)/(B)",
        "(A) maybe B",
        "A. B",
    ],
    "7": ["\\boxed{6} \\text{ or } \\boxed{7}", "$\\boxed{7}$, $\\boxed{8}$", "\\boxed{6}/\\fbox{7}"],
    "4": ["3=4", "x=3=4", "\\sqrt3=4", "-4=4", "4=x^2"],
    "0": ["3=0"],
    "\\{1,2\\}": ["(1,2)", "\\{1,3\\}"],
    "(0,1)": ["\\{0,1\\}"],
    "f'(x)=2x": ["f(x)=2x", "f''(x)=2x"],
    "x'": ["x"],
    "-10": ["10-20"],
    "3 R 2": ["2 R 3", "6R", "3"],
    "14:55": ["2:55 a.m.", "14.55"],
    "5 pm": ["5", "5 am"],
    "7:05": ["(7, 5)", "7:06"],
    "北京": ["南京", "Beijing"],
    "true": ["tru", "no"],
    "[0,\\infty)": ["x > 0"],
    "7:30 pm": ["7:30 am", "7:35 pm"],
    "12:00": ["11:00"],
    "1:15": ["2:30", "3:45"],
    "10-20 m": ["10-20 km", "20-30 m"],
    "10-20": ["20-30", "5-15 km", "10", "15", "-10"],
    "2024-01-05": ["2024-05-01", "2018"],
    "6/2/2024": ["3/1/2024"],
    "3:4:5": ["3:5:4", "0.15", "(3,4,5)"],
    "5 mg": ["5 Mg", "5 \\mu g", "5 ng"],
    "5 MN": ["5 mN", "5 N"],
    "5 Nm": ["5 nm"],
    "5 ohms": ["5 kΩ"],
    "5 kWh": ["5 kW"],
    "90 minutes": ["1 hour 31 minutes", "1 hour", "30 minutes", "30 minutes 1 hour", "1.30 hours"],
    "1 hour 30 minutes": ["1 hour 30 seconds", "130", "30"],
    "5'6\"": ["5'7\"", "5.6"],
    "\\sin 30^\\circ": ["\\sin 30", "30"],
    "3,5": ["3.5", "35"],
    "3.5": ["(3,5)", "3, 5", "\\{3,5\\}", "3,05"],
    "1234": ["1.234", "12,34"],
    "€3": ["₩3", "3k"],
    "-42": ["\\text{not } -42", "\\text{The answer is } 42", "```python\n42\n```"],
    "FF_{16}": ["FE_{16}", "FF_{17}"],
    "2i": ["-2i", "2", "2j", "(1-i)^2"],
    "1": ["i", "i^2"],
    "(1,i)": ["(i,1)"],
    "x=2,y=1": ["(1,2)", "1, 2", "\\{1,2\\}", "a=2, b=1", "2"],
    "x=1, y=2, z=3": ["(1,3,2)", "3,2,1", "1,2"],
    "\\frac{1 \\pm \\sqrt{5}}{2}": ["\\frac{1+\\sqrt5}{2}", "\\frac{1 \\pm \\sqrt3}{2}"],
    "[1,200)": ["]1,200]", "]1,200[", "\\{x : 1 < x < 200\\}", "1 \\ge x > 200"],
    "(-\\infty,-1)\\cup(1,\\infty)": ["x < -1 or y > 1", "x \\le -1 or x > 1", "x > -1 or x < 1"],
    "x + y + z = 0": ["0"],
    "57": ["5'7", "5’7", '5"7', "5''7", "5″7", "5$7", "“5”7", "5'7''", "5\\text{ }7", "5^\\prime 7", "5«7", "5、7"],
    "5'7": ["57", "5.7"],
    "630": ["6'30", "6'30\""],
    "1200": ["1'2'00", "1'200'", "12'00"],
    "1234.0": ["1、234", "12'34", '1"234'],
}


@pytest.fixture(scope="module")
def pool():
    with GradingPool(workers=2) as pool:
        yield pool


@pytest.mark.whole
@pytest.mark.parametrize(("table", "value"), [(SAME, True), (OTHER, False)])
def test_grades_by_notation(pool, table, value):
    found = [(gold, answer, pool.grade(gold, answer)) for gold, answers in table.items() for answer in answers]
    assert [one for one in found if one[2].value is not value] == []


def test_a_gold_answer_without_a_reading_has_no_grade_but_by_its_own_text(pool):
    for gold in ("5 7", "1 2 3", "2\\frac{3}{2}", "5'75", '5"7'):
        assert pool.grade(gold, "12").reason == "gold not readable"
        assert pool.grade(gold, f"${gold}$").value is True


def test_plain_notations_need_no_process(pool):
    with GradingPool() as other:
        for answer in ("3e8", "2 1/2", "½", "0.(3)", "5 million", "$18$ dollars", "120 minutes", "1010_2", "5 7"):
            assert other.grade("17", answer).value is False
        assert other._idle.queue[0] is None


def test_votes_are_counted_by_value():
    for answers in (
        ("0.5", "½", "\\frac{2}{4}", "1/2"),
        ("1e3", "1 000", "1,000.0", "10^3"),
        ("x + 1", "x+1", "**x+1**"),
    ):
        assert len({vote_key(answer) for answer in answers}) == 1
    apart = ("0.5", "0.5%", "1" * 40, "1" * 39 + "2", "5 7", "57", "x^2", "x2")
    assert len({vote_key(answer) for answer in apart}) == len(apart)


@pytest.mark.whole
def test_reading_takes_a_time_that_is_linear_in_the_answer():
    pieces = (
        "=",
        "~",
        "\\text{a}/",
        "*",
        "$",
        "answer ",
        "\\approx",
        "1 a ",
        "cm ",
        "per ",
        "_{",
        "million ",
        "\\boxed ",
        "\\begin{cases}",
        "1:",
        "1.000",
        "B) ",
        "5 cm, ",
        "x=1,",
        "x=1 and ",
        "```\n \n",
        "&lt;",
        "1,00",
        "1 h 1 min ",
        "1°1'",
        "x>1 or ",
        "\\ge x",
        "\\pm 1,",
        "]0;1[",
        "{",
        "`",
        "²",
        "y'",
    )
    for piece in pieces:
        began = time.process_time()
        read_answer(piece * (10_000 // len(piece)))
        assert time.process_time() - began < 1.0, piece
