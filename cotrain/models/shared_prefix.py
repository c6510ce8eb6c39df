"""Attention over sequences that share prompts: a prompt stands once, and the answers sampled from it branch off.

A group of G answers to a prompt of P tokens is G·(P + T) tokens when each is a row of its own, and P + G·T here: with
eight answers about as long as the prompt, half of the work of every layer.

    place   0 1 2 3 4 5 6 7 8 9 …
    token   P P P P a a a b b Q …     a and b answer P: each sees P and itself; the next prompt follows

The model runs over one row of all N tokens; each token has the position that it would have in a row of its own. Only
this attention function knows that they are several sequences. On a CPU it takes them piece by piece
(``attend_pieces``); elsewhere padded to rectangles under a mask, in fused kernels. Equal to separate rows up to
rounding (the tests hold us to it). Sliding windows count the positions of a sequence, across the place where it
branches off. Left out: prompts that share a beginning and not the whole, soft caps, sinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
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
#     row      P P P P a a a b b        piece  own     beginning
#                                       P      0..4    none
#                                       a      4..7    0..4
#                                       b      7..9    0..4
#
# The backward pass is written out, as that of slices would fill a whole row for each. It keeps the weights where they
# are few, and computes them again where not. Equal to the rectangle up to rounding; always in float32 or wider, under
# autocast too: scores in bfloat16 would have eight bits.


FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers, as transformers calls them
PLAIN = (  # types of model whose attention is causal softmax attention and nothing else, where no window is set
    "llama", "qwen2", "qwen3", "gemma", "mistral", "smollm3", "nanochat", "granite", "mixtral", "qwen3_moe", "olmo2",
    "phi3", "nanochat_gpt"
)  # fmt: skip
WINDOWED = ("nanochat_gpt",)  # those of them whose layers tell the attention function their window, and which take a
# mask for each kind of layer
BLOCK = 256  # queries that are computed together
KEPT = 2**22  # weights of one layer and pass that are kept for the backward pass


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens ``start`` to ``end`` of a row, which see the tokens ``first`` to ``last`` besides what precedes them."""

    start: int
    end: int
    first: int = 0
    last: int = 0


def attend_pieces(
    query: Tensor, key: Tensor, value: Tensor, pieces: Sequence[Piece], scale: float, window: int | None = None
) -> Tensor:
    """Query ``[H, N, D]``, key and value ``[K, N, D]``, H a multiple of K → ``[N, H, D]`` of the query's type.

    Each token of the row is of exactly one piece, and a beginning is a piece of its own before those that see it. A
    token sees at most the last ``window`` tokens of its sequence, itself among them.
    """
    groups, (heads, length, size) = key.shape[0], query.shape
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
        pairs = sum((p.end - p.start) * (p.end - p.start + p.last - p.first) for p in pieces) * groups * repeat
        kept: list[Tensor] | None = [] if pairs <= KEPT and any(ctx.needs_input_grad) else None
        out = torch.empty_like(all_queries)
        with torch.autocast("cpu", enabled=False):
            for piece in pieces:
                seen, mixed = _visible_tokens(keys, piece), _visible_tokens(values, piece)
                for start, end, width in _query_blocks(piece):
                    weights = _attention_weights(all_queries[:, start:end], seen[:, :width], future, window)
                    out[:, start:end] = torch.bmm(weights, mixed[:, :width]).view(groups, -1, repeat, size)
                    if kept is not None:
                        kept.append(weights)
        ctx.save_for_backward(all_queries, keys, values, *(kept or ()))
        ctx.pieces, ctx.kept, ctx.window = pieces, kept is not None, window
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        all_queries, keys, values, *kept = ctx.saved_tensors
        groups, _, repeat, size = all_queries.shape
        future = _future_mask(ctx.pieces, all_queries)
        gradient = gradient.contiguous()
        query_gradient, key_gradient, value_gradient = map(torch.empty_like, (all_queries, keys, values))
        stored = iter(kept)
        for piece in ctx.pieces:
            seen, mixed = _visible_tokens(keys, piece), _visible_tokens(values, piece)
            to_seen, to_mixed = torch.zeros_like(seen), torch.zeros_like(mixed)
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
            beginning = piece.last - piece.first
            for full, part in ((key_gradient, to_seen), (value_gradient, to_mixed)):
                full[:, piece.start : piece.end] = part[:, beginning:]  # the piece's own, which later ones add to
                if beginning:
                    full[:, piece.first : piece.last] += part[:, :beginning]
        return query_gradient, key_gradient, value_gradient, None, None


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


def _attention_weights(queries: Tensor, seen: Tensor, future: Tensor, window: int | None) -> Tensor:
    """``[K, T, R, D]`` and ``[K, S, D]`` → ``[K, T · R, S]``, the last T keys being the queries' own."""
    groups, count, repeat, size = queries.shape
    width = seen.shape[1]
    scores = torch.bmm(queries.reshape(groups, -1, size), seen.transpose(1, 2))
    by_query = scores.view(groups, count, repeat, width)
    by_query[..., width - count :] += future[:count, :, :count]
    if window is not None and width > window:
        own_places = torch.arange(width - count, width, device=queries.device)
        distance = own_places[:, None] - torch.arange(width, device=queries.device)
        by_query.masked_fill_((distance >= window)[:, None], -math.inf)
    return scores.softmax(-1)


BRANCHES = "branches"  # name of ``branch_attention`` among the attention functions of transformers
RECTANGLE = 4  # sequences × longest, which attention pads to off the CPU, over the budget of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangles:
    """Where the tokens of U prompts (up to P long) and B answers (up to T long) stand in the row of N."""

    prompts: torch.Tensor  # [U, P] int64, place of each prompt token, 0 on padding
    answers: torch.Tensor  # [B, T] int64, place of each token of an answer, 0 on padding
    keys: torch.Tensor  # [B, P + T] int64, what an answer may look at: its prompt, then itself
    seen: torch.Tensor  # [B, 1, T, P + T] bool, True where it does
    back: torch.Tensor  # [N] int64, where the result for each place lies among U·P and B·T results


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """Which tokens of a row of N see which."""

    pieces: tuple[Piece, ...]  # each prompt, followed by its answers
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


def branches_of(prompts: Sequence[int], answers: Sequence[tuple[int, int]]) -> Branches:
    """``prompts``: the lengths. ``answers``: (which prompt, input tokens), those of one prompt side by side.

    The row holds each prompt, followed by its answers, in the order given.
    """
    tails: list[list[int]] = [[] for _ in prompts]
    for prompt, tokens in answers:
        tails[prompt].append(tokens)
    pieces, place = list[Piece](), 0
    for length, own in zip(prompts, tails, strict=True):
        first, place = place, place + length
        pieces.append(Piece(first, place))
        for tokens in filter(None, own):
            pieces.append(Piece(place, place + tokens, first, first + length))
            place += tokens
    positions = [torch.arange(p.last - p.first, p.last - p.first + p.end - p.start) for p in pieces]
    before = torch.arange(-1, place - 1).clamp(min=0)
    for piece in pieces:
        if piece.last > piece.first:
            before[piece.start] = piece.last - 1
    return Branches(pieces=tuple(pieces), positions=torch.cat(positions)[None], before=before)


def rectangles_of(pieces: Sequence[Piece]) -> Rectangles:
    """Prompts and answers, each padded to the longest of their kind."""
    prompts = [p for p in pieces if p.first == p.last]
    answers = [p for p in pieces if p.first != p.last]
    prompt_index = {p.start: u for u, p in enumerate(prompts)}
    is_prompt_token, prompt_places = _pad_pieces(prompts)
    is_answer_token, answer_places = _pad_pieces(answers)
    whose = torch.tensor([prompt_index[p.first] for p in answers], dtype=torch.int64)
    tail = is_answer_token.shape[1]
    before = is_prompt_token[whose][:, None, None, :].expand(-1, 1, tail, -1)
    itself = torch.ones(tail, tail, dtype=torch.bool).tril()[None, None].expand(len(answers), 1, tail, tail)
    back = torch.zeros(max(p.end for p in pieces), dtype=torch.int64)
    prompt_results = torch.arange(is_prompt_token.numel()).view_as(is_prompt_token)
    answer_results = torch.arange(is_answer_token.numel()).view_as(is_answer_token) + is_prompt_token.numel()
    back[prompt_places[is_prompt_token]] = prompt_results[is_prompt_token]
    back[answer_places[is_answer_token]] = answer_results[is_answer_token]
    return Rectangles(
        prompts=prompt_places,
        answers=answer_places,
        keys=torch.cat([prompt_places[whose], answer_places], dim=1),
        seen=torch.cat([before, itself], dim=3),
        back=back,
    )


def _pad_pieces(pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, longest], True on tokens, and their places, 0 on padding."""
    starts = torch.tensor([p.start for p in pieces], dtype=torch.int64)[:, None]
    sizes = torch.tensor([p.end - p.start for p in pieces], dtype=torch.int64)[:, None]
    column = torch.arange(max((p.end - p.start for p in pieces), default=0))[None]
    is_token = column < sizes
    return is_token, torch.where(is_token, starts + column, 0)


def is_plain(model: PreTrainedModel) -> bool:
    """May attention of this model be computed by other functions than those of transformers?"""
    if model.config.model_type in WINDOWED:
        return True
    kinds = set(getattr(model.config, "layer_types", None) or ())
    windowed = bool(kinds - {"full_attention"}) or (not kinds and bool(getattr(model.config, "sliding_window", None)))
    return model.config.model_type in PLAIN and not windowed


def layer_windows(config: PreTrainedConfig) -> list[int | None]:
    """How many tokens each layer sees, the query's own among them, of a model in ``WINDOWED``; None: all. Empty for
    models without windows, and for those whose windows other functions than transformers' do not know."""
    window = getattr(config, "sliding_window", None)
    if config.model_type not in WINDOWED or window is None:
        return []
    return [window if kind == SLIDING else None for kind in config.layer_types]


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
    """Is attention by branches exact for this model, which PEFT may have wrapped?"""
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
    kinds = (where.prompts, where.prompts, None), (where.answers, where.keys, where.seen)
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
