"""Advantage estimators: what a value is worth beside the others of its group. Each is a function, chosen by passing it.

    z_score         (r − mean) / std         GRPO, arXiv 2402.03300
    centred         r − mean                 Dr. GRPO, arXiv 2503.20783
    leave_one_out   r − mean of the others   RLOO, arXiv 2402.14740

``values`` ``[N]`` float64 are the rewards of one channel and ``pools`` ``[N]`` the index of each one's group; the
result is ``[N]``, 0 in a group without spread. ``RunningMean`` is a baseline that needs no group: a mean of earlier
batches, which is passed in and handed back. Another estimator is another such function (docs/new-estimator.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from cotrain.core.errors import ConfigError
from cotrain.functional.credit import ema_baseline, group_mean_std, leave_one_out

__all__ = ["Baselines", "Estimator", "RunningMean", "centred", "leave_one_out", "z_score"]

Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # values [N], pools [N] → advantages [N]
Baselines = Mapping[str, float]  # "role/channel" → running mean


def z_score(values: torch.Tensor, pools: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group, divided by its sample standard deviation (n − 1, as verl and RL Tango have it)."""
    return group_mean_std(values, pools, std="sample")


def centred(values: torch.Tensor, pools: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group."""
    return group_mean_std(values, pools, std=None)


@dataclass(frozen=True, slots=True)
class RunningMean:
    """Minus a running mean over the games that the role has played (SPIRAL, arXiv 2506.24119; Williams 1992), 0 before
    the first one. A game's own payoff enters after it was compared; games of a batch follow each other."""

    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError(f"RunningMean: decay {self.decay} must be in [0, 1)")

    def __call__(
        self, values: torch.Tensor, keys: Sequence[str], games: Sequence[str], seen: Baselines
    ) -> tuple[torch.Tensor, Baselines]:
        """Values ``[N]`` minus the baseline of each one's key, and the baselines after this batch. ``games`` ``[N]``:
        the game of each."""
        centred, after = torch.zeros_like(values), dict(seen)
        for key in sorted(set(keys)):
            mine = [i for i, one in enumerate(keys) if one == key]
            played = [games[i] for i in mine]
            centred[mine], after[key] = ema_baseline(values[mine], played, after.get(key, 0.0), decay=self.decay)
        return centred, after
