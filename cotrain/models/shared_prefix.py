"""Attention over sequences with common prefixes: a prefix that several sequences share is computed once.

G answers of T tokens to a prompt of P tokens are G·(P + T) tokens if each has a row of its own, and P + G·T if the
prompt occurs once: with eight answers about as long as the prompt, half of the work of every layer. Beginnings that
answers share are computed once, too. The sequences are laid out as a tree, in one row::

    P P P P ┬ a a a        place   0 1 2 3 4 5 6 7 8 9 …
            └ b b          token   P P P P a a a b b Q …    a and b answer P: each sees P and itself

A *place* is an index in this row of N tokens; a *position* is an index in a token's own sequence, which rotary
embeddings use. Only this attention function knows that the row holds several sequences. On a CPU it computes them piece
by piece (``attend_pieces``); on other devices padded to rectangles with a mask, in fused kernels. The result equals
that of separate rows up to rounding, which tests check. Sliding windows count positions. Left out: soft caps, sinks.
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

# -- Causal attention piece by piece, on a CPU.
#
# A piece is a run of tokens in the row without branches. Each piece takes three matrix products over just the tokens
# that it sees; long pieces are computed in blocks of queries. Padded to one rectangle, sampled answers would cost two
# to three times as many score pairs, and the fused kernels of torch 2.13 are made for wider heads and longer rows than
# those of small models.
#
# ::
#
#     row      P P P P a a a b b        piece  own     also sees
#                                       P      0..4    nothing
#                                       a      4..7    0..4
#                                       b      7..9    0..4
#
# The backward pass is written by hand, since autograd would fill a gradient of the whole row for each slice. It keeps
# the attention weights if they are few, and computes them again otherwise. Equal to the rectangles up to rounding.
# Always in float32 or wider, also under autocast, as scores in bfloat16 would have eight bits.


# Kinds of layers, by transformers' names.
FULL = "full_attention"
SLIDING = "sliding_attention"

PLAIN = (  # model types with nothing but causal softmax attention, if no window is configured
    "llama", "qwen2", "qwen3", "gemma", "mistral", "smollm3", "nanochat", "granite", "mixtral", "qwen3_moe", "olmo2",
    "phi3", "nanochat_gpt"
)  # fmt: skip
# Those of them whose layers pass their window to the attention function, and which take a mask for each kind of layer.
WINDOWED = ("nanochat_gpt",)
BLOCK = 256  # queries that are computed together
MOST_KEPT = 2**22  # most attention weights of one layer and pass that are kept for the backward pass


Range = tuple[int, int]  # places in a row: (first, one past the last)


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens at places ``start`` to ``end`` of a row. They see their prefix, and each other causally."""

    start: int
    end: int
    prefix: tuple[Range, ...] = ()  # places of the earlier tokens of the sequence, in its order; neighbours are joined

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def prefix_length(self) -> int:
        """Tokens of the sequence before this piece."""
        return sum(end - start for start, end in self.prefix)

    @property
    def path(self) -> tuple[Range, ...]:
        """Places of the sequence up to the end of this piece."""
        if self.prefix and self.prefix[-1][1] == self.start:
            return (*self.prefix[:-1], (self.prefix[-1][0], self.end))
        return (*self.prefix, (self.start, self.end))


def attend_pieces(
    query: Tensor, key: Tensor, value: Tensor, pieces: Sequence[Piece], scale: float, window: int | None = None
) -> Tensor:
    """Query ``[H, N, D]``, key and value ``[K, N, D]``, H a multiple of K → ``[N, H, D]`` in the query's dtype.

    Each token of the row is in exactly one piece, and a prefix is in pieces before those that see it. A token sees at
    most the last ``window`` tokens of its sequence, itself included; None: all."""
    key_heads = key.shape[0]
    heads, length, size = query.shape
    dtype = torch.promote_types(query.dtype, torch.float32)

    # The H / K query heads that share a key head are one dimension: [K, N, H / K, D].
    scaled = (query.to(dtype) * scale).view(key_heads, -1, length, size).transpose(1, 2).contiguous()
    output = _AttendPieces.apply(scaled, key.to(dtype).contiguous(), value.to(dtype).contiguous(), pieces, window)
    return output.transpose(0, 1).reshape(length, heads, size).to(query.dtype)


class _AttendPieces(torch.autograd.Function):
    """Scaled queries ``[K, N, R, D]`` (R = H / K), keys and values ``[K, N, D]`` → ``[K, N, R, D]``."""

    @staticmethod
    def forward(
        ctx: Any, all_queries: Tensor, keys: Tensor, values: Tensor, pieces: Sequence[Piece], window: int | None
    ) -> Tensor:
        key_heads, _, repeat, size = all_queries.shape
        future = _future_mask(pieces, all_queries)
        n_pairs = sum(p.length * (p.prefix_length + p.length) for p in pieces) * key_heads * repeat
        kept: list[Tensor] | None = [] if n_pairs <= MOST_KEPT and any(ctx.needs_input_grad) else None
        out = torch.empty_like(all_queries)
        keys_and_values = torch.cat([keys, values])  # [2 K, N, D], so that visible tokens are gathered once for both
        with torch.autocast("cpu", enabled=False):
            for piece in pieces:
                piece_keys, piece_values = _visible_tokens(keys_and_values, piece).chunk(2)  # [K, S, D] each
                for start, end, width in _query_blocks(piece):
                    weights = _attention_weights(all_queries[:, start:end], piece_keys[:, :width], future, window)
                    out[:, start:end] = torch.bmm(weights, piece_values[:, :width]).view(key_heads, -1, repeat, size)
                    if kept is not None:
                        kept.append(weights)

        ctx.save_for_backward(all_queries, keys_and_values, *(kept or ()))
        ctx.pieces = pieces
        ctx.kept = kept is not None
        ctx.window = window
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        all_queries, keys_and_values, *kept = ctx.saved_tensors
        key_heads, _, repeat, size = all_queries.shape
        future = _future_mask(ctx.pieces, all_queries)
        gradient = gradient.contiguous()
        query_gradient = torch.empty_like(all_queries)
        kv_gradient = torch.empty_like(keys_and_values)
        kept_weights = iter(kept)
        for piece in ctx.pieces:
            visible = _visible_tokens(keys_and_values, piece)
            visible_gradient = torch.zeros_like(visible)
            piece_keys, piece_values = visible.chunk(2)
            key_gradient, value_gradient = visible_gradient.chunk(2)  # views, filled below
            for start, end, width in _query_blocks(piece):
                queries = all_queries[:, start:end]
                if ctx.kept:
                    weights = next(kept_weights)
                else:
                    weights = _attention_weights(queries, piece_keys[:, :width], future, ctx.window)
                block_gradient = gradient[:, start:end].reshape(key_heads, -1, size)
                weights_gradient = torch.bmm(block_gradient, piece_values[:, :width].transpose(1, 2))
                scores_gradient = torch._softmax_backward_data(weights_gradient, weights, -1, weights.dtype)
                query_gradient[:, start:end] = torch.bmm(scores_gradient, piece_keys[:, :width]).view(
                    key_heads, -1, repeat, size
                )
                key_gradient[:, :width] += torch.bmm(
                    scores_gradient.transpose(1, 2), queries.reshape(key_heads, -1, size)
                )
                value_gradient[:, :width] += torch.bmm(weights.transpose(1, 2), block_gradient)

            # The piece's own tokens come first here; later pieces that see them add to their gradients. Its prefix was
            # in earlier pieces.
            kv_gradient[:, piece.start : piece.end] = visible_gradient[:, piece.prefix_length :]
            offset = 0
            for start, end in piece.prefix:
                kv_gradient[:, start:end] += visible_gradient[:, offset : offset + end - start]
                offset += end - start

        all_keys_gradient, all_values_gradient = kv_gradient.chunk(2)
        return query_gradient, all_keys_gradient, all_values_gradient, None, None


def _future_mask(pieces: Sequence[Piece], like: Tensor) -> Tensor:
    """[n, 1, n] for the longest block of n queries: −∞ for keys after a query, else 0."""
    longest = min(BLOCK, max(piece.length for piece in pieces))
    return like.new_full((longest, longest), -math.inf).triu_(1)[:, None]


def _visible_tokens(states: Tensor, piece: Piece) -> Tensor:
    """``[K, N, D]`` → ``[K, S, D]``: the states of a piece's prefix and of the piece itself."""
    parts = [states[:, start:end] for start, end in piece.path]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _query_blocks(piece: Piece) -> Iterator[tuple[int, int, int]]:
    """(first place, end, number of keys up to the last query) of each block of queries in a piece."""
    for start in range(piece.start, piece.end, BLOCK):
        end = min(start + BLOCK, piece.end)
        yield start, end, piece.prefix_length + end - piece.start


def _attention_weights(queries: Tensor, keys: Tensor, future: Tensor, window: int | None) -> Tensor:
    """Queries ``[K, T, R, D]`` and keys ``[K, S, D]`` → weights ``[K, T · R, S]``. The last T keys are those of the
    queries' own tokens."""
    key_heads, n_queries, repeat, size = queries.shape
    n_keys = keys.shape[1]
    scores = torch.bmm(queries.reshape(key_heads, -1, size), keys.transpose(1, 2))
    by_query = scores.view(key_heads, n_queries, repeat, n_keys)  # a view: changes of it change ``scores``
    by_query[..., n_keys - n_queries :].add_(future[:n_queries, :, :n_queries])
    if window is not None and n_keys > window:
        query_positions = torch.arange(n_keys - n_queries, n_keys, device=queries.device)
        distance = query_positions[:, None] - torch.arange(n_keys, device=queries.device)
        by_query.masked_fill_((distance >= window)[:, None], -math.inf)
    return scores.softmax(-1)


BRANCHES = "branches"  # name of ``branch_attention`` among the attention functions of transformers
RECTANGLE = 4  # off the CPU attention pads: most (sequences × longest) of a micro-batch, in multiples of its budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangles:
    """Pieces padded to rectangles, as places in the row of N tokens. U roots are pieces without a prefix, up to P
    tokens long. B branches are pieces up to T tokens long, with prefixes of up to S tokens."""

    roots: torch.Tensor  # [U, P] int64, place of each token of a root, 0 on padding
    branches: torch.Tensor  # [B, T] int64, place of each token of a branch, 0 on padding
    keys: torch.Tensor  # [B, S + T] int64, places of a branch's keys: its prefix, then itself
    seen: torch.Tensor  # [B, 1, T, S + T] bool, True if the query sees the key
    back: torch.Tensor  # [N] int64, for each place the index of its result among the U·P + B·T results


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """The layout of a row of N tokens: which tokens each of them sees."""

    pieces: tuple[Piece, ...]  # each after the pieces of its prefix
    positions: torch.Tensor  # [1, N] int64, position of each token in its own sequence
    # [N] int64, the place of the previous token of the sequence; arbitrary for the first one. It stays on the CPU, as
    # only ``nanochat_gpt.py`` uses it.
    before: torch.Tensor
    rectangles: Rectangles | None = None  # the same layout in tensors; None: attention piece by piece

    def to(self, device: torch.device, non_blocking: bool = False) -> Branches:
        """The layout for a device: with rectangles, unless it is a CPU."""
        if device.type == "cpu":
            return self
        rectangles = self.rectangles or rectangles_of(self.pieces)
        tensors = {
            f.name: getattr(rectangles, f.name).to(device, non_blocking=non_blocking) for f in fields(rectangles)
        }
        positions = self.positions.to(device, non_blocking=non_blocking)
        return replace(self, positions=positions, rectangles=Rectangles(**tensors))


def branches_of(pieces: Sequence[Piece]) -> Branches:
    """The layout of a row. ``pieces``: all of its pieces, in order."""
    positions = [torch.arange(piece.prefix_length, piece.prefix_length + piece.length) for piece in pieces]
    before = torch.arange(-1, pieces[-1].end - 1).clamp(min=0)
    for piece in pieces:
        if piece.prefix:
            before[piece.start] = piece.prefix[-1][1] - 1
    return Branches(pieces=tuple(pieces), positions=torch.cat(positions)[None], before=before)


# -- Sequences as a tree: a common prefix occurs once, up to the token where they differ.


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Sequences laid out in one row of N tokens."""

    ids: list[int]  # [N]
    places: list[list[int]]  # of each sequence, the place of each of its tokens
    branches: Branches


@dataclass(frozen=True, slots=True)
class _Subtree:
    """Sequences with a common prefix: those with indices ``low`` to ``high`` in sorted order."""

    low: int
    high: int
    depth: int  # tokens of their common prefix that are in the row already
    prefix: tuple[Range, ...]  # places of these tokens


def prefix_tree(sequences: Sequence[tuple[int, ...]]) -> PrefixTree:
    """Lay out sequences in one row so that common prefixes occur once, and equal sequences are one.

    The row does not depend on the order of ``sequences``; ``places`` are in this order.
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
        is_complete = len(sequences[members[-1]]) == subtree.depth  # the last one is the longest: all end here
        if is_complete:
            for member in members:
                for start, end in subtree.prefix:
                    places[member] += range(start, end)
            continue
        common = common_length(first, sequences[members[-1]], subtree.depth)
        prefix = subtree.prefix
        if common > subtree.depth:
            piece = Piece(len(ids), len(ids) + common - subtree.depth, prefix)
            ids += first[subtree.depth : common]
            pieces.append(piece)
            prefix = piece.path

        cuts = _fork_cuts([sequences[member] for member in members], common)
        branches = []
        for start, end in pairwise(cuts):
            branches.append(_Subtree(subtree.low + start, subtree.low + end, common, prefix))
        open_subtrees += reversed(branches)  # so that the first branch follows its prefix in the row: one range
    return PrefixTree(ids=ids, places=places, branches=branches_of(pieces))


def common_length(one: Sequence[int], other: Sequence[int], least: int = 0) -> int:
    """The length of the common prefix of two sequences, which is known to be at least ``least``."""
    for i in range(least, min(len(one), len(other))):
        if one[i] != other[i]:
            return i
    return min(len(one), len(other))


def _fork_cuts(members: Sequence[Sequence[int]], depth: int) -> list[int]:
    """Indices that cut sorted sequences, which agree in ``depth`` tokens, into runs with the same next token (or
    without one). The first cut is 0, the last the number of sequences."""
    next_tokens = []
    for sequence in members:
        next_tokens.append(sequence[depth] if len(sequence) > depth else None)
    inner_cuts = [i for i in range(1, len(members)) if next_tokens[i] != next_tokens[i - 1]]
    return [0, *inner_cuts, len(members)]


def rectangles_of(pieces: Sequence[Piece]) -> Rectangles:
    """Roots and branches, each padded to the longest of them."""
    roots = [piece for piece in pieces if not piece.prefix]
    branches = [piece for piece in pieces if piece.prefix]
    is_root_token, root_places = _pad_ranges([[(p.start, p.end)] for p in roots])
    is_branch_token, branch_places = _pad_ranges([[(p.start, p.end)] for p in branches])
    is_prefix_token, prefix_places = _pad_ranges([p.prefix for p in branches])

    # A token of a branch sees the whole prefix, and the branch itself causally.
    longest = is_branch_token.shape[1]
    sees_prefix = is_prefix_token[:, None, None, :].expand(-1, 1, longest, -1)
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    sees_branch = causal[None, None].expand(len(branches), 1, longest, longest)

    # Results are those of all roots, then those of all branches, with padding.
    back = torch.zeros(max(p.end for p in pieces), dtype=torch.int64)
    root_results = torch.arange(is_root_token.numel()).view_as(is_root_token)
    branch_results = torch.arange(is_branch_token.numel()).view_as(is_branch_token) + is_root_token.numel()
    back[root_places[is_root_token]] = root_results[is_root_token]
    back[branch_places[is_branch_token]] = branch_results[is_branch_token]
    return Rectangles(
        roots=root_places,
        branches=branch_places,
        keys=torch.cat([prefix_places, branch_places], dim=1),
        seen=torch.cat([sees_prefix, sees_branch], dim=3),
        back=back,
    )


def _pad_ranges(rows: Sequence[Sequence[Range]]) -> tuple[torch.Tensor, torch.Tensor]:
    """For n rows of ranges, two tensors [n, longest]: True on tokens, and their places, 0 on padding."""
    if not rows:
        return torch.zeros(0, 0, dtype=torch.bool), torch.zeros(0, 0, dtype=torch.int64)
    places = []
    for ranges in rows:
        pieces = [torch.arange(start, end) for start, end in ranges]
        places.append(torch.cat(pieces))
    lengths = torch.tensor([len(row_places) for row_places in places])
    is_token = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    return is_token, torch.nn.utils.rnn.pad_sequence(places, batch_first=True)


def is_plain(model: PreTrainedModel) -> bool:
    """Whether the attention of this model may be computed by our functions instead of those of transformers."""
    if model.config.model_type in WINDOWED:
        return True
    layer_types = set(getattr(model.config, "layer_types", None) or ())
    if layer_types:
        has_windows = layer_types != {FULL}
    else:
        has_windows = bool(getattr(model.config, "sliding_window", None))
    return model.config.model_type in PLAIN and not has_windows


def layer_windows(config: PreTrainedConfig) -> list[int | None]:
    """The window of each layer of a model in ``WINDOWED``: the number of tokens that it sees, the query's own included;
    None for all. [] for models without windows, and for other model types."""
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
    """The mask for a model: as it is, or one for each kind of layer if it has windows.

    Args:
        mask: ``[B, 1, L, S]`` bool, True if the query sees the key, without windows.
        queries: ``[B, L]`` positions of queries in their sequences.
        keys: ``[B, S]`` positions of keys.
    """
    windows = layer_windows(config)
    if not windows:
        return mask
    distance = queries[:, :, None] - keys[:, None, :]
    in_window = distance < min(window for window in windows if window is not None)
    return {FULL: mask, SLIDING: mask & in_window[:, None]}


def can_branch(model: nn.Module) -> bool:
    """Whether ``branch_attention`` is exact for this model, which may be wrapped by PEFT, and the user chose no
    other."""
    unwrapped = _unwrap_peft(model)
    if not isinstance(unwrapped, PreTrainedModel):
        return False
    return is_plain(unwrapped) and unwrapped.config._attn_implementation in (ATTENTION, BRANCHES)


def _unwrap_peft(model: nn.Module) -> nn.Module:
    """The model inside of PEFT's wrapper; any other as it is."""
    if isinstance(model, PreTrainedModel):
        return model
    from peft import PeftModel  # here, as it takes half a second that few programs need

    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextmanager
def use_branches(model: PreTrainedModel) -> Iterator[None]:
    """Within the block, ``model`` must be called with ``branches`` and without a mask."""
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
    **kwargs: Any,  # other arguments that transformers passes to every attention function
) -> tuple[torch.Tensor, None]:
    """Query ``[1, H, N, D]``, key and value ``[1, K, N, D]`` → ``[1, N, H, D]``. There is no dropout."""
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if branches.rectangles is None:
        return attend_pieces(query[0], key[0], value[0], branches.pieces, scale, sliding_window)[None], None
    in_window = None if sliding_window is None else partial(_in_window, branches.positions[0], sliding_window)
    return _attend_rectangles(query, key, value, branches.rectangles, scale, in_window), None


def _in_window(positions: Tensor, window: int, queries: Tensor, keys: Tensor) -> Tensor:
    """[R, 1, L, S] bool: whether the key is in the window of the query, for places [R, L] of queries and [R, S] of
    keys."""
    return (positions[queries][:, :, None] - positions[keys][:, None, :] < window)[:, None]


def _attend_rectangles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    where: Rectangles,
    scale: float,
    in_window: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> torch.Tensor:
    """``branch_attention`` with pieces padded to rectangles. ``in_window``: (places of queries, places of keys) → mask.

    Key heads are repeated for all query heads: with a mask, the fused kernels of GPUs cannot share them, and plain
    products would keep the scores of all pairs for the backward pass.
    """
    heads = query.shape[1]
    size = query.shape[3]
    repeat = heads // key.shape[1]
    q, k, v = (states[0].transpose(0, 1).flatten(1) for states in (query, key, value))  # [N, heads · D] each

    def pick_heads(flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """States at places ``[R, L]`` → ``[R, heads, L, D]``. The backward pass of an embedding is faster than that of
        indexing."""
        return F.embedding(index, flat).unflatten(2, (-1, size)).transpose(1, 2)

    def pick_repeated(flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """The same for keys and values, with each head repeated for its query heads."""
        return pick_heads(flat, index) if repeat == 1 else pick_heads(flat, index).repeat_interleave(repeat, 1)

    results = []
    # (places of queries, places of keys, mask; None for a causal one)
    root_part = (where.roots, where.roots, None)
    branch_part = (where.branches, where.keys, where.seen)
    for query_places, key_places, mask in (root_part, branch_part):
        if query_places.shape[1] == 0:
            continue
        if in_window is not None:
            mask = _windowed_mask(mask, in_window(query_places, key_places))
        output = F.scaled_dot_product_attention(
            pick_heads(q, query_places),
            pick_repeated(k, key_places),
            pick_repeated(v, key_places),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
        )
        results.append(output.transpose(1, 2).reshape(-1, heads * size))
    return F.embedding(where.back, torch.cat(results)).view(1, -1, heads, size)


def _windowed_mask(mask: Tensor | None, in_window: Tensor) -> Tensor:
    """[R, 1, L, S] bool: True if the key is in the window and visible by ``mask``; None for a causal mask."""
    if mask is None:
        return in_window & in_window.new_ones(in_window.shape[2:]).tril()
    return in_window & mask


AttentionInterface.register(BRANCHES, branch_attention)
