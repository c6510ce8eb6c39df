"""Attention piece by piece is attention under a mask, whatever the blocks and whether weights are kept."""

from __future__ import annotations

import pytest
import torch

from cotrain.models import shared_prefix
from cotrain.models.shared_prefix import Piece, attend_pieces

PIECES = (  # two trees; the pieces at 12 and 13 see a beginning of two ranges
    Piece(0, 5),
    Piece(5, 9, ((0, 5),)),
    Piece(9, 12, ((0, 9),)),
    Piece(12, 13, ((0, 5), (9, 12))),
    Piece(13, 15, ((0, 5), (9, 12))),
    Piece(15, 17),
    Piece(17, 22, ((15, 17),)),
)


def under_a_mask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """All pairs of the row, those that no piece sees masked."""
    length = query.shape[1]
    seen = torch.zeros(length, length, dtype=torch.bool)
    for piece in PIECES:
        for place in range(piece.start, piece.end):
            for start, end in piece.prefix:
                seen[place, start:end] = True
            seen[place, piece.start : place + 1] = True
    repeat = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(repeat, 0), value.repeat_interleave(repeat, 0)
    scores = (query @ key.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1)


@pytest.mark.parametrize("kept", [0, 2**20])
@pytest.mark.parametrize("block", [1, 3, 256])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_result_and_gradients_are_those_of_a_mask(monkeypatch, kept, block, groups):
    monkeypatch.setattr(shared_prefix, "MOST_KEPT", kept)
    monkeypatch.setattr(shared_prefix, "BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(n, 22, 8, dtype=torch.float64, generator=generator) for n in (4, groups, groups)]
    weights = torch.randn(22, 4, 8, dtype=torch.float64, generator=generator)
    found = []
    for attend in (lambda q, k, v: attend_pieces(q, k, v, PIECES, 0.3), lambda q, k, v: under_a_mask(q, k, v, 0.3)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = attend(*leaves)
        (out * weights).sum().backward()
        found.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_half_precision_is_computed_wide_and_returned_narrow():
    generator = torch.Generator().manual_seed(0)
    wide = [torch.randn(2, 22, 8, generator=generator).bfloat16().float() for _ in range(3)]
    expected = attend_pieces(*wide, PIECES, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attend_pieces(*wide, PIECES, 1.0), expected)
    narrow = attend_pieces(*(x.bfloat16() for x in wide), PIECES, 1.0)
    assert narrow.dtype == torch.bfloat16 and torch.equal(narrow, expected.bfloat16())


def test_nothing_is_kept_where_no_gradient_is_asked_for():
    inputs = [torch.randn(2, 22, 8) for _ in range(3)]
    assert attend_pieces(*inputs, PIECES, 1.0).grad_fn is None
