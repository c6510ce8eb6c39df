"""Weights that change while a policy learns: ``decay(0.1, 1e-3)`` is one over that policy's own updates.

With s updates made of S planned:

    constant(x)         x
    decay(a, b)         max(b, a · exp(−s · ln(a/b) / S))      RL Tango's α (arXiv 2505.15034): a at s = 0, b at s = S
    linear(a, b)        a + (b − a) · min(1, s/S)
    cosine(a, b)        b + (a − b) · ½(1 + cos(π · min(1, s/S)))

s counts the updates of the policy that learns, not the steps of the run: a generator that learns in three steps of
four decays over its own updates. After S updates the end value stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cotrain.core.errors import ConfigError, UnknownName

Shape = Literal["constant", "decay", "linear", "cosine"]
SHAPES: tuple[Shape, ...] = ("constant", "decay", "linear", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """A number as a function of (updates made, updates planned)."""

    shape: Shape
    start: float  # value before the first update
    end: float  # value after the last planned update

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise UnknownName("shape of a mixing weight", self.shape, SHAPES)
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ConfigError(f"mixing weight {self.shape}: start {self.start} and end {self.end} must be finite")
        if self.shape == "decay" and not self.start >= self.end > 0.0:
            raise ConfigError(f"decay({self.start}, {self.end}): expected start ≥ end > 0")

    def __call__(self, updates: int, planned: int) -> float:
        """The value after ``updates`` of ``planned`` updates of this policy. Raises ConfigError unless planned ≥ 1."""
        if self.shape == "constant":
            return self.start
        if planned < 1 or updates < 0:
            raise ConfigError(f"{self.shape}: {updates} of {planned} updates; expected at least 0 of at least 1")
        if self.shape == "decay":
            return max(self.end, self.start * math.exp(-updates * math.log(self.start / self.end) / planned))
        done = min(1.0, updates / planned)
        if self.shape == "linear":
            return self.start + (self.end - self.start) * done
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * done))


def constant(value: float) -> Mixing:
    """Always ``value``; a plain number in a ``mix`` means the same."""
    return Mixing(shape="constant", start=value, end=value)


def decay(start: float, end: float) -> Mixing:
    """Exponential from ``start`` to ``end`` (RL Tango: 0.1 to 0.001; from 0.5 for REINFORCE++)."""
    return Mixing(shape="decay", start=start, end=end)


def linear(start: float, end: float) -> Mixing:
    """A straight line from ``start`` to ``end``."""
    return Mixing(shape="linear", start=start, end=end)


def cosine(start: float, end: float) -> Mixing:
    """Half a cosine from ``start`` to ``end``."""
    return Mixing(shape="cosine", start=start, end=end)


def weight_at(weight: float | Mixing, updates: int, planned: int) -> float:
    """A weight of a ``mix`` as a number."""
    return weight(updates, planned) if isinstance(weight, Mixing) else float(weight)


def refuse_weightless(where: str, mix: Mapping[str, float | Mixing]) -> None:
    """Raise ConfigError where no signal ever has a weight: nothing would be learned."""
    if not any(weight_at(weight, edge, 1) for weight in mix.values() for edge in (0, 1)):
        raise ConfigError(f"{where}: the weights of {', '.join(mix)} are all 0, so that nothing is learned; raise one")
