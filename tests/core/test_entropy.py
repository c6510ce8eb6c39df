"""Entropies of tokens as one character each."""

from __future__ import annotations

import math

import pytest

from cotrain.core.entropy import MAX_LEVEL, as_text, from_text, nats_of


def test_levels_by_hand():
    assert nats_of(0) == 0.0 and nats_of(22) == 1.0 and nats_of(44) == 4.0
    assert nats_of(MAX_LEVEL) > math.log(1_000_000)  # more than any vocabulary
    assert all(nats_of(level + 1) - nats_of(level) < 0.1 for level in range(22))


def test_every_level_is_one_printable_character():
    levels = bytes(range(MAX_LEVEL + 1))
    text = as_text(levels)
    assert len(text) == len(levels) and text.isascii() and text.isprintable() and text[0] == "#" and text[-1] == "~"
    assert from_text(text) == levels


@pytest.mark.parametrize("text", ["a b", "!", "é", "\x7f"])
def test_other_characters_are_refused(text):
    with pytest.raises(ValueError):
        from_text(text)
