from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.prompts.decoding import char_to_tokens
from cotrain.prompts.render import Renderer


def test_by_hand():
    #            "ab" "c" é é  <end> "de"    (é is two tokens, the first of which completes nothing)
    offsets = [2, 3, 3, 4, 4, 6]
    assert char_to_tokens(offsets, 0, 2) == (0, 1)
    assert char_to_tokens(offsets, 1, 3) == (0, 2)  # "b" lies inside of the first token
    assert char_to_tokens(offsets, 3, 4) == (2, 4)  # both halves of é
    assert char_to_tokens(offsets, 5, 6) == (5, 6)
    assert char_to_tokens(offsets, 0, 6) == (0, 6)
    assert char_to_tokens(offsets, 3, 3) == (2, 2)
    assert char_to_tokens([], 0, 0) == (0, 0)
    for bad in ((-1, 1), (2, 1), (0, 7)):
        with pytest.raises(ValueError):
            char_to_tokens(offsets, *bad)


@given(widths=st.lists(st.integers(0, 4), max_size=12), cut=st.tuples(st.integers(0, 50), st.integers(0, 50)))
def test_ranges_hold_their_characters_and_no_more(widths, cut):
    offsets = [sum(widths[: t + 1]) for t in range(len(widths))]
    length = sum(widths)
    start, end = sorted((min(cut[0], length), min(cut[1], length)))
    t0, t1 = char_to_tokens(offsets, start, end)
    begins = [0, *offsets]
    if start == end:
        assert t0 == t1
        return
    assert begins[t0] <= start and offsets[t1 - 1] >= end  # covers
    assert begins[t1 - 1] < end  # the last token is needed
    assert offsets[t0] > start or begins[t0] == start  # and so is the first


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_spans_of_text_are_found_in_tokens(tokenizer_with, kind):
    renderer = Renderer(tokenizer_with(kind, "ours"))
    text = "<step> naïve 日本= 12+🙂</step><step>é</step><answer>16</answer>"
    ids = renderer.tokenizer(text, add_special_tokens=False).input_ids
    offsets = renderer.offsets(ids)
    assert renderer.decode(ids) == text
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            t0, t1 = char_to_tokens(offsets, start, end)
            before = offsets[t0 - 1] if t0 else 0
            assert text[start:end] in renderer.decode(ids)[before : offsets[t1 - 1]]
    step = text.index("</step>")
    t0, t1 = char_to_tokens(offsets, len("<step>"), step)
    assert renderer.decode(ids[t0:t1]).strip() == "naïve 日本= 12+🙂"
