r"""Would an answer take too long to compute? Told from its text, without computing: towers of powers, large factorials,
long sums and products, deep nesting.

Any answer can be graded by a process that can be killed, but each one that has to be killed costs a deadline. Those
that models find first are seen here in microseconds: ``9^{9^{9^9}}``, ``(10^9)!``, ``7^{40000000}``,
``\sum_{n=1}^{10^9}``. What cannot be read here counts as not too large, and is left to the process.

Left out: everything else that is slow (long polynomials, integrals, matrices); numbers in words.
"""

from __future__ import annotations

import math
import re

# The largest that are still computed, here and in ``guards.py``.
MOST_NESTED = 100  # brackets, or powers, within one another
MOST_DIGITS = 100_000.0  # decimal digits of a power
LARGEST_FACTORIAL = 20_000.0  # argument of a factorial
MOST_TERMS = 100_000.0  # terms of a sum or product

_TOKEN = re.compile(r"\d+\.?\d*|\\[a-zA-Z]+|\\.|\S")
_OPEN = {"(", "{", "["}
_CLOSE = {")", "}", "]"}
_LAYOUT = {"\\left", "\\right", "\\,", "\\!", "\\;", "\\displaystyle"}
_TIMES = {"*", "\\cdot", "\\times"}
_SUM_OR_PRODUCT = {"\\sum", "\\prod"}


def too_large(text: str) -> bool:
    """Whether a part of an answer is a number too large to compute, or nested too deeply to read. Linear in its
    length."""
    tokens = [token for token in _TOKEN.findall(text) if token not in _LAYOUT]
    depth = 0
    for token in tokens:
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth > MOST_NESTED:
            return True
    may_be_large = "^" in tokens or "!" in tokens
    return may_be_large and _SizeReader(tokens).is_too_large


class _SizeReader:
    """Reads the tokens once, from left to right. The value of a group is known if it consists of numbers, products,
    powers and factorials alone; an unknown value is None."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self.is_too_large = False
        self._depth = 0  # of ``_read_power`` within itself, by exponents and by brackets
        while self._has_token():
            self._read_group()
            self._position += 1  # a closing bracket without an opening one

    def _has_token(self) -> bool:
        return self._position < len(self._tokens)

    def _read_group(self) -> float | None:
        """The value up to the closing bracket, or the end."""
        product: float | None = 1.0
        awaits_limit = False  # behind a sum or product sign: "^" then gives the number of terms, and no power
        while self._has_token() and self._tokens[self._position] not in _CLOSE:
            token = self._tokens[self._position]
            if token in _SUM_OR_PRODUCT:
                awaits_limit = True
            if token in _TIMES:
                self._position += 1
                continue
            if token == "^" and awaits_limit:
                self._position += 1
                upper_limit = self._read_power()
                self.is_too_large |= upper_limit is not None and upper_limit > MOST_TERMS
                awaits_limit = False
                product = None
                continue

            value = self._read_atom_in_depth() if awaits_limit else self._read_power()
            product = None if product is None or value is None else product * value
        return product

    def _read_power(self) -> float | None:
        """A number or group with its powers and factorials. Powers are read from the right: 9^9^9 is 9^(9^9)."""
        value = self._read_atom_in_depth()
        self._depth += 1
        while self._has_token() and self._tokens[self._position] in ("^", "!"):
            sign = self._tokens[self._position]
            self._position += 1
            if sign == "!":
                value = self._factorial(value)
            else:
                exponent = self._read_power()
                value = self._power(value, exponent)
        self._depth -= 1
        return value

    def _factorial(self, value: float | None) -> float | None:
        if value is None:
            return None
        self.is_too_large |= value > LARGEST_FACTORIAL
        return math.inf if value > 100 else math.gamma(max(value, 0.0) + 1)

    def _power(self, base: float | None, exponent: float | None) -> float | None:
        if base is None or exponent is None:
            return None
        digits = exponent * math.log10(base) if base > 1 else 0.0
        self.is_too_large |= digits > MOST_DIGITS
        return 10.0**digits if digits < 300 else math.inf

    def _read_atom_in_depth(self) -> float | None:
        """A number or group. Where it lies too deep, the answer is too large and the rest is not read."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            self.is_too_large = True
            self._position = len(self._tokens)
        value = self._read_atom()
        self._depth -= 1
        return value

    def _read_atom(self) -> float | None:
        if not self._has_token():
            return None
        token = self._tokens[self._position]
        self._position += 1
        if token in _OPEN:
            value = self._read_group()
            self._position += 1
            return value
        return float(token[:300]) if token[0].isdecimal() and token.isascii() else None
