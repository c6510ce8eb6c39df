"""Decode attention against the softmax over everything at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cotrain.inference.kv_cache import DecodeReads, PromptTiles, attend, with_reads
from tests.sentences import refuses

HEADS, KEY_HEADS, WIDTH = 4, 2, 8
TILES = [0, 0, 1, 0]  # of four rows


def scene(scale: float = 1.0):
    """Four rows that decode after two prompts: a query for each; its keys and values, those of its prompt and its own
    in one piece; and the same as ``DecodeReads``, where each prompt occurs once.

    The prompts have 5 and 3 tokens, the rows 4, 4, 2 and 1 own ones. Both are padded on the left to 5.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    prompt_keys, prompt_values = drawn(2, KEY_HEADS, 5, WIDTH), drawn(2, KEY_HEADS, 5, WIDTH)
    keys, values = drawn(4, KEY_HEADS, 5, WIDTH), drawn(4, KEY_HEADS, 5, WIDTH)
    values[:, :, 0] = 0
    prompt_hidden, own_hidden = torch.tensor([0, 2]), torch.tensor([1, 1, 3, 4])
    whole = []
    for row, tile in enumerate(TILES):
        of_prompt, of_row = slice(int(prompt_hidden[tile]), None), slice(int(own_hidden[row]), None)
        row_keys = torch.cat([prompt_keys[tile, :, of_prompt], keys[row, :, of_row]], 1)
        row_values = torch.cat([prompt_values[tile, :, of_prompt], values[row, :, of_row]], 1)
        whole.append((row_keys, row_values))

    def mask(hidden: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(5) >= hidden[:, None]
        return torch.where(seen, 0.0, -torch.inf).repeat_interleave(KEY_HEADS, 0)[:, None]

    seats = [0, 1, 0, 2]  # of each row among the three that a prompt has
    places = torch.tensor(
        [(tile * KEY_HEADS + head) * 3 + seat for tile, seat in zip(TILES, seats, strict=True) for head in (0, 1)]
    )
    members = torch.zeros(12, dtype=torch.int64)
    members[places] = torch.arange(8)
    prompts = PromptTiles(
        keys=prompt_keys.flatten(0, 1),
        values=prompt_values.flatten(0, 1),
        mask=mask(prompt_hidden),
        members=members,
        places=places,
    )
    reads = DecodeReads(keys=keys.flatten(0, 1), values=values.flatten(0, 1), mask=mask(own_hidden), prompts=prompts)
    return drawn(4, HEADS, 1, WIDTH), whole, reads


@pytest.mark.parametrize(("scale", "cap"), [(0.1, None), (1.0, None), (30.0, None), (1.0, 0.5)])
def test_prompt_and_own_tokens_join_in_one_softmax(scale, cap):
    """With the largest scale, exponentials of scores overflow and underflow."""
    query, whole, reads = scene(scale)
    key = with_reads(torch.zeros(4, KEY_HEADS, 1, WIDTH), reads)
    found, _ = attend(nn.Identity(), query, key, key, None, softcap=cap)
    for row, (keys, values) in enumerate(whole):
        keys, values = (x.repeat_interleave(HEADS // KEY_HEADS, 0).double() for x in (keys, values))
        scores = torch.einsum("hd,hwd->hw", query[row, :, 0].double(), keys) * WIDTH**-0.5
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        expected = torch.einsum("hw,hwd->hd", scores.softmax(-1), values)
        torch.testing.assert_close(found[row, 0].double(), expected, atol=2e-5 * scale, rtol=0)


def test_what_it_cannot_compute_is_refused():
    query, _, reads = scene()
    bare = torch.zeros(4, KEY_HEADS, 1, WIDTH)
    key = with_reads(bare.clone(), reads)
    for arguments, options, problem in (
        ((query, bare, bare, None), {}, "other keys than the cache's"),
        ((query, key, bare, torch.zeros(4, 1, 1, 1)), {}, "a mask of its own"),
        ((query.expand(-1, -1, 2, -1), key, bare, None), {}, "2 queries a row"),
        ((query, key, bare, None), {"position_bias": 3.0}, "position_bias"),
    ):
        with refuses("E_MODEL_NOT_DECODABLE", names=("Identity", problem)):
            attend(nn.Identity(), *arguments, **options)
