"""Attention for packed rows on a CPU: each document on its own, instead of one square with a block mask.

A row of L tokens that holds documents of lengths n_1 + n_2 + … = L costs L² score pairs under a mask, most of them
thrown away; document by document and causally it costs Σ n_i²/2. For documents of 200 tokens in rows of 512 that is a
quarter of the work, and attention is most of the time that a small model takes on a CPU.

Registered with transformers under its own name and chosen per model with ``isolate_documents``; the caller passes the
lengths. Sliding windows are those that a layer tells. Left out: soft caps, sinks and key-value caches. ``can_isolate``
says for which models that is no loss.
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
LONGEST = 1024  # tokens of a document whose scores may be kept


def can_isolate(model: nn.Module) -> bool:
    """Whether ``isolate_documents`` is exact for this model, and faster than a mask."""
    if not isinstance(model, PreTrainedModel) or model.device.type != "cpu":
        return False
    return is_plain(model)


def takes_mask(model: nn.Module) -> bool:
    """Does a block mask isolate documents for this model? Windows of most types, recurrent layers and biases would not
    heed it, and attention that adds its mask would take True for a number."""
    return isinstance(model, PreTrainedModel) and is_plain(model) and model.config._attn_implementation == ATTENTION


@contextmanager
def isolate_documents(model: nn.Module) -> Iterator[None]:
    """Within the block, ``model`` wants ``document_lengths`` with every call, and no mask.

    The lengths are those of all documents and paddings of all rows, in order; they sum to B·L.
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
    **kwargs: Any,  # what transformers hands to every attention function and this one has no use for
) -> tuple[torch.Tensor, None]:
    """Causal attention within each document: query ``[B, H, L, D]``, key and value ``[B, K, L, D]`` → ``[B, L, H,
    D]``."""
    rows, heads, length, size = query.shape
    scale = size**-0.5 if scaling is None else scaling
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    flat = [t.to(kind).transpose(0, 1).reshape(t.shape[1], rows * length, size) for t in (query * scale, key, value)]
    pieces = zip(*(t.split(list(document_lengths), dim=1) for t in flat), strict=True)
    longest = max(document_lengths)
    hidden = torch.full((longest, longest), -math.inf, dtype=kind).triu(1)
    if sliding_window is not None and longest > sliding_window:
        hidden += torch.full((longest, longest), -math.inf, dtype=kind).tril(-sliding_window)
    outputs = [_attend_document(q, k, v, hidden, dropout, sliding_window) for q, k, v in pieces]
    return torch.cat(outputs, dim=1).view(heads, rows, length, size).permute(1, 2, 0, 3), None


def _attend_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    hidden: torch.Tensor,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Causal attention of one document, query scaled: ``[H, T, D]`` and ``[K, T, D]`` twice → ``[H, T, D]``.
    ``hidden``, added to scores: what comes later, and what lies before the ``window``.

    In bfloat16 three matrix products beat the fused kernel of torch 2.13 two to four times on processors that have the
    instructions; up to a length where the T² scores, which they keep for the backward pass, are worth the memory.
    """
    heads, length, size = query.shape
    if query.dtype != torch.bfloat16 or length > LONGEST:
        shared = heads != key.shape[0]
        mask = hidden[:length, :length] if window is not None and length > window else None
        return F.scaled_dot_product_attention(
            *(query[None], key[None], value[None], mask, dropout),
            is_causal=mask is None,
            scale=1.0,
            enable_gqa=shared,
        )[0]

    groups = key.shape[0]
    scores = torch.bmm(query.reshape(groups, -1, size), key.transpose(1, 2)).view(heads, length, length)
    weights = scores.add_(hidden[:length, :length]).softmax(-1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.bmm(weights.view(groups, -1, length), value).view(heads, length, size)


AttentionInterface.register(IMPLEMENTATION, document_attention)
