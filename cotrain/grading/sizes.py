r"""Would an answer take too long to compute? Told from its text, without computing: towers of powers, large factorials,
long sums and products, deep nesting.

A process that can be killed holds against every answer, but each one costs it a deadline. Those that a model finds
first are seen here in microseconds: ``9^{9^{9^9}}``, ``(10^9)!``, ``7^{40000000}``, ``\sum_{n=1}^{10^9}``. Whatever is
not read is not too large; the process is still there.

Left out: everything else that is slow (long polynomials, integrals, matrices); numbers in words.
"""

from __future__ import annotations

import math
import re

DEEP = 100  # brackets, or powers, within one another
POWER = 100_000.0  # decimal digits of a power that is still computed
FACTORIAL = 20_000.0  # the argument of a factorial
TERMS = 100_000.0  # most terms of a sum or product

_TOKEN = re.compile(r"\d+\.?\d*|\\[a-zA-Z]+|\\.|\S")
_OPEN = {"(": ")", "{": "}", "[": "]"}
_CLOSE = {")", "}", "]"}
_LAYOUT = {"\\left", "\\right", "\\,", "\\!", "\\;", "\\displaystyle"}
_TIMES = {"*", "\\cdot", "\\times"}
_LONG = {"\\sum", "\\prod"}


def too_large(text: str) -> bool:
    """Whether a part of an answer is a number too large to compute, or nested too deeply to read. Linear in its
    length."""
    tokens = [token for token in _TOKEN.findall(text) if token not in _LAYOUT]
    depth = 0
    for token in tokens:
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth > DEEP:
            return True
    return ("^" in tokens or "!" in tokens) and _SizeReader(tokens).large


class _SizeReader:
    """One pass over the tokens; the value of a group is known where it is made of numbers, products and powers
    alone."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self.large = False
        self._depth = 0  # depth of powers, in brackets or not: each is a call of its own
        while self._at < len(tokens):
            self._read_group()
            self._at += 1  # a bracket that closes nothing

    def _read_group(self) -> float | None:
        """The value up to the closing bracket; None where it is unknown."""
        product: float | None = 1.0
        counted = False  # a sum or product waits for its upper limit
        while self._at < len(self._tokens) and self._tokens[self._at] not in _CLOSE:
            token = self._tokens[self._at]
            if token in _LONG:
                counted = True
            if token in _TIMES:
                self._at += 1
                continue
            if token == "^" and counted:
                self._at += 1
                limit = self._read_power()
                self.large |= limit is not None and limit > TERMS
                counted = False
                product = None
                continue

            value = self._read_power(counted)
            product = None if product is None or value is None else product * value
        return product

    def _read_power(self, counted: bool = False) -> float | None:
        """A number or group with its powers and factorials, from the right: 9^9^9 is 9^(9^9)."""
        self._depth += 1
        if self._depth > DEEP:
            self.large = True
            self._at = len(self._tokens)  # the rest is not read
        value = self._read_atom()
        while not counted and self._at < len(self._tokens) and self._tokens[self._at] in ("^", "!"):
            if self._tokens[self._at] == "!":
                self._at += 1
                if value is not None:
                    self.large |= value > FACTORIAL
                    value = math.inf if value > 100 else math.gamma(max(value, 0.0) + 1)
                continue

            self._at += 1
            exponent = self._read_power()
            if value is None or exponent is None:
                value = None
            else:
                digits = exponent * math.log10(value) if value > 1 else 0.0
                self.large |= digits > POWER
                value = 10.0**digits if digits < 300 else math.inf

        self._depth -= 1
        return value

    def _read_atom(self) -> float | None:
        if self._at >= len(self._tokens):
            return None
        token = self._tokens[self._at]
        self._at += 1
        if token in _OPEN:
            value = self._read_group()
            self._at += 1
            return value
        return float(token[:300]) if token[0].isdecimal() and token.isascii() else None
