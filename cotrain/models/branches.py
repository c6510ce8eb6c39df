"""Attention over sequences that share prompts: a prompt stands once, and the answers sampled from it branch off.

A group of G answers to a prompt of P tokens is G·(P + T) tokens when each is a row of its own, and P + G·T here: with
eight answers about as long as the prompt, half of the work of every layer. Nothing is padded outside of attention.

    place   0 1 2 3 4 5 6 7 8 9 …
    token   P P P P a a a b b Q …     a and b answer P: each sees P and itself; the next prompt follows

The model runs over one row of all N tokens; each token has the position that it would have in a row of its own. Only
this attention function knows that they are several sequences. Equal to separate rows up to rounding (the tests hold us
to it). Left out: prompts that share a beginning and not the whole, sliding windows, soft caps, sinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from cotrain.models.attention import is_plain
from cotrain.models.config import ATTENTION

BRANCHES = "branches"  # name of ``branch_attention`` among the attention functions of transformers
GROUPED = ("cpu",)  # devices whose fused kernels share key heads under a mask; on others torch would fall back to plain
# products, whose scores of all pairs are kept for the backward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """Where the tokens of U prompts (up to P long) and B answers (up to T long) stand in the row of N."""

    prompts: torch.Tensor  # [U, P] int64, place of each prompt token, 0 on padding
    answers: torch.Tensor  # [B, T] int64, place of each token of an answer, 0 on padding
    keys: torch.Tensor  # [B, P + T] int64, what an answer may look at: its prompt, then itself
    seen: torch.Tensor  # [B, 1, T, P + T] bool, True where it does
    back: torch.Tensor  # [N] int64, where the result for each place lies among U·P and B·T results
    positions: torch.Tensor  # [1, N] int64, of each token within its own sequence

    def to(self, device: torch.device, non_blocking: bool = False) -> Branches:
        """The same on a device."""
        return Branches(**{f.name: getattr(self, f.name).to(device, non_blocking=non_blocking) for f in fields(self)})


def branches_of(prompts: Sequence[int], answers: Sequence[tuple[int, int]]) -> Branches:
    """``prompts``: the lengths. ``answers``: (which prompt, input tokens), those of one prompt side by side.

    The row holds each prompt, followed by its answers, in the order given.
    """
    longest, tail = max(prompts), max(length for _, length in answers)
    starts, ends = [0] * len(prompts), [0] * len(answers)
    place = 0
    for u, length in enumerate(prompts):
        starts[u], place = place, place + length
        for b, (prompt, tokens) in enumerate(answers):
            if prompt == u:
                ends[b] = place = place + tokens
    own = torch.tensor([tokens for _, tokens in answers])[:, None]
    begins = torch.tensor(ends)[:, None] - own
    of = torch.tensor([prompt for prompt, _ in answers])
    sizes, firsts = torch.tensor(list(prompts))[:, None], torch.tensor(starts)[:, None]
    column, step = torch.arange(longest)[None], torch.arange(tail)[None]
    asked, told = column < sizes, step < own  # [U, P] and [B, T], True on tokens
    prompt_places = torch.where(asked, firsts + column, 0)
    answer_places = torch.where(told, begins + step, 0)
    before = asked[of][:, None, None, :].expand(-1, 1, tail, -1)
    itself = torch.ones(tail, tail, dtype=torch.bool).tril()[None, None].expand(len(answers), 1, tail, tail)
    back, positions = torch.zeros(place, dtype=torch.int64), torch.zeros(place, dtype=torch.int64)
    back[prompt_places[asked]] = torch.arange(asked.numel()).view(asked.shape)[asked]
    back[answer_places[told]] = asked.numel() + torch.arange(told.numel()).view(told.shape)[told]
    positions[prompt_places[asked]] = column.expand(asked.shape)[asked]
    positions[answer_places[told]] = (sizes[of] + step)[told]
    return Branches(
        prompts=prompt_places,
        answers=answer_places,
        keys=torch.cat([prompt_places[of], answer_places], dim=1),
        seen=torch.cat([before, itself], dim=3),
        back=back,
        positions=positions[None],
    )


def can_branch(model: nn.Module) -> bool:
    """Is attention by branches exact for this model, which PEFT may have wrapped?"""
    plain = _unwrapped(model)
    if not isinstance(plain, PreTrainedModel):
        return False
    return is_plain(plain) and plain.config._attn_implementation in (ATTENTION, BRANCHES)  # another one was asked for


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of PEFT's wrapper; any other as it is."""
    if isinstance(model, PreTrainedModel):
        return model
    from peft import PeftModel  # here, as it takes half a second that few programs need

    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextmanager
def branching(model: PreTrainedModel) -> Iterator[None]:
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
    """Query ``[1, H, N, D]``, key and value ``[1, K, N, D]`` → ``[1, N, H, D]``."""
    heads, size, shared = query.shape[1], query.shape[3], query.shape[1] != key.shape[1]
    repeat = heads // key.shape[1] if shared and query.device.type not in GROUPED else 1
    q, k, v = (t[0].transpose(0, 1).flatten(1) for t in (query, key, value))  # [N, heads · D]

    def pick(flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """``[R, L]`` places → ``[R, heads, L, D]``. An embedding's backward pass adds up faster than an index's."""
        return F.embedding(index, flat).unflatten(2, (-1, size)).transpose(1, 2)

    def look(flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """The same of keys and values, each head as often as it is read where the kernel wants that."""
        return pick(flat, index) if repeat == 1 else pick(flat, index).repeat_interleave(repeat, 1)

    results = []
    for asking, looked_at, mask in (
        (branches.prompts, branches.prompts, None),
        (branches.answers, branches.keys, branches.seen),
    ):
        if asking.shape[1]:
            found = F.scaled_dot_product_attention(
                pick(q, asking), look(k, looked_at), look(v, looked_at), attn_mask=mask,
                dropout_p=dropout, is_causal=mask is None, scale=scaling, enable_gqa=shared and repeat == 1,
            )  # fmt: skip
            results.append(found.transpose(1, 2).reshape(-1, heads * size))
    return F.embedding(branches.back, torch.cat(results)).view(1, -1, heads, size), None


AttentionInterface.register(BRANCHES, branch_attention)
