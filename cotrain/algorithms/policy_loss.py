"""Losses of a policy other than the clipped ratio of GRPO and PPO, which is in ``policy_gradient.py``.

    GSPOClip(low, high)          the clipped ratio with r the mean ratio of a sequence   GSPO, arXiv 2507.18071
    ScoreFunction(cap)           −A log π, times min(r, cap) where cap is set            REINFORCE
    Shaped(gamma, on_policy)     −A π / (π + γ) for samples of another prompt; ``on_policy`` for the rest

It also masks samples whose log-probabilities in the engine are too far from those in the learner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from cotrain.algorithms.contract import MicroBatch, Sample
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.policy_losses import (
    clipped_ratio_loss,
    kl_estimate,
    reinforce_loss,
    sequence_log_ratio,
    shaped_loss,
    token_log_ratio,
    truncated_importance,
)
from cotrain.core.errors import ConfigError

Observed = dict[str, "torch.Tensor"]  # [B, T] each, for the metrics: "clip_fraction", "ratio", "sampler_trainer_diff"
TokenLoss = Callable[["torch.Tensor", MicroBatch], tuple["torch.Tensor", Observed]]  # log π [B, T], batch → loss [B, T]


def ratio_metrics(
    logprobs: torch.Tensor, batch: MicroBatch, log_ratio: torch.Tensor, clipped: torch.Tensor
) -> Observed:
    """Metrics of the ratio at each token, ``[B, T]`` each."""
    return {
        "clip_fraction": clipped,
        "ratio": log_ratio.exp(),
        "sampler_trainer_diff": (logprobs - batch.sampler_logprobs).abs(),
        "sampler_trainer_kl": kl_estimate(batch.sampler_logprobs, logprobs, "k3"),
    }


def check_clip(name: str, low: float, high: float) -> None:
    """Raise ConfigError for clip bounds out of range."""
    if not (0.0 <= low <= 1.0 and 0.0 <= high < math.inf):
        raise ConfigError(
            f"{name}: clip ({low}, {high}); expected low in [0, 1] and high of at least 0", code="E_LOSS_RANGE"
        )


@dataclass(frozen=True, slots=True)
class GSPOClip:
    """The clipped loss with one ratio for each sequence, used at all of its tokens."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_clip(type(self).__name__, self.low, self.high)

    def __call__(self, logprobs: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, Observed]:
        log_ratio = sequence_log_ratio(logprobs, batch.sampler_logprobs, batch.mask)
        losses, clipped = clipped_ratio_loss(log_ratio, batch.advantages, low=self.low, high=self.high)
        return losses, ratio_metrics(logprobs, batch, log_ratio, clipped)


@dataclass(frozen=True, slots=True)
class ScoreFunction:
    """The plain policy gradient; ``cap`` truncates the importance weight, None leaves it at 1."""

    cap: float | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and not self.cap > 0.0:
            raise ConfigError(
                f"ScoreFunction: cap is {self.cap}, expected a positive one, or None", code="E_LOSS_RANGE"
            )

    def __call__(self, logprobs: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, Observed]:
        losses = reinforce_loss(logprobs, batch.advantages)
        if self.cap is not None:
            losses = losses * truncated_importance(logprobs, batch.sampler_logprobs, cap=self.cap)
        log_ratio = token_log_ratio(logprobs, batch.sampler_logprobs)
        return losses, ratio_metrics(logprobs, batch, log_ratio, torch.zeros_like(logprobs))


@dataclass(frozen=True, slots=True)
class Shaped:
    """The shaped loss for samples that answered another prompt than the one they are trained with, another loss for the
    rest. The former have no importance ratio, as nobody sampled them with that prompt."""

    gamma: float
    on_policy: TokenLoss = field(default_factory=ScoreFunction)  # the loss of samples that answered their own prompt

    def __post_init__(self) -> None:
        if not self.gamma > 0.0:
            raise ConfigError(f"Shaped: gamma is {self.gamma}, expected γ > 0, such as 0.1", code="E_LOSS_RANGE")

    def __call__(self, logprobs: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, Observed]:
        if batch.off_policy is None:
            return self.on_policy(logprobs, batch)
        is_shaped = batch.off_policy[:, None].expand_as(logprobs)  # [B, T]
        # Ratio 1 where ``on_policy`` is not used, so that no infinite loss arises there.
        sampler_logprobs = torch.where(is_shaped, logprobs.detach(), batch.sampler_logprobs)
        losses, observed = self.on_policy(logprobs, replace(batch, sampler_logprobs=sampler_logprobs))
        shaped = shaped_loss(logprobs, batch.advantages, gamma=self.gamma)
        return torch.where(is_shaped, shaped, losses), observed


# -- Sampler-trainer mismatch. An engine with weights of its own computes log-probabilities that differ a little from
# the learner's, and a lot if something is wrong. The difference is used in two ways:
#
#     k3 = r − 1 − log r, r = π_trainer / π_sampler       at each sampled token; its mean estimates KL
#     r̄ = exp(mean over a sample's tokens of log r)       a sample with r̄ outside of its bounds has no policy gradient
#
# The bounds are loose. They mask samples from wrong weights, and never mere rounding (in bfloat16, r̄ was within
# 1 ± 0.02, docs/cluster-seen.md). Masked samples still count in the tokens and sequences by which the loss is divided.
# Samples that answered another prompt are never masked.


Bounds = tuple[float, float]  # (lowest, highest) r̄
LOOSE: Bounds = (0.5, 2.0)


def with_ratio_bounds(samples: Iterable[Sample], bounds: Bounds | None) -> tuple[Sample, ...]:
    """The samples with these bounds; unchanged if ``bounds`` is None."""
    if bounds is None:
        return tuple(samples)
    return tuple(replace(sample, bounds=bounds) for sample in samples)


def outside_bounds(logprobs: torch.Tensor, batch: MicroBatch) -> torch.Tensor | None:
    """``[B]`` bool, True if r̄ is outside of the bounds; None without bounds. ``logprobs``: ``[B, T]``."""
    if batch.bounds is None:
        return None
    log_mean_ratio = sequence_log_ratio(logprobs.detach(), batch.sampler_logprobs, batch.mask)[:, 0]  # [B] log r̄
    low, high = batch.bounds.to(log_mean_ratio).log().unbind(-1)
    outside = ~((low <= log_mean_ratio) & (log_mean_ratio <= high))  # also True for NaN
    if batch.off_policy is not None:
        outside = outside & ~batch.off_policy
    return outside


def with_unit_ratio(batch: MicroBatch, left_out: torch.Tensor, logprobs: torch.Tensor) -> MicroBatch:
    """The batch with r = 1 in the samples that are left out, so that their losses are finite. ``left_out`` [B] bool."""
    sampler = torch.where(left_out[:, None], logprobs.detach(), batch.sampler_logprobs)
    return replace(batch, sampler_logprobs=sampler)


def bounds_of(samples: Iterable[Sample]) -> torch.Tensor | None:
    """The bounds of each sample, ``[B, 2]``; None if no sample has any."""
    all_bounds = [sample.bounds for sample in samples]
    if not any(all_bounds):
        return None
    return torch.tensor([bounds or (0.0, math.inf) for bounds in all_bounds], dtype=torch.float64)
