"""Supervised losses: next-token cross-entropy, and two losses of scores. One value for each token or sequence; the
caller reduces them.

Left out: losses of pairs (``algorithms/dpo.py`` and ``reward_model.py`` have them).
"""

from __future__ import annotations

from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.reductions import check_same_shape


def cross_entropy(logprobs: torch.Tensor) -> torch.Tensor:
    """−log π of the given tokens, ``[B, T]`` → ``[B, T]``."""
    check_same_shape(logprobs=logprobs)
    return -logprobs


def binary_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """−y log σ(x) − (1 − y) log(1 − σ(x)); labels in [0, 1]. Any one shape."""
    check_same_shape(logits=logits, labels=labels)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.detach(), reduction="none")


def outcome_cross_entropy(
    logprobs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, outcomes: torch.Tensor, *, beta: float
) -> torch.Tensor:
    """Cross-entropy of σ(β Σ_t (log π_φ − log π_ref)) against the outcome: trains an *implicit* process reward model,
    whose reward for a token is its log-ratio (arXiv 2412.01981; PRIME, arXiv 2502.01456).

    Args:
        logprobs, reference, mask: ``[B, T]``; ``reference`` is a constant.
        outcomes: ``[B]`` in [0, 1].
        beta: scale, 0.05 in PRIME.

    Returns ``[B]``.
    """
    check_same_shape(logprobs=logprobs, reference=reference, mask=mask)
    if logprobs.ndim != 2 or outcomes.shape != logprobs.shape[:1]:
        raise ValueError(f"expected [B, T] and outcomes [B], found {tuple(logprobs.shape)}, {tuple(outcomes.shape)}")
    ratios = torch.where(mask > 0, logprobs - reference.detach(), torch.zeros_like(logprobs))
    return binary_cross_entropy(beta * ratios.sum(1), outcomes)
