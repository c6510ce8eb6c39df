"""Frozen weights of linear layers in 4 bits: NF4 of bitsandbytes (QLoRA, Dettmers et al. 2023, arXiv 2305.14314).

They take 0.56 bytes a weight: half a byte, and a float32 for each block of 64. A layer computes in the dtype of the
model, with its weights written out. Embeddings, norms and the output layer stay as they are.

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
    """Raise ModelError where nothing can be loaded in 4 bits."""
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            f"{where}: load_in_4bit needs bitsandbytes, which is not here; `pip install bitsandbytes`",
            code="E_BITSANDBYTES_NOT_INSTALLED",
        )


def quantization_of(where: str, dtype: torch.dtype | str) -> dict[str, Any]:
    """Arguments of transformers' ``from_pretrained``. Raises ModelError."""
    check_quantizer(where)
    from transformers import BitsAndBytesConfig

    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=kind)
    return {"quantization_config": settings, "device_map": {"": "cpu"}}


def keep_gradients(model: nn.Module) -> None:
    """On a CPU with half precision bitsandbytes lays weights out anew for inference, and no gradient passes through
    that: not here."""
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def full_weight(layer: nn.Module) -> torch.Tensor:
    """The weight of a linear layer in float32, whatever it is stored in. [out, in]"""
    weight: Any = layer.weight
    if getattr(weight, "quant_state", None) is None:
        return weight.detach().float()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state).float()
