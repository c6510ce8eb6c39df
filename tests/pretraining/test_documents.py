import copy

import pytest

from cotrain.pretraining.corpora import from_items, procedural_corpus
from cotrain.pretraining.documents import all_documents, document_reader, examine, in_parts
from cotrain.prompts.render import Renderer
from tests.sentences import refuses

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


LONG = [{"role": "user", "content": "ab " * 50}, {"role": "assistant", "content": "7"}]


def looked_at(corpus, tokenizer, length=0, batch=200, replies_only=True):
    return examine(corpus, Renderer(tokenizer), length, batch, replies_only)


def test_conversations_that_are_too_long_are_left_out_and_counted(tokenizer):
    some = from_items("some", [LONG, TURNS, TURNS])
    assert [len(d.ids) for d in all_documents(some, tokenizer, True, longest=20)] == [18, 18]
    assert [len(d.ids) for d in document_reader(some, tokenizer, longest=20)(0, 3)].count(0) == 1
    seen = looked_at(some, tokenizer, 20)
    assert (seen.conversations, seen.left_out) == (3, 1)
    (note,) = seen.notes(20, 200)
    assert note.startswith(
        "note: some: 1 of 3 conversations are left out, as they are longer than 20 tokens; the longest"
    )
    assert looked_at(some, tokenizer, 200).notes(200, 200) == []
    with refuses("E_CONVERSATIONS_LEFT_OUT", names=("most", "3 conversations", "20 tokens", "--length")):
        looked_at(from_items("most", [LONG, TURNS, LONG]), tokenizer, 20)


def test_texts_that_are_longer_than_a_batch_are_learned_in_parts(tokenizer):
    text = "ab cde\n\n" + "ab 7 + " * 300 + "12"
    books = from_items("books", [text, "ab"])
    seen = looked_at(books, tokenizer, 0, 200, replies_only=False)
    assert (seen.texts, seen.in_parts) == (2, 1) and "1 of 2 texts are longer than a batch of 200" in seen.notes(
        0, 200
    )[0]
    *parts, short = all_documents(in_parts(books, tokenizer, 200), tokenizer)
    assert len(parts) > 3 and all(len(part.ids) <= 200 for part in parts) and min(len(p.ids) for p in parts) > 50
    assert "".join(text_of(tokenizer, part) for part in parts) == f"<|bos|>{text}<|end|>"
    assert text_of(tokenizer, short) == "<|bos|>ab<|end|>"


def test_long_texts_of_an_endless_corpus_are_left_out(tokenizer):
    corpus = procedural_corpus("text", lambda index: "ab " * (300 if index % 4 == 0 else 3))
    seen = looked_at(corpus, tokenizer, 0, 200, replies_only=False)
    assert (seen.texts, seen.texts_left_out) == (200, 50) and "50 of the first 200 texts" in seen.notes(0, 200)[0]
    assert [len(d.ids) == 0 for d in document_reader(corpus, tokenizer, batch=200)(0, 5)] == [True, *[False] * 3, True]
    with refuses("E_TEXTS_LEFT_OUT", names=("200", "first 200")):
        looked_at(procedural_corpus("text", lambda index: "ab " * 300), tokenizer)


@pytest.mark.parametrize("begins", ["<|user|>ab<|end|>", "\n<|bos|><|user|>", "<|im_start|>user", "<s> [INST] ab"])
def test_conversations_that_are_rendered_already_are_refused_as_text_of_sft(tokenizer, begins):
    corpus = from_items("rows", ["ab", begins + "ab"])
    with refuses("E_TEXT_IS_CONVERSATION", names="rows, item 2"):
        looked_at(corpus, tokenizer)
    assert looked_at(corpus, tokenizer, replies_only=False).texts == 2  # which is right for pretraining


def test_a_conversation_that_cannot_be_learned_is_named(tokenizer):
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = tokenizer.chat_template.replace("{{- '<|assistant|>' -}}", "{{- '<|assistant|><think>' -}}")
    assert changed.chat_template != tokenizer.chat_template
    with refuses("E_THOUGHT_NOT_CLOSED", names=("talk, item 2", "'<think>'")):
        looked_at(from_items("talk", [[TURNS[0], {"role": "assistant", "content": "7</think>12"}], TURNS]), changed)


def test_an_endless_corpus_has_no_all(tokenizer):
    with refuses("E_CORPUS_ENDLESS"):
        all_documents(procedural_corpus("a", str), tokenizer)


def test_texts_that_name_control_tokens_inside_are_told(tokenizer):
    corpus = from_items("rows", ["Chat: <|end|> 7", "ab 7"])
    (note,) = examine(corpus, Renderer(tokenizer), 0, 512, True).notes(0, 512)
    assert note.startswith("note: rows: 1 of 2 texts name control tokens of the model")
    assert not examine(corpus, Renderer(tokenizer), 0, 512, False).notes(0, 512)
