"""Policy-gradient losses per token. Each returns ``[B, T]``; reduction and masks are the caller's.

Advantages and old log-probabilities are constants: each function detaches them. ``r = exp(log π − log π_old)``.

Left out: dual clipping (a second bound for negative advantages), and log-ratios clipped to a range: a ratio that
overflows makes the loss infinite, and the learner refuses the step.
"""

from __future__ import annotations

from typing import Literal

from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.reductions import check_same_shape, masked_sum


def reinforce_loss(logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """l = −A · log π (Williams 1992). All arguments ``[B, T]``."""
    check_same_shape(logprobs=logprobs, advantages=advantages)
    return -advantages.detach() * logprobs


def clipped_ratio_loss(
    log_ratio: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """l = −min(r·A, clip(r, 1 − low, 1 + high)·A) (PPO, arXiv 1707.06347, eq. 7; low ≠ high: DAPO, arXiv 2503.14476).

    Args:
        log_ratio: ``[B, T]`` log π − log π_old, differentiable in π (``token_log_ratio`` or ``sequence_log_ratio``).
        advantages: ``[B, T]``.
        low, high: distances of the bounds from 1; ``0 ≤ low ≤ 1``, ``high ≥ 0``.

    Returns ``(loss [B, T], clipped [B, T])``; ``clipped`` is 1 where the bound is active, so the gradient is zero.
    """
    check_same_shape(log_ratio=log_ratio, advantages=advantages)
    if not (0.0 <= low <= 1.0 and high >= 0.0):
        raise ValueError(f"clipped_ratio: low {low} must be in [0, 1] and high {high} not negative")
    constant_advantages = advantages.detach()
    ratio = log_ratio.exp()
    unclipped = ratio * constant_advantages
    clipped = ratio.clamp(1.0 - low, 1.0 + high) * constant_advantages
    is_clipped = (clipped < unclipped).to(log_ratio.dtype)
    return -torch.minimum(unclipped, clipped), is_clipped


def token_log_ratio(logprobs: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """log π − log π_old, token by token. ``[B, T]``."""
    check_same_shape(logprobs=logprobs, old=old)
    return logprobs - old.detach()


def sequence_log_ratio(logprobs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """log s_i = mean_t (log π − log π_old), the same at every token (GSPO, arXiv 2507.18071).

    All ``[B, T]``, ``mask`` 1 on tokens that count. → ``[B, T]``.
    """
    check_same_shape(logprobs=logprobs, old=old, mask=mask)
    mean = masked_sum(logprobs - old.detach(), mask, dim=1) / mask.sum(1)
    return mean[:, None].expand_as(logprobs)


def shaped_loss(logprobs: torch.Tensor, advantages: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """l = −A · π / (π + γ), without ratio and clip, for tokens that were sampled with another prompt (LUFFY, arXiv
    2504.14945; Critique-GRPO, arXiv 2506.03106). Its gradient, −A · γπ / (π + γ)² · ∇log π, is largest at π = γ, so
    that unlikely tokens are not drowned by those that are likely anyway. ``[B, T]``."""
    check_same_shape(logprobs=logprobs, advantages=advantages)
    if not gamma > 0.0:
        raise ValueError(f"shaped: gamma {gamma} must be positive")
    probabilities = logprobs.exp()
    return -advantages.detach() * probabilities / (probabilities + gamma)


def truncated_importance(logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, *, cap: float) -> torch.Tensor:
    """min(π / π_behaviour, cap) without gradient: a weight for samples drawn by somewhat different weights or kernels
    (truncated importance sampling, Ionides 2008; IMPALA's ρ̄, arXiv 1802.01561; CISPO, arXiv 2506.13585). ``[B,
    T]``."""
    check_same_shape(logprobs=logprobs, sampler_logprobs=sampler_logprobs)
    if not cap > 0.0:
        raise ValueError(f"truncated_importance: cap {cap} must be positive")
    return (logprobs - sampler_logprobs).detach().exp().clamp(max=cap)


# -- Estimators of KL(π ‖ π_ref) from samples of π (Schulman, "Approximating KL divergence", 2020). With r = π_ref / π:
#
#     k1 = −log r             unbiased, high variance, may be negative
#     k2 = ½ (log r)²         biased, low variance; on policy its *gradient* is that of the true KL
#     k3 = r − 1 − log r      unbiased, low variance, never negative; the one GRPO adds to its loss
#
# As a term of a loss: the gradient of k1 has expectation zero, so k1 is a metric or a reward, not a loss; k3's
# gradient is that of the reverse divergence KL(π_ref ‖ π) in expectation; k2's is that of KL(π ‖ π_ref).


KLEstimator = Literal["k1", "k2", "k3"]
KL_ESTIMATORS: tuple[KLEstimator, ...] = ("k1", "k2", "k3")


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: KLEstimator) -> torch.Tensor:
    """The estimate at each sampled token.

    Args:
        logprobs: ``[B, T]`` log π of the sampled tokens, differentiable.
        reference: ``[B, T]`` log π_ref of the same tokens; a constant.
        estimator: "k1", "k2" or "k3".
    """
    check_same_shape(logprobs=logprobs, reference=reference)
    log_r = reference.detach() - logprobs
    if estimator == "k1":
        return -log_r
    if estimator == "k2":
        return 0.5 * log_r.square()
    if estimator == "k3":
        return torch.expm1(log_r) - log_r
    raise ValueError(f"kl_estimate: estimator {estimator!r}, expected one of {KL_ESTIMATORS}")
