"""Attention over sequences that share prompts: a prompt stands once, and the answers sampled from it branch off.

A group of G answers to a prompt of P tokens is G·(P + T) tokens when each is a row of its own, and P + G·T here: with
eight answers about as long as the prompt, half of the work of every layer.

    place   0 1 2 3 4 5 6 7 8 9 …
    token   P P P P a a a b b Q …     a and b answer P: each sees P and itself; the next prompt follows

The model runs over one row of all N tokens; each token has the position that it would have in a row of its own. Only
this attention function knows that they are several sequences. On a CPU it takes them piece by piece (``pieces.py``);
elsewhere padded to rectangles under a mask, in fused kernels. Equal to separate rows up to rounding (the tests hold us
to it). Left out: prompts that share a beginning and not the whole, sliding windows, soft caps, sinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from cotrain.models.attention import is_plain
from cotrain.models.load import ATTENTION
from cotrain.models.varlen_attention import Piece, attend_pieces

BRANCHES = "branches"  # name of ``branch_attention`` among the attention functions of transformers


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
    return Branches(pieces=tuple(pieces), positions=torch.cat(positions)[None])


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
    back[prompt_places[is_prompt_token]] = torch.arange(is_prompt_token.numel()).view(is_prompt_token.shape)[
        is_prompt_token
    ]
    back[answer_places[is_answer_token]] = (
        is_prompt_token.numel() + torch.arange(is_answer_token.numel()).view(is_answer_token.shape)[is_answer_token]
    )
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
    **kwargs: Any,  # what transformers hands to every attention function and this one has no use for
) -> tuple[torch.Tensor, None]:
    """Query ``[1, H, N, D]``, key and value ``[1, K, N, D]`` → ``[1, N, H, D]``. There is no dropout."""
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if branches.rectangles is None:
        return attend_pieces(query[0], key[0], value[0], branches.pieces, scale)[None], None
    return _attend_rectangles(query, key, value, branches.rectangles, scale), None


def _attend_rectangles(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, where: Rectangles, scale: float
) -> torch.Tensor:
    """As ``branch_attention``. Key heads are repeated: under a mask, the fused kernels of GPUs do not share them, and
    plain products would keep the scores of all pairs for the backward pass."""
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
    for query_places, key_places, mask in (
        (where.prompts, where.prompts, None),
        (where.answers, where.keys, where.seen),
    ):
        if query_places.shape[1]:
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


AttentionInterface.register(BRANCHES, branch_attention)
