"""Per-token advantages as they are stored beside a rollout: runs of equal values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from cotrain.learn.contract import Sample

AdvantageRuns = list[list[float]]  # [advantage, number of sampled tokens], in order; values to four digits
TokenAdvantages = dict[str, dict[str, AdvantageRuns]]  # address of a trace → objective → its advantages


def token_advantages(credited: Mapping[str, Sequence[Sample]]) -> TokenAdvantages:
    """Of the samples that each objective has after credit. One that is repeated is told once."""
    by_trace: TokenAdvantages = {}
    for objective, samples in credited.items():
        for sample in samples:
            values, counts = torch.unique_consecutive(sample.advantages, return_counts=True)
            pairs = zip(values.tolist(), counts.tolist(), strict=True)
            runs = [[float(f"{value:.4g}"), count] for value, count in pairs]
            by_trace.setdefault(sample.key, {}).setdefault(objective, runs)
    return by_trace
