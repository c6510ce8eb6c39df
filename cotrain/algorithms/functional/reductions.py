"""Masked sums, and the three ways to turn per-token losses into one number.

    token     L = Σ_i w_i Σ_t l_it / N_tokens             every token counts the same (DAPO, arXiv 2503.14476)
    sequence  L = Σ_i w_i (Σ_t l_it / T_i) / N_sequences  every sequence counts the same (GRPO, arXiv 2402.03300, eq. 3)
    constant  L = Σ_i w_i Σ_t l_it / (C · N_sequences)    neither length nor batch enters (Dr. GRPO, arXiv 2503.20783)

N_tokens and N_sequences are totals over the whole update and are given by the caller, never counted here: the sum of
this function over any partition of a batch into micro-batches is its value on the whole batch. The weights w_i scale
losses and do not enter the totals.
"""

from __future__ import annotations

from typing import Literal

from cotrain.algorithms.functional.late_torch import torch

Normalise = Literal["token", "sequence", "constant"]
NORMALISES: tuple[Normalise, ...] = ("token", "sequence", "constant")


def check_same_shape(**tensors: torch.Tensor) -> None:
    """Raise ValueError, naming the arguments, unless all tensors have one shape and are not integers."""
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected one shape, found {shapes}")
    wrong = {name: t.dtype for name, t in tensors.items() if not t.is_floating_point()}
    if wrong:
        raise ValueError(f"expected floating point, found {wrong}")


def masked_sum(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Sum of ``values`` where ``mask`` (same shape, 1 or 0) is 1, over ``dim`` or over everything.

    Values where the mask is 0 do not matter, not even infinite ones.
    """
    check_same_shape(values=values, mask=mask)
    kept = torch.where(mask > 0, values, torch.zeros_like(values))
    return kept.sum() if dim is None else kept.sum(dim)


def reduce_loss(
    losses: torch.Tensor,
    mask: torch.Tensor,
    *,
    normalise: Normalise,
    tokens: float,
    sequences: float,
    constant: float | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """This micro-batch's share of the loss of the whole update (equations at the top of this file).

    Args:
        losses: ``[B, T]`` per token.
        mask: ``[B, T]`` 1 on tokens that count; every row has at least one.
        normalise: "token", "sequence" or "constant".
        tokens: number of tokens that count in the whole update.
        sequences: number of sequences in the whole update.
        constant: C, such as ``max_tokens``; with "constant" only.
        weights: ``[B]`` a factor for each sequence; None: all are 1.

    Returns a scalar. Raises ValueError for shapes that differ, an unknown ``normalise``, or a missing ``constant``.
    """
    check_same_shape(losses=losses, mask=mask)
    if losses.ndim != 2 or (weights is not None and weights.shape != losses.shape[:1]):
        weights_shape = None if weights is None else tuple(weights.shape)
        raise ValueError(f"expected losses [B, T] and weights [B], found {tuple(losses.shape)} and {weights_shape}")
    if (normalise == "constant") != (constant is not None):
        raise ValueError(f"reduce_loss: normalise={normalise!r} with constant={constant!r}; they belong together")
    per_row = masked_sum(losses, mask, dim=1)  # [B]
    if normalise == "sequence":
        per_row = per_row / mask.sum(1)
    total = per_row.sum() if weights is None else (per_row * weights).sum()
    if normalise == "token":
        return total / tokens
    if normalise == "sequence":
        return total / sequences
    if normalise == "constant" and constant is not None:
        return total / (constant * sequences)
    raise ValueError(f"normalise={normalise!r}, expected one of {NORMALISES}")
