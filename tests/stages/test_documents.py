import pytest

from cotrain.core.errors import DataError
from cotrain.stages.corpora import from_items, procedural_corpus
from cotrain.stages.documents import all_documents, document_reader, refuse_overlong

TURNS = [
    {"role": "user", "content": "ab 7"},
    {"role": "assistant", "content": "12"},
    {"role": "user", "content": "+"},
    {"role": "assistant", "content": "7 7"},
]


def text_of(tokenizer, document, learned_only=False):
    return tokenizer.decode([i for i, learn in zip(document.ids, document.learn, strict=True) if learn >= learned_only])


def test_running_text(tokenizer):
    (document,) = all_documents(from_items("a", ["ab <|end|> 7"]), tokenizer)
    assert document.ids[0] == tokenizer.bos_token_id and document.ids[-1] == tokenizer.eos_token_id
    assert document.ids.count(tokenizer.eos_token_id) == 1, "the text only names the mark"
    assert text_of(tokenizer, document) == "<|bos|>ab <|end|> 7<|end|>" and all(document.learn)


def test_replies_are_what_is_learned(tokenizer):
    (document,) = all_documents(from_items("a", [TURNS]), tokenizer, replies_only=True)
    assert list(document.ids) == tokenizer.apply_chat_template(TURNS, tokenize=True, return_dict=False)
    assert text_of(tokenizer, document, learned_only=True) == "12<|end|>7 7<|end|>"
    (whole,) = all_documents(from_items("a", [TURNS]), tokenizer)
    assert whole.ids == document.ids and all(whole.learn)


def test_order_and_epochs(tokenizer):
    read = document_reader(from_items("a", ["ab", [*TURNS], "7"]), tokenizer, seed=1)
    one, two = read(0, 3), read(3, 3)
    assert {d.ids for d in one} == {d.ids for d in two} and len({d.ids for d in one}) == 3
    assert read(2, 3) == [one[2], two[0], two[1]]


def test_conversations_that_are_too_long(tokenizer):
    long = from_items("long", [[{"role": "user", "content": "ab " * 50}, {"role": "assistant", "content": "7"}], TURNS])
    assert [len(d.ids) for d in all_documents(long, tokenizer, True, longest=20)] == [20, 18]
    with pytest.raises(DataError, match=r"1 of the first 2 documents are longer than 20 tokens .*; raise --length"):
        refuse_overlong(long, tokenizer, 20, 200)
    refuse_overlong(long, tokenizer, 200, 200)
    refuse_overlong(from_items("text", ["ab " * 50]), tokenizer, 20, 200)


def test_texts_that_are_longer_than_a_batch(tokenizer):
    texts = from_items("books", ["ab " * 300, "ab"])
    with pytest.raises(DataError, match=r"1 of the first 2 documents are longer than 200 tokens .*; raise --batch"):
        refuse_overlong(texts, tokenizer, 0, 200)
    refuse_overlong(texts, tokenizer, 0, 400)


def test_an_endless_corpus_has_no_all(tokenizer):
    with pytest.raises(DataError, match="endless"):
        all_documents(procedural_corpus("a", str), tokenizer)
