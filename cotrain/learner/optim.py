"""Optimisers as named state: AdamW (arXiv 1711.05101), with one schedule. Muon: ``pretraining/muon.py``.

``Optimizer`` joins the torch optimisers that share a model's parameters and names every state tensor after its
parameter, so that a checkpoint is a flat dictionary of tensors: safetensors, no pickle, and it still fits after
parameters were enumerated in another order. Learning rates are settings, not state: ``step`` takes the multiplier.

Left out: gradient scaling (bfloat16 needs none) and 8-bit states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.autograd.graph import increment_version

from cotrain.core.errors import ConfigError, StateError, UnknownName

SHAPES = ("linear", "cosine", "wsd")


def has_bfloat16(device: torch.device) -> bool:
    """Does this device compute in bfloat16 faster than in float32? Of processors, those with AMX do; with AVX-512 alone
    a training step took 1.6 times as long as in float32 (``docs/log.md``). GPUs before Ampere emulate it."""
    on_gpu = device.type == "cuda"
    return torch.cuda.get_device_capability(device) >= (8, 0) if on_gpu else torch.cpu._is_amx_tile_supported()


def state_fields(part: torch.optim.Optimizer) -> tuple[str, ...]:
    """The tensors that it keeps of each parameter."""
    return ("step", "exp_avg", "exp_avg_sq") if isinstance(part, torch.optim.AdamW) else ("momentum_buffer",)


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
        """One update with every learning rate times ``multiplier``. Where memory does not hold the moments that a first
        one needs, nothing has changed."""
        self._make_moments()
        for part, rates in zip(self.parts, self._rates, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * multiplier
            part.step()
            increment_version(p for g in part.param_groups for p in g["params"])  # which fused kernels forget

    def _make_moments(self) -> None:
        """Those that torch would make one by one between changes of weights: all of them, or none."""
        made = []
        for part in self.parts:
            for group in part.param_groups:
                for parameter in (p for p in group["params"] if p.grad is not None and not part.state.get(p)):
                    moments = {field: torch.zeros_like(parameter) for field in state_fields(part) if field != "step"}
                    if isinstance(part, torch.optim.AdamW):
                        beside = parameter.device if group["fused"] or group["capturable"] else None
                        kind = torch.float32 if group["fused"] else None
                        moments = {"step": torch.zeros((), dtype=kind, device=beside), **moments}
                    made.append((part, parameter, moments))
        for part, parameter, moments in made:
            part.state[parameter] = moments

    def move_state(self, device: torch.device | None = None) -> None:
        """All moments to ``device``; None: to where each parameter is."""
        for part in self.parts:
            for parameter, state in part.state.items():
                state.update({field: state[field].to(device or parameter.device) for field in state})

    def clear_moments(self) -> None:
        """All moments: the next step is made as the first."""
        for part in self.parts:
            part.state.clear()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def adamw(
    model: nn.Module, lr: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.0
) -> Optimizer:
    """AdamW over the trainable parameters, with decay on matrices only (not on norms, biases, embeddings)."""
    named = trainable_parameters(model)
    embeddings = embedding_names(model)
    decayed = [p for name, p in named.items() if p.ndim >= 2 and name not in embeddings]
    plain = [p for name, p in named.items() if p.ndim < 2 or name in embeddings]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return Optimizer([torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)])


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
            f"{decay_fraction}",
            code="E_LR_SCHEDULE_RANGE",
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
    """All state as ``{"parameter.name:field": tensor}``, not copied; parameters without a step yet have none."""
    owners = _parameter_owners(optimizer, model).items()
    states = [(name, state, part) for name, (part, parameter) in owners if (state := part.state.get(parameter))]
    return {f"{name}:{field}": state[field].detach() for name, state, part in states for field in state_fields(part)}


def load_optimizer_tensors(optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put back what ``optimizer_tensors`` gave. Raises StateError, having changed nothing, when it does not fit."""
    owners = _parameter_owners(optimizer, model)
    states: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, field = key.rpartition(":")
        if name not in owners or field not in state_fields(owners[name][0]):
            raise StateError(
                f"state of optimizer does not fit: {key!r} belongs to no parameter of this model",
                code="E_OPTIMIZER_MISFIT",
            )
        parameter = owners[name][1]
        if field != "step" and tensor.shape != parameter.shape:
            raise StateError(
                f"state of optimizer does not fit: {key!r} has shape {tuple(tensor.shape)}, "
                f"the parameter {tuple(parameter.shape)}",
                code="E_OPTIMIZER_MISFIT",
            )
        states.setdefault(name, {})[field] = tensor
    for name, state in states.items():
        missing = [field for field in state_fields(owners[name][0]) if field not in state]
        if missing:
            raise StateError(
                f"state of optimizer does not fit: {name!r} lacks {', '.join(missing)}", code="E_OPTIMIZER_MISFIT"
            )
    for name, (part, parameter) in owners.items():
        part.state.pop(parameter, None)
        if name in states:
            saved = states[name].items()
            part.state[parameter] = {field: t.detach().to(parameter.device, copy=True) for field, t in saved}


def _parameter_owners(optimizer: Optimizer, model: nn.Module) -> dict[str, tuple[torch.optim.Optimizer, nn.Parameter]]:
    owner = {p: part for part in optimizer.parts for group in part.param_groups for p in group["params"]}
    return {name: (owner[p], p) for name, p in model.named_parameters() if p in owner}


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name. Raises ConfigError where there is none."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ConfigError("optimizer: the model has no trainable parameter; unfreeze some", code="E_NOTHING_TRAINABLE")
    return named


def embedding_names(model: nn.Module) -> set[str]:
    """Of embeddings and the output layer, which are not decayed."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {
        name for name, p in model.named_parameters() if id(p) in tables or name.rpartition(".")[0].endswith("lm_head")
    }
