"""Attention over sequences that begin alike: what several of them begin with is once, and the rest branches off.

A group of G answers to a prompt of P tokens is G·(P + T) tokens when each is a row of its own, and P + G·T where the
prompt is once: with eight answers about as long as the prompt, half of the work of every layer. Answers begin alike
too, and some are the same: then it is less still. Sequences are laid out as a tree, in one row::

    P P P P ┬ a a a        place   0 1 2 3 4 5 6 7 8 9 …
            └ b b          token   P P P P a a a b b Q …    a and b answer P: each sees P and itself

The model runs over one row of all N tokens; each token has the position that it would have in a row of its own. Only
this attention function knows that they are several sequences. On a CPU it takes them piece by piece
(``attend_pieces``); elsewhere padded to rectangles under a mask, in fused kernels. Equal to separate rows up to
rounding (the tests hold us to it). Sliding windows count the positions of a sequence, across the places where it
branches off. Left out: soft caps, sinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from cotrain.models.load import ATTENTION

# -- Causal attention of sequences that lie one after the other in a row, each perhaps after a beginning that others
# share.
#
# On a CPU, for models whose attention is plain. Padded to one rectangle under a mask, answers of drawn lengths cost
# two to three times their own score pairs, and the fused kernels of torch 2.13 are made for wider heads and longer
# rows than those of small models. Here each sequence is three matrix products over just what it sees, long ones block
# by block.
#
# ::
#
#     row      P P P P a a a b b        piece  own     sees besides
#                                       P      0..4    nothing
#                                       a      4..7    0..4
#                                       b      7..9    0..4
#
# The backward pass is written out, as that of slices would fill a whole row for each. It keeps the weights where they
# are few, and computes them again where not. Equal to the rectangle up to rounding; always in float32 or wider, under
# autocast too: scores in bfloat16 would have eight bits.


# Kinds of layers, by transformers' names.
FULL = "full_attention"
SLIDING = "sliding_attention"

PLAIN = (  # types of model whose attention is causal softmax attention and nothing else, where no window is set
    "llama", "qwen2", "qwen3", "gemma", "mistral", "smollm3", "nanochat", "granite", "mixtral", "qwen3_moe", "olmo2",
    "phi3", "nanochat_gpt"
)  # fmt: skip
WINDOWED = ("nanochat_gpt",)  # those of them whose layers tell the attention function their window, and which take a
# mask for each kind of layer
BLOCK = 256  # queries that are computed together
KEPT = 2**22  # weights of one layer and pass that are kept for the backward pass


Range = tuple[int, int]  # places of a row, from and to


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens ``start`` to ``end`` of a row, which see the tokens of ``seen`` besides what precedes them."""

    start: int
    end: int
    seen: tuple[Range, ...] = ()  # in the order of the sequence; neighbours in the row are one range

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def beginning(self) -> int:
        """Tokens of the sequence before this piece."""
        return sum(end - start for start, end in self.seen)

    @property
    def path(self) -> tuple[Range, ...]:
        """All of the sequence up to the end of this piece."""
        if self.seen and self.seen[-1][1] == self.start:
            return (*self.seen[:-1], (self.seen[-1][0], self.end))
        return (*self.seen, (self.start, self.end))


def attend_pieces(
    query: Tensor, key: Tensor, value: Tensor, pieces: Sequence[Piece], scale: float, window: int | None = None
) -> Tensor:
    """Query ``[H, N, D]``, key and value ``[K, N, D]``, H a multiple of K → ``[N, H, D]`` of the query's type.

    Each token of the row is of exactly one piece, and a beginning is a piece of its own before those that see it. A
    token sees at most the last ``window`` tokens of its sequence, itself among them.
    """
    groups = key.shape[0]
    heads, length, size = query.shape
    kind = torch.promote_types(query.dtype, torch.float32)
    scaled = (query.to(kind) * scale).view(groups, -1, length, size).transpose(1, 2).contiguous()  # [K, N, H / K, D]
    mixed = _AttendPieces.apply(scaled, key.to(kind).contiguous(), value.to(kind).contiguous(), pieces, window)
    return mixed.transpose(0, 1).reshape(length, heads, size).to(query.dtype)


class _AttendPieces(torch.autograd.Function):
    """asked ``[K, N, R, D]``, scaled; keys and values ``[K, N, D]`` → ``[K, N, R, D]``."""

    @staticmethod
    def forward(
        ctx: Any, all_queries: Tensor, keys: Tensor, values: Tensor, pieces: Sequence[Piece], window: int | None
    ) -> Tensor:
        groups, _, repeat, size = all_queries.shape
        future = _future_mask(pieces, all_queries)
        pairs = sum(p.length * (p.beginning + p.length) for p in pieces) * groups * repeat
        kept: list[Tensor] | None = [] if pairs <= KEPT and any(ctx.needs_input_grad) else None
        out = torch.empty_like(all_queries)
        both = torch.cat([keys, values])  # [2 K, N, D]: what a piece sees is picked once for both
        with torch.autocast("cpu", enabled=False):
            for piece in pieces:
                seen, mixed = _visible_tokens(both, piece).chunk(2)
                for start, end, width in _query_blocks(piece):
                    weights = _attention_weights(all_queries[:, start:end], seen[:, :width], future, window)
                    out[:, start:end] = torch.bmm(weights, mixed[:, :width]).view(groups, -1, repeat, size)
                    if kept is not None:
                        kept.append(weights)

        ctx.save_for_backward(all_queries, both, *(kept or ()))
        ctx.pieces = pieces
        ctx.kept = kept is not None
        ctx.window = window
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        all_queries, both, *kept = ctx.saved_tensors
        groups, _, repeat, size = all_queries.shape
        future = _future_mask(ctx.pieces, all_queries)
        gradient = gradient.contiguous()
        query_gradient = torch.empty_like(all_queries)
        both_gradient = torch.empty_like(both)
        stored = iter(kept)
        for piece in ctx.pieces:
            visible = _visible_tokens(both, piece)
            to_visible = torch.zeros_like(visible)
            seen, mixed = visible.chunk(2)
            to_seen, to_mixed = to_visible.chunk(2)
            for start, end, width in _query_blocks(piece):
                queries = all_queries[:, start:end]
                if ctx.kept:
                    weights = next(stored)
                else:
                    weights = _attention_weights(queries, seen[:, :width], future, ctx.window)
                block_gradient = gradient[:, start:end].reshape(groups, -1, size)
                to_weights = torch.bmm(block_gradient, mixed[:, :width].transpose(1, 2))
                to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
                query_gradient[:, start:end] = torch.bmm(to_scores, seen[:, :width]).view(groups, -1, repeat, size)
                to_seen[:, :width] += torch.bmm(to_scores.transpose(1, 2), queries.reshape(groups, -1, size))
                to_mixed[:, :width] += torch.bmm(weights.transpose(1, 2), block_gradient)

            before = piece.beginning
            both_gradient[:, piece.start : piece.end] = to_visible[:, before:]  # its own, which later ones add to
            place = 0
            for start, end in piece.seen:
                both_gradient[:, start:end] += to_visible[:, place : place + end - start]
                place += end - start

        key_gradient, value_gradient = both_gradient.chunk(2)
        return query_gradient, key_gradient, value_gradient, None, None


def _future_mask(pieces: Sequence[Piece], like: Tensor) -> Tensor:
    """[n, 1, n] for the longest block: −∞ where a query would see what comes after it."""
    longest = min(BLOCK, max(piece.length for piece in pieces))
    return like.new_full((longest, longest), -math.inf).triu_(1)[:, None]


def _visible_tokens(flat: Tensor, piece: Piece) -> Tensor:
    """[K, B + T, D]: the beginning and the piece itself."""
    parts = [flat[:, start:end] for start, end in piece.path]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _query_blocks(piece: Piece) -> Iterator[tuple[int, int, int]]:
    """Queries from, to, and how many of the keys they see at most."""
    beginning = piece.beginning
    for start in range(piece.start, piece.end, BLOCK):
        end = min(start + BLOCK, piece.end)
        yield start, end, beginning + end - piece.start


def _attention_weights(queries: Tensor, seen: Tensor, future: Tensor, window: int | None) -> Tensor:
    """``[K, T, R, D]`` and ``[K, S, D]`` → ``[K, T · R, S]``, the last T keys being the queries' own."""
    groups, count, repeat, size = queries.shape
    width = seen.shape[1]
    scores = torch.bmm(queries.reshape(groups, -1, size), seen.transpose(1, 2))
    by_query = scores.view(groups, count, repeat, width)
    by_query[..., width - count :].add_(future[:count, :, :count])
    if window is not None and width > window:
        own_places = torch.arange(width - count, width, device=queries.device)
        distance = own_places[:, None] - torch.arange(width, device=queries.device)
        by_query.masked_fill_((distance >= window)[:, None], -math.inf)
    return scores.softmax(-1)


BRANCHES = "branches"  # name of ``branch_attention`` among the attention functions of transformers
RECTANGLE = 4  # sequences × longest, which attention pads to off the CPU, over the budget of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangles:
    """Where the tokens of U roots (up to P long) and B branches (up to T long, after up to S tokens) stand in the row
    of N. A root is a piece that sees nothing besides itself."""

    roots: torch.Tensor  # [U, P] int64, place of each token of a root, 0 on padding
    branches: torch.Tensor  # [B, T] int64, place of each token of a branch, 0 on padding
    keys: torch.Tensor  # [B, S + T] int64, what a branch may look at: its beginning, then itself
    seen: torch.Tensor  # [B, 1, T, S + T] bool, True where it does
    back: torch.Tensor  # [N] int64, where the result for each place lies among U·P and B·T results


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """The tokens that each token of a row of N sees."""

    pieces: tuple[Piece, ...]  # each behind those that it sees
    positions: torch.Tensor  # [1, N] int64, of each token within its own sequence
    before: torch.Tensor  # [N] int64, the place of the token before each in its sequence; any where there is none. It
    # stays on the CPU: few models ask for it (``nanochat_gpt.py``)
    rectangles: Rectangles | None = None  # the same in tensors; None: piece by piece

    def to(self, device: torch.device, non_blocking: bool = False) -> Branches:
        """The same on a device: padded to rectangles anywhere but on a CPU."""
        if device.type == "cpu":
            return self
        rectangles = self.rectangles or rectangles_of(self.pieces)
        tensors = {
            f.name: getattr(rectangles, f.name).to(device, non_blocking=non_blocking) for f in fields(rectangles)
        }
        positions = self.positions.to(device, non_blocking=non_blocking)
        return replace(self, positions=positions, rectangles=Rectangles(**tensors))


def branches_of(pieces: Sequence[Piece]) -> Branches:
    """``pieces``: those of a row, in its order."""
    positions = [torch.arange(piece.beginning, piece.beginning + piece.length) for piece in pieces]
    before = torch.arange(-1, pieces[-1].end - 1).clamp(min=0)
    for piece in pieces:
        if piece.seen:
            before[piece.start] = piece.seen[-1][1] - 1
    return Branches(pieces=tuple(pieces), positions=torch.cat(positions)[None], before=before)


# -- Sequences as a tree: up to where they part, what they have in common is once.


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Some sequences in one row of N tokens."""

    ids: list[int]  # [N]
    places: list[list[int]]  # the place of each token of each sequence
    branches: Branches


@dataclass(frozen=True, slots=True)
class _Subtree:
    """Sequences that begin alike: those at ``low`` to ``high`` in their sorted order."""

    low: int
    high: int
    depth: int  # tokens of their common beginning that stand in the row already
    seen: tuple[Range, ...]  # the places of these


def prefix_tree(sequences: Sequence[tuple[int, ...]]) -> PrefixTree:
    """Lay out sequences so that what they begin with alike is once, and equal ones are one.

    The row depends on the sequences alone and not on their order, in which ``places`` are.
    """
    order = sorted(range(len(sequences)), key=lambda i: sequences[i])
    ids: list[int] = []
    pieces: list[Piece] = []
    places: list[list[int]] = [[] for _ in sequences]
    open_subtrees = [_Subtree(0, len(sequences), 0, ())]
    while open_subtrees:
        subtree = open_subtrees.pop()
        members = order[subtree.low : subtree.high]
        first = sequences[members[0]]
        if len(sequences[members[-1]]) == subtree.depth:  # as is each of them
            for member in members:
                places[member] = [place for start, end in subtree.seen for place in range(start, end)]
            continue
        common = common_length(first, sequences[members[-1]], subtree.depth)
        seen = subtree.seen
        if common > subtree.depth:
            piece = Piece(len(ids), len(ids) + common - subtree.depth, seen)
            ids += first[subtree.depth : common]
            pieces.append(piece)
            seen = piece.path
        cuts = _fork_cuts([sequences[member] for member in members], common)
        branches = [_Subtree(subtree.low + start, subtree.low + end, common, seen) for start, end in pairwise(cuts)]
        open_subtrees += reversed(branches)  # the first branch follows its trunk in the row, so the two are one range
    return PrefixTree(ids=ids, places=places, branches=branches_of(pieces))


def common_length(one: Sequence[int], other: Sequence[int], least: int = 0) -> int:
    """The number of tokens that both begin with, given that it is at least ``least``."""
    for place in range(least, min(len(one), len(other))):
        if one[place] != other[place]:
            return place
    return min(len(one), len(other))


def _fork_cuts(members: Sequence[Sequence[int]], depth: int) -> list[int]:
    """The cuts between sorted sequences that agree in ``depth`` tokens: between two cuts all have the same next token,
    or none. The first cut is 0, the last their number."""
    following = []
    for sequence in members:
        following.append(sequence[depth] if len(sequence) > depth else None)
    inside = [i for i in range(1, len(members)) if following[i] != following[i - 1]]
    return [0, *inside, len(members)]


def rectangles_of(pieces: Sequence[Piece]) -> Rectangles:
    """Roots and branches, each padded to the longest of their kind."""
    roots = [piece for piece in pieces if not piece.seen]
    branches = [piece for piece in pieces if piece.seen]
    is_root_token, root_places = _pad_ranges([[(p.start, p.end)] for p in roots])
    is_branch_token, branch_places = _pad_ranges([[(p.start, p.end)] for p in branches])
    is_beginning, beginnings = _pad_ranges([p.seen for p in branches])
    tail = is_branch_token.shape[1]
    before = is_beginning[:, None, None, :].expand(-1, 1, tail, -1)
    itself = torch.ones(tail, tail, dtype=torch.bool).tril()[None, None].expand(len(branches), 1, tail, tail)
    back = torch.zeros(max(p.end for p in pieces), dtype=torch.int64)
    root_results = torch.arange(is_root_token.numel()).view_as(is_root_token)
    branch_results = torch.arange(is_branch_token.numel()).view_as(is_branch_token) + is_root_token.numel()
    back[root_places[is_root_token]] = root_results[is_root_token]
    back[branch_places[is_branch_token]] = branch_results[is_branch_token]
    return Rectangles(
        roots=root_places,
        branches=branch_places,
        keys=torch.cat([beginnings, branch_places], dim=1),
        seen=torch.cat([before, itself], dim=3),
        back=back,
    )


def _pad_ranges(rows: Sequence[Sequence[Range]]) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, longest] each: True on tokens, and the places of those in the ranges of each row, 0 on padding."""
    if not rows:
        return torch.zeros(0, 0, dtype=torch.bool), torch.zeros(0, 0, dtype=torch.int64)
    places = []
    for ranges in rows:
        pieces = [torch.arange(start, end) for start, end in ranges]
        places.append(torch.cat(pieces))
    sizes = torch.tensor([len(own) for own in places])
    is_token = torch.arange(int(sizes.max()))[None] < sizes[:, None]
    return is_token, torch.nn.utils.rnn.pad_sequence(places, batch_first=True)


def is_plain(model: PreTrainedModel) -> bool:
    """Whether attention of this model may be computed by other functions than those of transformers."""
    if model.config.model_type in WINDOWED:
        return True
    kinds = set(getattr(model.config, "layer_types", None) or ())
    windowed = bool(kinds - {"full_attention"}) or (not kinds and bool(getattr(model.config, "sliding_window", None)))
    return model.config.model_type in PLAIN and not windowed


def layer_windows(config: PreTrainedConfig) -> list[int | None]:
    """The number of tokens that each layer of a model in ``WINDOWED`` sees, the query's own among them; None for all.
    Empty for models without windows, and for those whose windows only transformers' own functions know."""
    window = getattr(config, "sliding_window", None)
    if config.model_type not in WINDOWED or window is None:
        return []
    windows: list[int | None] = []
    for kind in config.layer_types:
        windows.append(window if kind == SLIDING else None)
    return windows


def masks_by_kind(
    config: PreTrainedConfig, mask: Tensor, queries: Tensor, keys: Tensor
) -> Tensor | dict[str, Tensor | None]:
    """A mask ``[B, 1, L, S]``, True where a query looks, for every kind of layer that a model has.

    ``queries`` [B, L] and ``keys`` [B, S]: the positions of tokens in their sequences.
    """
    windows = layer_windows(config)
    if not windows:
        return mask
    distance = queries[:, :, None] - keys[:, None, :]
    near = distance < min(window for window in windows if window is not None)
    return {FULL: mask, SLIDING: mask & near[:, None]}


def can_branch(model: nn.Module) -> bool:
    """Whether attention by branches is exact for this model, which PEFT may have wrapped."""
    plain = _unwrap_peft(model)
    if not isinstance(plain, PreTrainedModel):
        return False
    return is_plain(plain) and plain.config._attn_implementation in (ATTENTION, BRANCHES)  # another one was asked for


def _unwrap_peft(model: nn.Module) -> nn.Module:
    """The model inside of PEFT's wrapper; any other as it is."""
    if isinstance(model, PreTrainedModel):
        return model
    from peft import PeftModel  # here, as it takes half a second that few programs need

    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextmanager
def use_branches(model: PreTrainedModel) -> Iterator[None]:
    """Within the block, ``model`` wants ``branches`` with every call, and no mask."""
    before = model.config._attn_implementation
    model.config._attn_implementation = BRANCHES
    try:
        yield
    finally:
        model.config._attn_implementation = before


def branch_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    branches: Branches,
    sliding_window: int | None = None,
    **kwargs: Any,  # what transformers hands to every attention function and this one has no use for
) -> tuple[torch.Tensor, None]:
    """Query ``[1, H, N, D]``, key and value ``[1, K, N, D]`` → ``[1, N, H, D]``. There is no dropout."""
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if branches.rectangles is None:
        return attend_pieces(query[0], key[0], value[0], branches.pieces, scale, sliding_window)[None], None
    near = None if sliding_window is None else partial(_within_window, branches.positions[0], sliding_window)
    return _attend_rectangles(query, key, value, branches.rectangles, scale, near), None


def _within_window(positions: Tensor, window: int, queries: Tensor, keys: Tensor) -> Tensor:
    """[R, 1, L, S] bool, for places [R, L] of queries and [R, S] of keys: is the key near enough to be seen?"""
    return (positions[queries][:, :, None] - positions[keys][:, None, :] < window)[:, None]


def _attend_rectangles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    where: Rectangles,
    scale: float,
    near: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> torch.Tensor:
    """As ``branch_attention``; ``near``, of places of queries and keys, says what a window shows.

    Key heads are repeated: under a mask, the fused kernels of GPUs do not share them, and plain products would keep the
    scores of all pairs for the backward pass.
    """
    heads, size = query.shape[1], query.shape[3]
    repeat = heads // key.shape[1]
    q, k, v = (t[0].transpose(0, 1).flatten(1) for t in (query, key, value))  # [N, heads · D]

    def pick_heads(flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """``[R, L]`` places → ``[R, heads, L, D]``. An embedding's backward pass adds up faster than an index's."""
        return F.embedding(index, flat).unflatten(2, (-1, size)).transpose(1, 2)

    def pick_repeated(flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """The same of keys and values, each head as often as it is read."""
        return pick_heads(flat, index) if repeat == 1 else pick_heads(flat, index).repeat_interleave(repeat, 1)

    results = []
    kinds = (where.roots, where.roots, None), (where.branches, where.keys, where.seen)
    for query_places, key_places, mask in kinds:
        if query_places.shape[1]:
            if near is not None:
                mask = _windowed_mask(mask, near(query_places, key_places))
            mixed = F.scaled_dot_product_attention(
                pick_heads(q, query_places),
                pick_repeated(k, key_places),
                pick_repeated(v, key_places),
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
            )
            results.append(mixed.transpose(1, 2).reshape(-1, heads * size))
    return F.embedding(where.back, torch.cat(results)).view(1, -1, heads, size)


def _windowed_mask(mask: Tensor | None, near: Tensor) -> Tensor:
    """``near`` [R, 1, L, S] where ``mask``, or causality where there is none, also shows the key."""
    if mask is None:
        return near & near.new_ones(near.shape[2:]).tril()
    return near & mask


AttentionInterface.register(BRANCHES, branch_attention)
