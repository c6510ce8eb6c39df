"""Causal attention of sequences that lie one after the other in a row, each perhaps after a beginning that others
share.

On a CPU, for models whose attention is plain. Padded to one rectangle under a mask, answers of drawn lengths cost two
to three times their own score pairs, and the fused kernels of torch 2.13 are made for wider heads and longer rows than
those of small models. Here each sequence is three matrix products over just what it sees, long ones block by block.

::

    row      P P P P a a a b b        piece  own     beginning
                                      P      0..4    none
                                      a      4..7    0..4
                                      b      7..9    0..4

The backward pass is written out, as that of slices would fill a whole row for each. It keeps the weights where they are
few, and computes them again where not. Equal to the rectangle up to rounding; always in float32 or wider, under
autocast too: scores in bfloat16 would have eight bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 256  # queries that are computed together
KEPT = 2**22  # weights of one layer and pass that are kept for the backward pass


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens ``start`` to ``end`` of a row, which see the tokens ``first`` to ``last`` besides what precedes them."""

    start: int
    end: int
    first: int = 0
    last: int = 0


def attend_pieces(query: Tensor, key: Tensor, value: Tensor, pieces: Sequence[Piece], scale: float) -> Tensor:
    """Query ``[H, N, D]``, key and value ``[K, N, D]``, H a multiple of K → ``[N, H, D]`` of the query's type.

    Each token of the row is of exactly one piece, and a beginning is a piece of its own before those that see it.
    """
    groups, (heads, length, size) = key.shape[0], query.shape
    kind = torch.promote_types(query.dtype, torch.float32)
    scaled_query = (
        (query.to(kind) * scale).view(groups, -1, length, size).transpose(1, 2).contiguous()
    )  # [K, N, H / K, D]
    mixed = _AttendPieces.apply(scaled_query, key.to(kind).contiguous(), value.to(kind).contiguous(), pieces)
    return mixed.transpose(0, 1).reshape(length, heads, size).to(query.dtype)


class _AttendPieces(torch.autograd.Function):
    """asked ``[K, N, R, D]``, scaled; keys and values ``[K, N, D]`` → ``[K, N, R, D]``."""

    @staticmethod
    def forward(ctx: Any, all_queries: Tensor, keys: Tensor, values: Tensor, pieces: Sequence[Piece]) -> Tensor:
        groups, _, repeat, size = all_queries.shape
        future = _future_mask(pieces, all_queries)
        pairs = sum((p.end - p.start) * (p.end - p.start + p.last - p.first) for p in pieces) * groups * repeat
        kept: list[Tensor] | None = [] if pairs <= KEPT and any(ctx.needs_input_grad) else None
        out = torch.empty_like(all_queries)
        with torch.autocast("cpu", enabled=False):
            for piece in pieces:
                seen, mixed = _visible_tokens(keys, piece), _visible_tokens(values, piece)
                for start, end, width in _query_blocks(piece):
                    weights = _attention_weights(all_queries[:, start:end], seen[:, :width], future)
                    out[:, start:end] = torch.bmm(weights, mixed[:, :width]).view(groups, -1, repeat, size)
                    if kept is not None:
                        kept.append(weights)
        ctx.save_for_backward(all_queries, keys, values, *(kept or ()))
        ctx.pieces, ctx.kept = pieces, kept is not None
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        all_queries, keys, values, *kept = ctx.saved_tensors
        groups, _, repeat, size = all_queries.shape
        future = _future_mask(ctx.pieces, all_queries)
        gradient = gradient.contiguous()
        query_gradient, key_gradient, value_gradient = (
            torch.empty_like(all_queries),
            torch.empty_like(keys),
            torch.empty_like(values),
        )
        stored = iter(kept)
        for piece in ctx.pieces:
            seen, mixed = _visible_tokens(keys, piece), _visible_tokens(values, piece)
            to_seen, to_mixed = torch.zeros_like(seen), torch.zeros_like(mixed)
            for start, end, width in _query_blocks(piece):
                queries = all_queries[:, start:end]
                weights = next(stored) if ctx.kept else _attention_weights(queries, seen[:, :width], future)
                block_gradient = gradient[:, start:end].reshape(groups, -1, size)
                to_weights = torch.bmm(block_gradient, mixed[:, :width].transpose(1, 2))
                to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
                query_gradient[:, start:end] = torch.bmm(to_scores, seen[:, :width]).view(groups, -1, repeat, size)
                to_seen[:, :width] += torch.bmm(to_scores.transpose(1, 2), queries.reshape(groups, -1, size))
                to_mixed[:, :width] += torch.bmm(weights.transpose(1, 2), block_gradient)
            beginning = piece.last - piece.first
            for full, part in ((key_gradient, to_seen), (value_gradient, to_mixed)):
                full[:, piece.start : piece.end] = part[:, beginning:]  # the piece's own, which later ones add to
                if beginning:
                    full[:, piece.first : piece.last] += part[:, :beginning]
        return query_gradient, key_gradient, value_gradient, None


def _future_mask(pieces: Sequence[Piece], like: Tensor) -> Tensor:
    """[n, 1, n] for the longest block: −∞ where a query would see what comes after it."""
    longest = min(BLOCK, max(piece.end - piece.start for piece in pieces))
    return like.new_full((longest, longest), -math.inf).triu_(1)[:, None]


def _visible_tokens(flat: Tensor, piece: Piece) -> Tensor:
    """[K, B + T, D]: the beginning and the piece itself."""
    own = flat[:, piece.start : piece.end]
    if piece.first == piece.last:
        return own
    if piece.last == piece.start:
        return flat[:, piece.first : piece.end]
    return torch.cat([flat[:, piece.first : piece.last], own], dim=1)


def _query_blocks(piece: Piece) -> Iterator[tuple[int, int, int]]:
    """Queries from, to, and how many of the keys they see at most."""
    beginning = piece.last - piece.first
    for start in range(piece.start, piece.end, BLOCK):
        end = min(start + BLOCK, piece.end)
        yield start, end, beginning + end - piece.start


def _attention_weights(queries: Tensor, seen: Tensor, future: Tensor) -> Tensor:
    """``[K, T, R, D]`` and ``[K, S, D]`` → ``[K, T · R, S]``, the last T keys being the queries' own."""
    groups, count, repeat, size = queries.shape
    scores = torch.bmm(queries.reshape(groups, -1, size), seen.transpose(1, 2))
    scores.view(groups, count, repeat, -1)[..., seen.shape[1] - count :] += future[:count, :, :count]
    return scores.softmax(-1)
