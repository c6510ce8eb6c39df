"""Optimisers as named state: AdamW (arXiv 1711.05101), with one schedule. Muon: ``pretraining/muon.py``.

``Optimizer`` holds one or several torch optimisers that divide a model's parameters among them, and names every state
tensor after its parameter. So a checkpoint is a flat dictionary of tensors (safetensors, no pickle) that does not
depend on the order of parameters. Learning rates are settings and not state: ``step`` takes a multiplier.

Left out: gradient scaling (bfloat16 needs none) and 8-bit states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from cotrain.core.errors import ConfigError, StateError, UnknownName

SHAPES = ("linear", "cosine", "wsd")


def has_bfloat16(device: torch.device) -> bool:
    """Whether this device computes faster in bfloat16 than in float32. Processors with AMX do; with AVX-512 alone a
    training step took 1.6 times as long as in float32 (``docs/log.md``). GPUs before Ampere emulate bfloat16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.cpu._is_amx_tile_supported()


def state_fields(part: torch.optim.Optimizer) -> tuple[str, ...]:
    """Names of the state tensors of each parameter."""
    if isinstance(part, torch.optim.AdamW):
        return ("step", "exp_avg", "exp_avg_sq")
    return ("momentum_buffer",)


class Optimizer:
    """One or more torch optimisers over disjoint parameters of one model."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        self._rates = [_rates_of(part) for part in parts]  # for each part the learning rates of its parameter groups

    def parameters(self) -> Iterable[nn.Parameter]:
        for part in self.parts:
            yield from _parameters_of(part)

    def step(self, multiplier: float = 1.0) -> None:
        """One update with every learning rate times ``multiplier``. The first update allocates the moments; if memory
        runs out there, nothing has changed."""
        self._make_moments()
        for part, rates in zip(self.parts, self._rates, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * multiplier
            part.step()
            # Autograd's count of in-place changes, which fused kernels do not raise.
            increment_version(_parameters_of(part))

    def _make_moments(self) -> None:
        """Allocate all moments, or none. Torch would allocate them one by one, each just before it changes a weight."""
        new_states = []
        for part in self.parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and not part.state.get(parameter):
                        new_states.append((part, parameter, _first_state(part, group, parameter)))
        for part, parameter, state in new_states:
            part.state[parameter] = state

    def move_state(self, device: torch.device | None = None) -> None:
        """Move all moments to ``device``, or with None to where each parameter is."""
        for part in self.parts:
            for parameter, state in part.state.items():
                target = device or parameter.device
                for field in state:
                    state[field] = state[field].to(target)

    def clear_moments(self) -> None:
        """Drop all moments: the next step is as a first one."""
        for part in self.parts:
            part.state.clear()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def _rates_of(part: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in part.param_groups]


def _parameters_of(part: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    for group in part.param_groups:
        yield from group["params"]


def _first_state(
    part: torch.optim.Optimizer, group: Mapping[str, Any], parameter: nn.Parameter
) -> dict[str, torch.Tensor]:
    """The state of a parameter before its first update, as torch makes it."""
    state = {}
    if isinstance(part, torch.optim.AdamW):
        on_device = group["fused"] or group["capturable"]  # these kernels read the step there
        state["step"] = torch.zeros(
            (),
            dtype=torch.float32 if group["fused"] else None,
            device=parameter.device if on_device else None,
        )
    for field in state_fields(part):
        if field != "step":
            state[field] = torch.zeros_like(parameter)
    return state


def adamw(
    model: nn.Module, lr: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.0
) -> Optimizer:
    """AdamW over the trainable parameters, with decay on matrices only (not on norms, biases, embeddings)."""
    embeddings = embedding_names(model)
    with_decay = []
    without_decay = []
    for name, parameter in trainable_parameters(model).items():
        if parameter.ndim >= 2 and name not in embeddings:
            with_decay.append(parameter)
        else:
            without_decay.append(parameter)

    groups: list[dict[str, Any]] = []
    if with_decay:
        groups.append({"params": with_decay, "weight_decay": weight_decay})
    if without_decay:
        groups.append({"params": without_decay, "weight_decay": 0.0})
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
    decay_steps = min(round(total * decay_fraction), max(total - warmup, 0))
    decay_start = total - decay_steps
    if step < decay_start or not decay_steps:
        return rise
    progress = (step - decay_start) / decay_steps  # in [0, 1)
    if shape == "linear":
        return rise * (1.0 - progress)
    if shape == "cosine":
        return rise * 0.5 * (1.0 + math.cos(math.pi * progress))
    return rise * (1.0 - math.sqrt(progress))  # "wsd"


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """All state as ``{"parameter.name:field": tensor}``, not copied. Parameters that were never updated have none."""
    tensors = {}
    for name, (part, parameter) in _parameter_owners(optimizer, model).items():
        state = part.state.get(parameter)
        if not state:
            continue
        for field in state_fields(part):
            tensors[f"{name}:{field}"] = state[field].detach()
    return tensors


def load_optimizer_tensors(optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Restore what ``optimizer_tensors`` returned. Raises StateError, with nothing changed, if it does not fit."""
    owners = _parameter_owners(optimizer, model)
    states: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, field = key.rpartition(":")
        if name not in owners or field not in state_fields(owners[name][0]):
            raise StateError(
                f"state of optimizer does not fit: {key!r} belongs to no parameter of this model",
                code="E_OPTIMIZER_MISFIT",
            )
        _, parameter = owners[name]
        if field != "step" and tensor.shape != parameter.shape:
            raise StateError(
                f"state of optimizer does not fit: {key!r} has shape {tuple(tensor.shape)}, "
                f"the parameter {tuple(parameter.shape)}",
                code="E_OPTIMIZER_MISFIT",
            )
        states.setdefault(name, {})[field] = tensor

    for name, state in states.items():
        part, _ = owners[name]
        missing = [field for field in state_fields(part) if field not in state]
        if missing:
            raise StateError(
                f"state of optimizer does not fit: {name!r} lacks {', '.join(missing)}", code="E_OPTIMIZER_MISFIT"
            )
    for name, (part, parameter) in owners.items():
        part.state.pop(parameter, None)
        if name in states:
            state = {}
            for field, tensor in states[name].items():
                state[field] = tensor.detach().to(parameter.device, copy=True)
            part.state[parameter] = state


def _parameter_owners(optimizer: Optimizer, model: nn.Module) -> dict[str, tuple[torch.optim.Optimizer, nn.Parameter]]:
    """Name of a parameter → the torch optimiser that changes it, and the parameter."""
    owner = {}
    for part in optimizer.parts:
        for parameter in _parameters_of(part):
            owner[parameter] = part
    return {name: (owner[p], p) for name, p in model.named_parameters() if p in owner}


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters with ``requires_grad``, by name. Raises ConfigError where there is none."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ConfigError("optimizer: the model has no trainable parameter; unfreeze some", code="E_NOTHING_TRAINABLE")
    return named


def embedding_names(model: nn.Module) -> set[str]:
    """Names of the weights of embeddings and of the output layer, which have no weight decay."""
    embedding_weights = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    names = set()
    for name, parameter in model.named_parameters():
        module_name, _, _ = name.rpartition(".")
        if id(parameter) in embedding_weights or module_name.endswith("lm_head"):
            names.add(name)
    return names
