"""Linear layers whose products are computed by oneDNN, on processors for which MKL is slow.

torch gives float32 products of matrices on a CPU to MKL. On AMD's processors with AVX-512 MKL uses half of their
width: 110 GFLOP/s on one core, where oneDNN, which torch has for convolutions, reaches 250. Gradients of weights are
computed 1.7 times as fast. Equal to MKL up to rounding. ``python benchmarks/products.py`` measures both.

Only products of many rows and wide layers: prefill, scoring and updates of real models. For each number of rows oneDNN
makes a program of its own (1 to 3 ms). A decode step has another number of rows every other time
(``inference/packed_weights.py`` is for them), and a model as small as the shipped ones gains 4 % of a step.

Left out: batched products, as those of attention, which torch gives to MKL alone.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEAST_ROWS = 256  # rows from which on a program of its own is worth making
NARROWEST = 192  # numbers in a row or a column of the least matrix for which it is
CPU_FACTS = Path("/proc/cpuinfo")


@lru_cache
def is_mkl_slow() -> bool:
    """Whether this is one of AMD's processors with AVX-512, and torch has oneDNN. It follows from the machine alone, so
    that a run that is resumed computes as before."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return False
    return CPU_FACTS.is_file() and "AuthenticAMD" in CPU_FACTS.read_text()


def use_onednn(model: nn.Module) -> None:
    """From now on the wide linear layers of ``model`` compute by oneDNN where it is faster."""
    if not is_mkl_slow():
        return
    for module in model.modules():
        if type(module) is nn.Linear and min(module.weight.shape) >= NARROWEST:
            module.__class__ = OneDNNLinear


class OneDNNLinear(nn.Linear):
    """``nn.Linear``, which computes many rows in float32 on a CPU by oneDNN, and all else as ever."""

    def forward(self, input: Tensor) -> Tensor:
        if not self._is_for_onednn(input):
            return F.linear(input, self.weight, self.bias)
        parts = (input, self.weight, self.bias)
        wants_gradient = any(part is not None and part.requires_grad for part in parts)
        if torch.is_grad_enabled() and wants_gradient:
            products: Tensor = _Product.apply(*parts)
            return products
        return multiply(*parts)

    def _is_for_onednn(self, rows: Tensor) -> bool:
        if rows.numel() < LEAST_ROWS * self.in_features or type(self.weight) is not nn.Parameter:
            return False  # a DTensor is no parameter
        if rows.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return False
        return rows.dtype == self.weight.dtype == torch.float32


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``[…, i]`` and ``[o, i]`` → ``[…, o]``, as ``F.linear`` has it; no gradient."""
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """``multiply`` with gradients: y = x Wᵀ + b gives dx = dy W, dW = dyᵀ x, db = Σ dy."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        to_rows, to_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(rows if to_weight else None, weight if to_rows else None)  # no more than F.linear keeps
        return multiply(rows, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        to_rows, to_weight, to_bias = ctx.needs_input_grad
        flat = gradient.flatten(0, -2)  # [n, o]
        return (
            multiply(gradient, weight.t()) if to_rows else None,
            multiply(flat.t(), rows.flatten(0, -2).t()) if to_weight else None,
            flat.sum(0) if to_bias else None,
        )
