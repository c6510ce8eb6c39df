"""Per-token advantages as they are stored beside a rollout: runs of equal values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cotrain.learn.contract import Sample

AdvantageRuns = list[list[float]]  # [advantage, number of sampled tokens], in order; values to four digits
TokenAdvantages = dict[str, dict[str, AdvantageRuns]]  # address of a trace → objective → its advantages


def record_advantages(worth: TokenAdvantages, objective: str, samples: Sequence[Sample]) -> None:
    """Add to ``worth`` what these samples have after credit. A sample that is repeated is told once."""
    for sample in samples:
        values, counts = torch.unique_consecutive(sample.advantages, return_counts=True)
        runs = [[float(f"{value:.4g}"), count] for value, count in zip(values.tolist(), counts.tolist(), strict=True)]
        worth.setdefault(sample.key, {}).setdefault(objective, runs)
