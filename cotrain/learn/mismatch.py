"""Where the sampler's log-probabilities differ from the learner's: which samples are left out, and what is measured.

    k3 = r − 1 − log r, r = π_trainer / π_sampler       at each sampled token; its mean estimates KL(sampler ‖ trainer)
    r̄ = exp(mean over a sample's tokens of log r)       a sample with r̄ outside of its bounds has no policy gradient

Bounds are loose: they leave out what was sampled from other weights, and rounding never (in bfloat16 its r̄ was within
1 ± 0.02, docs/cluster.md). What is left out still counts among the tokens and sequences that the loss is divided by, as
its gradient is zero and not unknown. Samples that answered another prompt have no sampler to be held against.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch

from cotrain.functional.policy_losses import sequence_log_ratio
from cotrain.learn.contract import MicroBatch, Sample

Bounds = tuple[float, float]  # of r̄
LOOSE: Bounds = (0.5, 2.0)


def with_bounds(samples: Iterable[Sample], bounds: Bounds | None) -> tuple[Sample, ...]:
    """The samples with these bounds; None: as they are."""
    return tuple(samples) if bounds is None else tuple(replace(sample, bounds=bounds) for sample in samples)


def outside_bounds(logprobs: torch.Tensor, batch: MicroBatch) -> torch.Tensor | None:
    """``[B]`` bool, True where r̄ is outside of the bounds; None where there are none. ``logprobs`` ``[B, T]``."""
    if batch.bounds is None:
        return None
    mean = sequence_log_ratio(logprobs.detach(), batch.sampler_logprobs, batch.mask)[:, 0]
    low, high = batch.bounds.to(mean).log().unbind(-1)
    outside = ~((low <= mean) & (mean <= high))
    return outside if batch.off_policy is None else outside & ~batch.off_policy


def with_unit_ratio(batch: MicroBatch, left_out: torch.Tensor, logprobs: torch.Tensor) -> MicroBatch:
    """The batch with r = 1 in the samples that are left out, so that their losses are finite. ``left_out`` [B] bool."""
    sampler = torch.where(left_out[:, None], logprobs.detach(), batch.sampler_logprobs)
    return replace(batch, sampler_logprobs=sampler)


def bounds_of(samples: Iterable[Sample]) -> torch.Tensor | None:
    """``[B, 2]``; None where no sample has any."""
    found = [sample.bounds for sample in samples]
    if not any(found):
        return None
    return torch.tensor([bounds or (0.0, math.inf) for bounds in found], dtype=torch.float64)
