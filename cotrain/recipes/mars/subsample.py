"""As many samples of every group as another role has: drawn after advantages are known, so that their statistics are
those of all traces (MARS, arXiv 2510.04935: calls of System 1, brought to the number of System 2).

Too many are thinned out, too few repeated. ``by`` says which of too many stay:

- "random": each with the same chance.
- "advantage": one after the other is drawn, with chances proportional to the mean |A| of what is left (Efraimidis &
  Spirakis 2006), so that the rare trace that teaches much is kept. That favours large advantages on purpose, and no
  longer estimates the same gradient.

Whatever is drawn depends on the addresses of the traces alone. Left out: the weighting rule of the paper's second
version, which is not public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cotrain.algorithms.contract import Sample
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import rng_of

WAYS = ("random", "advantage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subsample:
    """How many samples of a group are learned from, and which; a function for ``PolicyGradient.edit_after``."""

    size: int
    by: Literal["random", "advantage"] = "random"
    exact: bool = True  # repeat samples of smaller groups; False: ``size`` is only the most

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(
                f"Subsample: size is {self.size}, expected 1 or more samples of each group", code="E_SETTING_RANGE"
            )
        if self.by not in WAYS:
            raise UnknownName("by of Subsample", self.by, WAYS)

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        """The samples that are learned from, in their order, and how many others are left out."""
        groups: dict[str, list[int]] = {}  # group → places of its samples
        for place, sample in enumerate(samples):
            groups.setdefault(sample.group, []).append(place)

        chosen: list[int] = []
        for places in groups.values():
            keys = [samples[place].key for place in places]
            magnitudes = [float(samples[place].advantages.abs().mean()) for place in places]
            chosen += [places[index] for index in draw_indices(self, keys, magnitudes)]

        n_left_out = len(samples) - len(set(chosen))
        dropped = {"subsample": n_left_out} if n_left_out else {}
        return [samples[place] for place in sorted(chosen)], dropped


def draw_indices(setting: Subsample, keys: Sequence[str], magnitudes: Sequence[float]) -> list[int]:
    """Indices of one group's traces, rising, repeated where they are to count twice.

    Args:
        keys: [N] addresses, which seed the draw.
        magnitudes: [N] mean |A| over the tokens of each.
    """
    weights = magnitudes if setting.by == "advantage" else [1.0] * len(keys)
    times = [_race_time(key, weight) for key, weight in zip(keys, weights, strict=True)]
    order = sorted(range(len(keys)), key=lambda index: times[index])
    is_enough_as_it_is = len(order) <= setting.size and not setting.exact
    if not order or is_enough_as_it_is:
        return sorted(order)
    repeats, remainder = divmod(setting.size, len(order))
    return sorted(order * repeats + order[:remainder])


def _race_time(key: str, weight: float) -> tuple[float, float]:
    """The time of one runner in an exponential race, and a number by which equal times are told apart.

    The first ones in are a draw without replacement with these weights.
    """
    uniform = 1.0 - rng_of("subsample", key).random()  # in (0, 1]
    if weight <= 0.0:
        return math.inf, uniform
    return -math.log(uniform) / weight, uniform
