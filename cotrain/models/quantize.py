"""Frozen weights of linear layers in 4 bits: NF4 of bitsandbytes (QLoRA, Dettmers et al. 2023, arXiv 2305.14314).

A weight takes 0.56 bytes: half a byte, and a float32 for each block of 64. A layer dequantises its weights and computes
in the dtype of the model. Embeddings, norms and the output layer are not quantised.

Left out: scales that are quantised again, FP4, 8 bits, weights that were stored in 4 bits.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from cotrain.core.errors import ModelError

BYTES = 0.5 + 4 / 64  # bytes of a weight


def check_quantizer(where: str) -> None:
    """Raise ModelError if bitsandbytes is not installed."""
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            f"{where}: load_in_4bit needs bitsandbytes, which is not here; `pip install bitsandbytes`",
            code="E_BITSANDBYTES_NOT_INSTALLED",
        )


def quantization_of(where: str, dtype: torch.dtype | str) -> dict[str, Any]:
    """Arguments of transformers' ``from_pretrained`` for loading in 4 bits. Raises ModelError."""
    check_quantizer(where)
    from transformers import BitsAndBytesConfig

    compute_dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute_dtype)
    return {"quantization_config": settings, "device_map": {"": "cpu"}}


def keep_gradients(model: nn.Module) -> None:
    """Turn off a kernel of bitsandbytes for CPUs with bfloat16 instructions that has no backward pass."""
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def full_weight(layer: nn.Module) -> torch.Tensor:
    """The weight of a linear layer in float32 ``[out, in]``, dequantised if it is in 4 bits."""
    weight: Any = layer.weight
    if getattr(weight, "quant_state", None) is None:
        return weight.detach().float()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state).float()
