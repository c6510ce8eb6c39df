"""A baseline without groups: the running mean of a role's rewards in earlier episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotrain.algorithms.functional.advantages import ema_baseline
from cotrain.algorithms.functional.late_torch import torch
from cotrain.core.errors import ConfigError

Baselines = Mapping[str, float]  # "role/channel" → running mean


@dataclass(frozen=True, slots=True)
class RunningMean:
    """Subtracts a running mean over the earlier episodes of the role (SPIRAL, arXiv 2506.24119; Williams 1992), 0
    before the first one. The reward of an episode enters the mean after the mean was subtracted from it; the episodes
    of a batch enter one after the other."""

    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError(f"RunningMean: decay {self.decay} must be in [0, 1)", code="E_RUNNING_MEAN_DECAY")

    def subtract_from(
        self, values: torch.Tensor, keys: Sequence[str], episodes: Sequence[str], baselines: Baselines
    ) -> tuple[torch.Tensor, Baselines]:
        """Values ``[N]`` minus the baseline of each one's key, and the baselines after this batch.

        Args:
            values: ``[N]``.
            keys: ``[N]`` "role/channel" of each value.
            episodes: ``[N]`` the episode of each value.
            baselines: those before this batch.
        """
        centred = torch.zeros_like(values)
        new_baselines = dict(baselines)
        for key in sorted(set(keys)):
            indices = [i for i, value_key in enumerate(keys) if value_key == key]
            episodes_of_key = [episodes[i] for i in indices]
            before = new_baselines.get(key, 0.0)
            advantages, after = ema_baseline(values[indices], episodes_of_key, before, decay=self.decay)
            centred[indices] = advantages
            new_baselines[key] = after
        return centred, new_baselines
