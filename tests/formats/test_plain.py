"""The renderer of programs: bytes there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.prompts.byte_tokenizer import STOP, ByteRenderer
from cotrain.prompts.chat_template import Message


@pytest.mark.whole
@given(st.text(max_size=40))
def test_texts_come_back_with_the_end_of_each_character(text):
    renderer = ByteRenderer()
    ids = (*renderer.encode(text), STOP)
    assert renderer.decode(ids) == text
    ends = renderer.offsets(ids)
    assert len(ends) == len(ids) and ends == sorted(ends) and ends[-1] == len(text)
    for t in range(len(ids)):
        whole = bytes(i for i in ids[: t + 1] if i < STOP)
        assert ends[t] >= len(whole.decode(errors="ignore"))


def test_a_prompt_is_never_empty():
    assert ByteRenderer().render([Message("user", "")]) == (STOP,)
    assert ByteRenderer().render([Message("system", "a"), Message("user", "b")]) == tuple(b"a\nb")


def test_a_token_is_a_byte():
    assert ByteRenderer().token_text(97) == "a" and ByteRenderer().token_text(STOP) == ""
