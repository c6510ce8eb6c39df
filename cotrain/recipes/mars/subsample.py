"""As many samples of every group as another role has: drawn after advantages are known, so that their statistics are
those of all traces (MARS, arXiv 2510.04935: calls of System 1, brought to the number of System 2).

Too many are thinned out, too few repeated. ``by="random"`` takes each with the same chance; "advantage" draws one after
the other with chances proportional to the mean |A| of what is left (Efraimidis & Spirakis 2006), so that the rare trace
that teaches much is kept; that favours large advantages on purpose and no longer estimates the same gradient. Whatever
is drawn depends on the addresses of the traces alone. Left out: the weighting rule of the paper's second version, which
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
        groups: dict[str, list[int]] = {}
        for i, sample in enumerate(samples):
            groups.setdefault(sample.group, []).append(i)
        places: list[int] = []
        for mine in groups.values():
            magnitudes = [float(samples[i].advantages.abs().mean()) for i in mine]
            places += [mine[j] for j in draw_indices(self, [samples[i].key for i in mine], magnitudes)]
        left = len(samples) - len(set(places))
        return [samples[i] for i in sorted(places)], {"subsample": left} if left else {}


def draw_indices(setting: Subsample, keys: Sequence[str], magnitudes: Sequence[float]) -> list[int]:
    """Indices of one group's traces, rising, repeated where they are to count twice.

    Args:
        keys: [N] addresses, which seed the draw.
        magnitudes: [N] mean |A| over the tokens of each.
    """
    weights = magnitudes if setting.by == "advantage" else [1.0] * len(keys)
    waits = [_race_time(key, weight) for key, weight in zip(keys, weights, strict=True)]
    order = sorted(range(len(keys)), key=lambda i: waits[i])
    if not order or (len(order) <= setting.size and not setting.exact):
        return sorted(order)
    repeats, remainder = divmod(setting.size, len(order))
    return sorted(order * repeats + order[:remainder])


def _race_time(key: str, weight: float) -> tuple[float, float]:
    """Of an exponential race: the first ones in are a draw without replacement with these weights."""
    uniform = 1.0 - rng_of("subsample", key).random()  # in (0, 1]
    return (-math.log(uniform) / weight if weight > 0.0 else math.inf, uniform)
