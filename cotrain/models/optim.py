"""Optimisers as named state: AdamW (arXiv 1711.05101), Muon for hidden matrices (Jordan et al. 2024), one schedule.

``Optimizer`` joins the torch optimisers that share a model's parameters and names every state tensor after its
parameter, so that a checkpoint is a flat dictionary of tensors: safetensors, no pickle, and it still fits after
parameters were enumerated in another order. Learning rates are settings, not state: ``step`` takes the multiplier.

Left out: gradient scaling (bfloat16 needs none) and 8-bit states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cotrain.core.errors import ConfigError, StateError, UnknownName

SHAPES = ("linear", "cosine", "wsd")


def has_bfloat16(device: torch.device) -> bool:
    """Does this device compute in bfloat16 faster than in float32? Of processors, those with AMX do; with AVX-512 alone
    a training step took 1.6 times as long as in float32 (``docs/log.md``)."""
    return torch.cuda.is_bf16_supported() if device.type == "cuda" else torch.cpu._is_amx_tile_supported()


class Float32Muon(torch.optim.Muon):
    """torch's Muon, orthogonalising in float32, for processors that compute in bfloat16 slowly.

    torch.optim.Muon makes its Newton-Schulz steps in bfloat16. Without the instructions that takes some ten times as
    long as float32, two fifths of a training step of the embedded base. Matrices of one shape go through together.
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
                    gradient, state = parameter.grad, self.state[parameter]
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


FIELDS = {
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.Muon: ("momentum_buffer",),
    Float32Muon: ("momentum_buffer",),
}


class Optimizer:
    """One or more torch optimisers over disjoint parameters of one model."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        self._rates = [[group["lr"] for group in part.param_groups] for part in parts]

    def parameters(self) -> Iterable[nn.Parameter]:
        for part in self.parts:
            for group in part.param_groups:
                yield from group["params"]

    def step(self, multiplier: float = 1.0) -> None:
        """One update with every learning rate times ``multiplier``."""
        for part, rates in zip(self.parts, self._rates, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * multiplier
            part.step()

    def clear_moments(self) -> None:
        """All moments: the next step is made as the first."""
        for part in self.parts:
            part.state.clear()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def adamw(
    model: nn.Module,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """AdamW over the trainable parameters, with decay on matrices only (not on norms, biases, embeddings)."""
    named = _trainable_parameters(model)
    embeddings = _embedding_names(model)
    decayed = [p for name, p in named.items() if p.ndim >= 2 and name not in embeddings]
    plain = [p for name, p in named.items() if p.ndim < 2 or name in embeddings]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return Optimizer([torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)])


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
    named = _trainable_parameters(model)
    embeddings = _embedding_names(model)
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


def lr_multiplier(step: int, total: int, warmup: int = 0, decay_fraction: float = 1.0, shape: str = "linear") -> float:
    """Multiplier of the learning rate at ``step`` (from 0) of ``total``: warm-up, plateau, decay to zero.

    Warm-up is linear: (step + 1) / warmup. The last ``decay_fraction`` of all steps decay, linearly or as a half
    cosine; "wsd" (warm-up, stable, decay; arXiv 2404.06395) decays as 1 − sqrt (arXiv 2405.18392). From ``total`` on
    it is 0. Raises ConfigError, UnknownName.
    """
    if shape not in SHAPES:
        raise UnknownName("schedule shape", shape, SHAPES)
    if total < 1 or warmup < 0 or not 0.0 <= decay_fraction <= 1.0:
        raise ConfigError(
            f"schedule: expected total ≥ 1, warmup ≥ 0, decay_fraction in [0, 1], found {total}, {warmup}, "
            f"{decay_fraction}"
        )
    if step >= total:
        return 0.0
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    decay = min(round(total * decay_fraction), max(total - warmup, 0))
    start = total - decay
    if step < start or not decay:
        return rise
    done = (step - start) / decay  # in [0, 1)
    if shape == "linear":
        return rise * (1.0 - done)
    if shape == "cosine":
        return rise * 0.5 * (1.0 + math.cos(math.pi * done))
    return rise * (1.0 - math.sqrt(done))


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """All state as ``{"parameter.name:field": tensor}``, detached copies; parameters without a step yet have none."""
    tensors = {}
    for name, (part, parameter) in _parameter_owners(optimizer, model).items():
        state = part.state.get(parameter, {})
        for field in FIELDS[type(part)] if state else ():
            tensors[f"{name}:{field}"] = state[field].detach().clone()
    return tensors


def load_optimizer_tensors(optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put back what ``optimizer_tensors`` gave. Raises StateError, having changed nothing, when it does not fit."""
    owners = _parameter_owners(optimizer, model)
    states: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, field = key.rpartition(":")
        if name not in owners or field not in FIELDS[type(owners[name][0])]:
            raise StateError(f"state of optimizer does not fit: {key!r} belongs to no parameter of this model")
        parameter = owners[name][1]
        if field != "step" and tensor.shape != parameter.shape:
            raise StateError(
                f"state of optimizer does not fit: {key!r} has shape {tuple(tensor.shape)}, "
                f"the parameter {tuple(parameter.shape)}"
            )
        states.setdefault(name, {})[field] = tensor
    for name, state in states.items():
        missing = [field for field in FIELDS[type(owners[name][0])] if field not in state]
        if missing:
            raise StateError(f"state of optimizer does not fit: {name!r} lacks {', '.join(missing)}")
    for name, (part, parameter) in owners.items():
        part.state.pop(parameter, None)
        if name in states:
            part.state[parameter] = {
                field: tensor.detach().clone().to(parameter.device) for field, tensor in states[name].items()
            }


def _parameter_owners(optimizer: Optimizer, model: nn.Module) -> dict[str, tuple[torch.optim.Optimizer, nn.Parameter]]:
    owner = {p: part for part in optimizer.parts for group in part.param_groups for p in group["params"]}
    return {name: (owner[p], p) for name, p in model.named_parameters() if p in owner}


def _trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ConfigError("optimizer: the model has no trainable parameter; unfreeze some")
    return named


def _embedding_names(model: nn.Module) -> set[str]:
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {
        name for name, p in model.named_parameters() if id(p) in tables or name.rpartition(".")[0].endswith("lm_head")
    }
