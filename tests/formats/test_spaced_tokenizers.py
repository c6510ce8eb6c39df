"""Tokenizers that put a space before the first word of a text: what stands behind a prompt begins with none."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cotrain.prompts.chat_template import Message
from cotrain.prompts.decoding import sampled_after
from cotrain.prompts.render import Renderer

WORDS = ["The cat sat on the mat. The answer is 42.", "Hello, the sum of 2 and 3 is 5.\nYes.", "<b>"] * 30
MARKS = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
MIDDLE = "{% if m.role == 'user' %}<|user|>BREAK{{ m.content }}</s>BREAK{% else %}<|assistant|>BREAK{{ m.content }}</s>"
TEMPLATE = "{{ bos_token }}{% for m in messages %}" + MIDDLE + "BREAK{% endif %}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|assistant|>BREAK{% endif %}"
SAID = ["The answer is 42.", "  The cat", "\nYes.", "5", "The </s> cat", "<s>"]


def tokenizer_of(kind: str, between: str) -> PreTrainedTokenizerFast:
    """``between``: what the template writes behind its marks."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    if kind == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    elif kind == "bytes":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        backend.decoder = decoders.ByteLevel()
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind)
        backend.decoder = decoders.Metaspace(prepend_scheme=kind)
    alphabet = [*pre_tokenizers.ByteLevel.alphabet()] if kind == "bytes" else list("▁\n<>|/abcdeiostTAHY0123456789.,")
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(WORDS, trainer)
    found = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=MARKS[3:],
    )
    found.chat_template = TEMPLATE.replace("BREAK", between)
    return found


def conversation(said: str) -> list[Message]:
    return [Message("user", "Hello, the cat"), Message("assistant", said), Message("user", "Yes.")]


def own_ids(tokenizer, messages: list[Message], opening: bool) -> list[int]:
    turns = [{"role": m.role, "content": m.content} for m in messages]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=opening)
    return list(tokenizer(text, add_special_tokens=False).input_ids)


@pytest.mark.whole
@pytest.mark.parametrize("between", ["\n", ": ", ""])
@pytest.mark.parametrize("kind", ["first", "prepend", "never", "bytes", "always"])
def test_a_reply_is_cut_as_it_stands_behind_its_prompt(kind, between):
    tokenizer = tokenizer_of(kind, between)
    renderer = Renderer(tokenizer)
    for said in SAID[:1] if between == ": " else SAID[:4]:
        messages = conversation(said)
        prompt = renderer.render(messages[:1])
        assert list(prompt) == own_ids(tokenizer, messages[:1], True)
        if between == ": ":  # the tokenizer's own ids grow over the boundary at which a reply is sampled
            ids, _ = renderer.render_conversation(messages[:2])
            whole = own_ids(tokenizer, messages[:2], False)
            assert ids[: len(prompt)] == prompt and tokenizer.decode(whole).startswith(tokenizer.decode(ids))
            continue
        whole = own_ids(tokenizer, messages[:2], False)
        if whole[: len(prompt)] != list(
            prompt
        ):  # a reply that begins with a line break grows together with the prompt's
            continue
        ids, mask = renderer.render_conversation(messages[:2])
        assert list(ids) == whole[: len(ids)]
        assert [i for i, learned in zip(ids, mask, strict=True) if learned] == list(ids[len(prompt) :])
        assert list(renderer.render(messages)) == own_ids(tokenizer, messages, True)
        reply = tuple(whole[len(prompt) : len(ids)])
        sequence = sampled_after(renderer.prompt_pieces(messages[:1]), prompt, reply, renderer)
        if renderer.decode(reply) == said:  # decoders of this kind drop a first space
            new = sequence.new_ids(renderer.prompt_pieces(messages), renderer)
            assert [*sequence.ids, *(new or ())] == own_ids(tokenizer, messages, True)


@pytest.mark.whole
@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("kind", ["first", "prepend", "never", "always"])
def test_what_a_reply_says_is_no_control_token_there(kind, said):
    tokenizer = tokenizer_of(kind, "\n")
    renderer = Renderer(tokenizer)
    (ids, mask), control = renderer.render_conversation(conversation(said)[:2]), set(tokenizer.all_special_ids)
    learned = [i for i, one in zip(ids, mask, strict=True) if one]
    assert learned[-1] == tokenizer.eos_token_id and control.isdisjoint(learned[:-1])
    assert renderer.decode(learned).lstrip() == said.lstrip()
    assert not tokenizer.convert_ids_to_tokens(learned[0]).startswith("▁") or said.startswith(" ")


def test_a_program_that_speaks_for_a_policy_is_cut_so_too():
    tokenizer = tokenizer_of("first", "\n")
    renderer = Renderer(tokenizer)
    prompt = renderer.render(conversation("")[:1])
    assert tokenizer.convert_ids_to_tokens(renderer.encode("The cat", prompt)) == ["The", "▁cat"]
    assert tokenizer.convert_ids_to_tokens(renderer.encode("The cat")) == ["▁The", "▁cat"]
