"""Brings every group to a fixed number of samples (MARS, arXiv 2510.04935: as many calls of System 1 as of System 2).

Samples are drawn after advantages are computed, so that mean and standard deviation are those of all samples of the
group. A group with too many samples is thinned out, one with too few is repeated. ``sampling`` says which of too many
stay:

- "random": each with the same chance.
- "advantage": one after the other is drawn, with chances proportional to the mean |A| of those that are left
  (Efraimidis & Spirakis 2006), so that a rare sample with a large advantage stays. On purpose, this no longer estimates
  the same gradient.

The draw depends on the addresses of the traces alone. Left out: the weighting rule of the paper's second version, which
is not public.
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
    """A function for ``PolicyGradient.edit_after``, which draws the samples that are learned from."""

    size: int  # samples of a group
    sampling: Literal["random", "advantage"] = "random"  # which samples of a larger group stay
    exact: bool = True  # repeat samples of smaller groups; False: ``size`` is only the most

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(
                f"Subsample: size is {self.size}, expected 1 or more samples of each group", code="E_SETTING_RANGE"
            )
        if self.sampling not in WAYS:
            raise UnknownName("sampling of Subsample", self.sampling, WAYS)

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        """The samples that are learned from, in their order, and how many others are left out."""
        groups: dict[str, list[int]] = {}  # group → places of its samples
        for place, sample in enumerate(samples):
            groups.setdefault(sample.group, []).append(place)

        places_to_keep: list[int] = []
        for places in groups.values():
            keys = [samples[place].key for place in places]
            magnitudes = [float(samples[place].advantages.abs().mean()) for place in places]
            places_to_keep += [places[index] for index in self.draw_indices(keys, magnitudes)]

        n_left_out = len(samples) - len(set(places_to_keep))
        drop_counts = {"subsample": n_left_out} if n_left_out else {}
        return [samples[place] for place in sorted(places_to_keep)], drop_counts

    def draw_indices(self, keys: Sequence[str], magnitudes: Sequence[float]) -> list[int]:
        """Sorted indices of the samples of one group that stay. An index stands in it as often as its sample counts.

        Args:
            keys: [N] addresses, which seed the draw.
            magnitudes: [N] mean |A| over the tokens of each.
        """
        weights = magnitudes if self.sampling == "advantage" else [1.0] * len(keys)
        times = [_race_time(key, weight) for key, weight in zip(keys, weights, strict=True)]
        order = sorted(range(len(keys)), key=lambda index: times[index])
        is_small = len(order) <= self.size
        if not order or (is_small and not self.exact):
            return sorted(order)
        repeats, remainder = divmod(self.size, len(order))
        return sorted(order * repeats + order[:remainder])


def _race_time(key: str, weight: float) -> tuple[float, float]:
    """The time of one runner in an exponential race, and a number by which equal times are told apart.

    The first ones in are a draw without replacement with these weights.
    """
    uniform = 1.0 - rng_of("subsample", key).random()  # in (0, 1]
    if weight <= 0.0:
        return math.inf, uniform
    return -math.log(uniform) / weight, uniform
