"""Estimators of KL(π ‖ π_ref) from samples of π (Schulman, "Approximating KL divergence", 2020). With r = π_ref / π:

    k1 = −log r             unbiased, high variance, may be negative
    k2 = ½ (log r)²         biased, low variance; on policy its *gradient* is that of the true KL
    k3 = r − 1 − log r      unbiased, low variance, never negative; the one GRPO adds to its loss

As a term of a loss: the gradient of k1 has expectation zero, so k1 is a metric or a reward, not a loss; k3's gradient
is that of the reverse divergence KL(π_ref ‖ π) in expectation; k2's is that of KL(π ‖ π_ref).
"""

from __future__ import annotations

from typing import Literal

import torch

from cotrain.functional.reductions import check_same_shape

Estimator = Literal["k1", "k2", "k3"]
ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3")


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: Estimator) -> torch.Tensor:
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
    raise ValueError(f"kl_estimate: estimator {estimator!r}, expected one of {ESTIMATORS}")
