"""Attention for packed rows on a CPU: document by document, instead of one square with a block mask.

A row of L tokens with documents of lengths n_1 + n_2 + … = L costs L² score pairs under a mask, most of which are
masked; document by document and causally it costs Σ n_i²/2. For documents of 200 tokens in rows of 512 that is a
quarter of the work, and attention takes most of the time of a small model on a CPU.

The function is registered with transformers under the name "documents" and selected with ``isolate_documents``; the
caller passes the lengths of documents. Sliding windows are used if a layer passes one. Left out: soft caps, sinks and
key-value caches. ``can_isolate`` says for which models the function is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from cotrain.models.load import ATTENTION
from cotrain.models.shared_prefix import is_plain

IMPLEMENTATION = "documents"
LONGEST = 1024  # most tokens of a document whose T² scores are kept for the backward pass


def can_isolate(model: nn.Module) -> bool:
    """Whether ``isolate_documents`` is exact for this model, and faster than a mask."""
    if not isinstance(model, PreTrainedModel) or model.device.type != "cpu":
        return False
    return is_plain(model)


def takes_mask(model: nn.Module) -> bool:
    """Whether a block mask isolates documents for this model. Most kinds of windows, recurrent layers and biases ignore
    a mask, and attention that adds its mask to scores would read True as 1."""
    return isinstance(model, PreTrainedModel) and is_plain(model) and model.config._attn_implementation == ATTENTION


@contextmanager
def isolate_documents(model: nn.Module) -> Iterator[None]:
    """Within the block, ``model`` must be called with ``document_lengths`` and without a mask.

    The lengths are those of all documents and paddings of all rows, in order; their sum is B·L.
    """
    assert isinstance(model, PreTrainedModel)
    before = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def document_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    document_lengths: Sequence[int],
    sliding_window: int | None = None,
    **kwargs: Any,  # other arguments that transformers passes to every attention function
) -> tuple[torch.Tensor, None]:
    """Causal attention within each document.

    Query ``[B, H, L, D]``, key and value ``[B, K, L, D]`` with H a multiple of K → ``[B, L, H, D]``.
    """
    rows, heads, length, size = query.shape
    scale = size**-0.5 if scaling is None else scaling
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype

    # All rows one after the other, then cut into documents: q [H, n_i, D], k and v [K, n_i, D].
    def split_documents(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        in_one_row = states.to(dtype).transpose(0, 1).reshape(states.shape[1], rows * length, size)
        return in_one_row.split(list(document_lengths), dim=1)

    documents = zip(split_documents(query * scale), split_documents(key), split_documents(value), strict=True)

    # −∞ for later tokens and for tokens before the window; each document uses its upper left corner.
    longest = max(document_lengths)
    bias = torch.full((longest, longest), -math.inf, dtype=dtype).triu(1)
    if sliding_window is not None and longest > sliding_window:
        bias += torch.full((longest, longest), -math.inf, dtype=dtype).tril(-sliding_window)

    outputs = [_attend_document(q, k, v, bias, dropout, sliding_window) for q, k, v in documents]
    return torch.cat(outputs, dim=1).view(heads, rows, length, size).permute(1, 2, 0, 3), None


def _attend_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Causal attention of one document: scaled query ``[H, T, D]``, key and value ``[K, T, D]`` → ``[H, T, D]``.
    ``bias`` [≥ T, ≥ T] is added to scores: −∞ for later tokens and for those before the ``window``.

    In bfloat16 plain matrix products are two to four times as fast as the fused kernel of torch 2.13, on processors
    with bfloat16 instructions. They keep T² scores for the backward pass, so longer documents use the fused kernel."""
    heads, length, size = query.shape
    if query.dtype != torch.bfloat16 or length > LONGEST:
        mask = bias[:length, :length] if window is not None and length > window else None
        return F.scaled_dot_product_attention(
            *(query[None], key[None], value[None], mask, dropout),
            is_causal=mask is None,
            scale=1.0,
            enable_gqa=heads != key.shape[0],
        )[0]

    key_heads = key.shape[0]
    scores = torch.bmm(query.reshape(key_heads, -1, size), key.transpose(1, 2)).view(heads, length, length)
    weights = scores.add_(bias[:length, :length]).softmax(-1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.bmm(weights.view(key_heads, -1, length), value).view(heads, length, size)


AttentionInterface.register(IMPLEMENTATION, document_attention)
