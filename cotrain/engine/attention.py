"""Attention of one new token per row, to a prompt that several rows share and to the row's own tokens.

Rows with one prompt form a *tile*, and their queries are the rows of one matrix: a prompt's keys and values are read
once a tile instead of once a row (Juravsky et al. 2024, "Hydragen", arXiv:2402.05099). What a row sampled itself is
two small matrix products per row and key head. One softmax joins the two exactly. With prompt scores s_j and values
v_j it needs of the prompt only

    total = log Σ_j exp(s_j)        mixed = Σ_j exp(s_j - total) v_j

as the prompt then is one more column of the own scores: a token with score ``total`` and value ``mixed``.

Query heads of one key head are rows of the same left factor, so keys are never repeated. All factors have the head
dimension innermost, which on a CPU these small products read fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig

from cotrain.core.errors import ModelError

DECODE = "cotrain_decode"  # name of ``attend`` among the attention functions of transformers
_READS = "cotrain_reads"  # attribute of the keys that a cache hands to ``attend``


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTiles:
    """The prompts of one layer, in N tiles of T places each. K: key heads; H: query heads of a key head."""

    keys: Tensor  # [N * K, P, head_dim]
    values: Tensor  # [N * K, P, value's head_dim]
    mask: Tensor | None  # [N * K, 1, P], additive
    members: Tensor  # [N * K * T] of each place of each tile and head, the row and head; any where there is no row
    places: Tensor  # [R * K] of each row and head, its place


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReads:
    """What a decode step of R rows reads in one layer. The first own column is a place for the prompt: its values are
    zero, and ``attend`` replaces its score."""

    keys: Tensor  # [R * K, 1 + W, head_dim] own, a strided view
    values: Tensor  # [R * K, 1 + W, value's head_dim], a strided view
    mask: Tensor | None  # [R * K, 1, 1 + W], additive
    prompts: PromptTiles


def with_reads(keys: Tensor, reads: DecodeReads) -> Tensor:
    """The same keys; ``attend`` finds in them what to read."""
    setattr(keys, _READS, reads)
    return keys


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one query token per row, in the form that transformers calls attention functions.

    Args: query [R, heads, 1, head_dim]; key [R, K, 1, head_dim] with ``DecodeReads``, which hold all else; scores
    become softcap · tanh(score / softcap) (Gemma 2). Returns [R, 1, heads, value's head_dim]. Raises ModelError for
    what it cannot compute.
    """
    reads: DecodeReads | None = getattr(key, _READS, None)
    problems = [name for name in ("s_aux", "position_bias") if options.get(name) is not None]
    problems += ["a mask of its own"] * (attention_mask is not None)
    problems += [f"{query.shape[2]} queries a row"] * (query.shape[2] != 1)
    if problems or reads is None:
        problem = ", ".join(problems) or "other keys than the cache's"
        raise ModelError(f"the embedded engine cannot decode {type(module).__name__}: it uses {problem}")
    rows, heads, _, width = query.shape
    queries = query.reshape(rows * key.shape[1], -1, width) * (width**-0.5 if scaling is None else scaling)
    queries = queries.to(reads.keys.dtype)
    with torch.autocast(query.device.type, enabled=False):  # the cache says what is computed in
        mixed, total = _attend_prompts(queries, reads.prompts, softcap)
        scores = _attention_scores(queries, reads.keys, reads.mask, softcap)
        scores[:, :, :1] = total
        weights = torch.softmax(scores, dim=-1).to(mixed.dtype)
        own = torch.bmm(weights, reads.values)
    return own.addcmul_(weights[:, :, :1], mixed).view(rows, 1, heads, -1), None


def _attend_prompts(queries: Tensor, prompts: PromptTiles, softcap: float | None) -> tuple[Tensor, Tensor]:
    """``mixed`` [R * K, H, value's head_dim] and ``total`` [R * K, H, 1] for queries [R * K, H, head_dim]."""
    tiled = queries.index_select(0, prompts.members).view(prompts.keys.shape[0], -1, queries.shape[2])
    scores = _attention_scores(tiled, prompts.keys, prompts.mask, softcap)  # [N * K, T * H, P]
    weights = torch.softmax(scores, dim=-1)
    total = scores.amax(-1) - weights.amax(-1).log_()
    mixed = torch.bmm(weights.to(prompts.values.dtype), prompts.values)
    per_head = queries.shape[1]
    return (
        mixed.view(-1, per_head, mixed.shape[2]).index_select(0, prompts.places),
        total.view(-1, per_head, 1).index_select(0, prompts.places),
    )


def _attention_scores(queries: Tensor, keys: Tensor, mask: Tensor | None, softcap: float | None) -> Tensor:
    keys = keys.transpose(1, 2)
    if softcap is not None:
        capped = softcap * torch.tanh(torch.bmm(queries, keys).float() / softcap)
        return capped if mask is None else capped + mask
    scores = torch.bmm(queries, keys) if mask is None else torch.baddbmm(mask.to(queries.dtype), queries, keys)
    return scores.float()


AttentionInterface.register(DECODE, attend)


@contextmanager
def use_attention(config: PreTrainedConfig, name: str) -> Iterator[None]:
    """Within the block, models that hold this configuration compute attention with the function of that name."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
