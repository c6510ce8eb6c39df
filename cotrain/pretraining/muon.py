"""Muon for hidden matrices (Jordan et al. 2024): of pretraining, not of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from cotrain.learner.optim import Optimizer, embedding_names, has_bfloat16, trainable_parameters


class Float32Muon(torch.optim.Muon):
    """torch's Muon, orthogonalising in float32, for processors that compute in bfloat16 slowly.

    torch.optim.Muon makes its Newton-Schulz steps in bfloat16. Without the instructions that takes some ten times as
    long as float32, two fifths of a training step of the shipped base. Matrices of one shape go through together.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """As ``torch.optim.Muon.step``, learning rates scaled as ``match_rms_adamw`` does, Nesterov momentum."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                moves = []
                for parameter in parameters:
                    gradient = parameter.grad
                    state = self.state[parameter]
                    assert gradient is not None
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(gradient)
                    average = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
                    moves.append(gradient.lerp(average, group["momentum"]))
                rate = -group["lr"] * 0.2 * math.sqrt(max(shape))
                for parameter, move in zip(parameters, _newton_schulz(torch.stack(moves), group), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(move, alpha=rate)
        return loss


def _newton_schulz(matrices: torch.Tensor, group: Mapping[str, Any]) -> torch.Tensor:
    """Newton-Schulz (Jordan et al. 2024) on ``[N, rows, columns]``: singular values near one, same singular vectors."""
    a, b, c = group["ns_coefficients"]
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def muon(
    model: nn.Module,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.95,
) -> Optimizer:
    """Muon for hidden matrices, AdamW for embeddings, head, norms and biases; one learning rate for both.

    Muon's updates are scaled to the root mean square of AdamW's (``match_rms_adamw``: 0.2·sqrt(max(rows, columns)),
    Liu et al. 2025, arXiv 2502.16982, eq. 4), which is why one rate serves both.
    """
    named = trainable_parameters(model)
    embeddings = embedding_names(model)
    hidden = [p for name, p in named.items() if p.ndim == 2 and name not in embeddings]
    rest = [p for name, p in named.items() if p.ndim != 2 or name in embeddings]
    parts: list[torch.optim.Optimizer] = []
    if hidden:
        kind = torch.optim.Muon if has_bfloat16(hidden[0].device) else Float32Muon
        parts.append(
            kind(hidden, lr=lr, weight_decay=weight_decay, momentum=momentum, eps=1e-7, adjust_lr_fn="match_rms_adamw")
        )
    if rest:
        parts.append(torch.optim.AdamW(rest, lr=lr, betas=betas, eps=eps, weight_decay=0.0, fused=True))
    return Optimizer(parts)
