"""Hostile answers, a family a line: functions of a number, so that no two answers of a family are the same text.

``KNOWN`` are told by their text (``cotrain/grading/sizes.py``). ``OTHERS`` were looked at while the grader was mended.
``UNSEEN`` were written down before that, eight of them after public issues, and first measured when it was done: what
they cost is what shapes cost that nobody thought of.
"""

from __future__ import annotations

from collections.abc import Callable

Family = Callable[[int], str]

PRIMES = [p for p in range(2, 400) if all(p % q for q in range(2, p))]
LETTERS = "abcdfghkmnpqrstuvwxyz"


def nested_root(i: int, depth: int) -> str:
    text = str(i + depth)
    for k in range(depth, 0, -1):
        text = f"\\sqrt{{{k + i}+{text}}}"
    return text


def continued_fraction(i: int, depth: int) -> str:
    text = f"x+{i}"
    for k in range(depth):
        text = f"\\frac{{1}}{{{k + 1}x+{text}}}"
    return text


def matrix(size: int, entry: Callable[[int, int], str]) -> str:
    rows = "\\\\".join(" & ".join(entry(a, b) for b in range(size)) for a in range(size))
    return f"\\begin{{pmatrix}}{rows}\\end{{pmatrix}}"


def logs_of_logs(depth: int, i: int) -> str:
    text = f"x+{i}"
    for k in range(depth, 0, -1):
        text = f"\\log_{{2^{k}}}({text})"
    return text


KNOWN: dict[str, Family] = {
    "tower": lambda i: f"9^{{{9 + i}^{{9^9}}}}",
    "factorial of a power": lambda i: f"(10^{9 + i % 90})!",
    "power": lambda i: f"{7 + i}^{{40000000}}",
    "brackets": lambda i: "(" * (3000 + i) + "1" + ")" * (3000 + i),
    "long sum": lambda i: f"\\sum_{{n=1}}^{{10^9}} \\frac{{1}}{{n^{{{2 + i}}}}}",
    "fractions in fractions": lambda i: "\\frac{1}{1+" * 400 + str(i) + "}" * 400,
    "digits": lambda i: "9" * (200_000 + i),
}
OTHERS: dict[str, Family] = {
    "power of sums": lambda i: f"\\left(3 \\cdot 3 + {i}\\right)^{{\\left(10^5+1\\right) \\cdot 10^4}}",
    "binomial": lambda i: f"\\binom{{10^7+{i}}}{{5 \\cdot 10^6}}",
    "factorial of a sum": lambda i: f"\\left(10^6+{i}\\right)!",
    "ratio of powers": lambda i: f"\\frac{{7^{{10^7+{i}}}}}{{3^{{10^7+{i}}}}}",
    "power of a decimal": lambda i: f"1.0000001^{{10^{{15}}+{i}}}",
    "power of a root": lambda i: f"\\sqrt{{7}}^{{10^8+{i}}}",
    "negative power": lambda i: f"3^{{-10^8-{i}}}",
    "power of a fraction": lambda i: f"\\left(\\frac{{3}}{{7}}\\right)^{{10^7+{i}}}",
    "tower of e": lambda i: f"e^{{e^{{e^{{e^{{{10 + i}}}}}}}}}",
    "floor": lambda i: f"\\lfloor \\pi \\cdot 10^{{10^7+{i}}} \\rfloor",
    "sine of a power": lambda i: f"\\sin(10^{{10^6+{i}}})",
    "harmonic number": lambda i: f"\\sum_{{n=1}}^{{10^7+{i}}} \\frac{{1}}{{n}}",
    "long product": lambda i: f"\\prod_{{k=1}}^{{99999}} (k^2+{i})",
    "logarithm of a power": lambda i: f"\\log_{{2}}(3^{{10^8+{i}}})",
    "multinomial": lambda i: f"(x+y+z+{i + 1})^{{200}}",
    "product of binomials": lambda i: "".join(f"(1+{i + 1}x^{{{k}}})" for k in range(1, 60)),
    "dense polynomial": lambda i: f"\\frac{{x^{{1000000+{i}}}-1}}{{x-1}}",
    "nested roots": lambda i: nested_root(i, 25),
    "one over roots": lambda i: "\\frac{1}{" + "+".join(f"\\sqrt{{{p + i}}}" for p in PRIMES[:12]) + "}",
    "integral": lambda i: f"\\int_0^1 \\sin(x^{{{3 + i}}}) e^{{x^2}} \\ln(x+2) dx",
    "limit": lambda i: f"\\lim_{{x \\to 0}} \\frac{{\\sin^{{{9 + i % 9}}}(x) - x^{{{9 + i}}}}}{{x^{{{11 + i}}}}}",
    "matrix power": lambda i: matrix(9, lambda a, b: f"x^{{{a * b % 5 + i}}}+{b}") + "^{7}",
    "trigonometric powers": lambda i: "+".join(f"\\sin^{{{k + i}}}(x)\\cos^{{{k}}}({k}x)" for k in range(3, 16)),
    "many variables": lambda i: "+".join(f"\\frac{{{k + i}}}{{{LETTERS[k]}+{LETTERS[k + 1]}}}" for k in range(14)),
    "long sum of variables": lambda i: "+".join(f"{k + i}x_{{{k}}}" for k in range(500)),
    "continued fraction": lambda i: continued_fraction(i, 40),
    "long polynomial": lambda i: "+".join(f"{k * k + i}x^{{{k}}}" for k in range(700)),
    "long digits": lambda i: "1" * 9000 + str(i) + "/3",
}
UNSEEN: dict[str, Family] = {
    "math-verify 65": lambda i: (
        f"\\dfrac{{5^{{\\left(5^{{\\left(5^{{\\left(5^5\\right)}}\\right)}} - {4 + i}\\right)}} - 5}}{{16}}"
    ),
    "math-verify 59": lambda i: f"10^{{(5^{{5^{{5^{{5^{{5}}}} \\cdot \\log_{{10}}(5)}} - {4 + i})}}}}",
    "math-verify 65, text": lambda i: (
        f"@Neillier {1276915 + i} 4951077 ник增高人权 国 {{1,1-3-10鼓励不停);5个_GENERAL2全校。 _HEADERS1 Orchestra"
    ),
    "math-verify 63": lambda i: logs_of_logs(5 + i % 3, i),
    "sympy 24187": lambda i: f"2^{{30^{{5}}}}+{i}",
    "sympy 24146": lambda i: f"\\left(\\frac{{{25 + i} \\cdot 3^{{1/3}}}}{{4}}\\right)^{{1/4}}",
    "sympy 27411": lambda i: f"{24 + i}! \\times {24 + i}!",
    "stack 1073": lambda i: f"3\\sin(\\frac{{x^{{{12 + i}}}}}{{\\pi}}) + C",
    "compound interest": lambda i: f"\\left(1+\\frac{{1}}{{10^6}}\\right)^{{10^6+{i}}}",
    "power of surds": lambda i: f"\\left(\\sqrt{{2}}+\\sqrt{{3}}\\right)^{{2000+{i}}}",
    "sum of binomials": lambda i: f"\\sum_{{k=0}}^{{5000}} \\binom{{5000}}{{k}} {i + 2}^k",
    "double factorial": lambda i: f"(200000+{i})!!",
    "modulo": lambda i: f"7^{{7^{{7^{{7}}}}+{i}}} \\bmod 1000",
    "greatest common divisor": lambda i: f"\\gcd(10^{{10^7}}+{i}, 3^{{10^7}})",
    "ratio of factorials": lambda i: f"\\frac{{(3 \\cdot 10^5+{i})!}}{{(10^5)!(2 \\cdot 10^5)!}}",
    "complex power": lambda i: f"(2+3i)^{{10^6+{i}}}",
    "tower of variables": lambda i: f"x^{{x^{{x^{{x^{{{2 + i}}}}}}}}}-y^{{y^{{y^y}}}}",
    "absolute values": lambda i: "+".join(f"|x-{k + i}|" for k in range(40)),
    "logarithms": lambda i: "+".join(f"\\ln(x+{k + i})" for k in range(2, 60)),
    "tangents": lambda i: f"{i}+" + "\\cdot".join(f"\\tan({k}^\\circ)" for k in range(1, 60)),
    "cosines": lambda i: "+".join(f"\\cos\\frac{{{2 * k}\\pi}}{{{61 + 2 * i}}}" for k in range(1, 31)),
    "roots of roots": lambda i: "+".join(f"\\sqrt[{k}]{{{k + i}+\\sqrt{{{k}}}}}" for k in range(2, 20)),
    "rational powers": lambda i: "+".join(f"{k + i}^{{{k}/{k + 1}}}" for k in range(2, 40)),
    "expanded power": lambda i: "(" + "+".join(f"{LETTERS[k]}" for k in range(18)) + f"+{i})^{{8}}",
    "quotient": lambda i: f"\\frac{{(x+1)^{{90}}-(x-{i + 1})^{{90}}}}{{(x^2+1)^{{40}}}}",
    "determinant": lambda i: f"{i}+\\det " + matrix(8, lambda a, b: f"{LETTERS[a]}_{{{b}}}"),
    "double integral": lambda i: f"\\int_0^1\\int_0^1 \\frac{{\\ln(1+x^{{{2 + i}}}y)}}{{1+xy}} dx dy",
    "infinite sum": lambda i: f"\\sum_{{n=1}}^{{\\infty}} \\frac{{\\sin(n^2)}}{{n^{{{2 + i}}}+n+1}}",
    "gamma": lambda i: f"\\Gamma(10^7+{i})",
    "set": lambda i: "\\{" + ",".join(f"\\sqrt{{{k}}}+\\sqrt[3]{{{k + i}}}" for k in range(2, 60)) + "\\}",
    "union": lambda i: "\\cup".join(f"({k},{k + i + 2})" for k in range(0, 120, 2)),
    "minus signs": lambda i: "-" * (2000 + i) + "1",
    "exponents": lambda i: f"{i}" + "^{x" * 80 + "}" * 80,
    "factorials of factorials": lambda i: f"((3!)!+{i})!!",
}
