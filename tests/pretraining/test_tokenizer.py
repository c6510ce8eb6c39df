import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer

from cotrain.pretraining.tokenizer import SPECIAL, TAGS, train_tokenizer
from tests.sentences import refuses

TEXT = "There are 12 apples. <step> pears= apples+4=12+4=16|16 CORRECT</step><final>INCORRECT</final>"
TRAINED = train_tokenizer([TEXT, "How many pears? Solve: CORRECT INCORRECT"] * 5, vocab_size=300)


def pieces(text):
    return TRAINED.convert_ids_to_tokens(TRAINED.encode(text, add_special_tokens=False))


@pytest.mark.whole
@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="<>|/ step\n\t0123é🙂"), st.lists(st.sampled_from(TAGS)).map(" ".join)))
def test_any_text_survives(text):
    ids = TRAINED.encode(text, add_special_tokens=False)
    assert TRAINED.decode(ids) == text
    plain = TRAINED(text, add_special_tokens=False, split_special_tokens=True).input_ids
    assert TRAINED.decode(plain, skip_special_tokens=True) == text, "what a text says is no control token"


def test_order_and_number_of_tokens():
    assert len(TRAINED) == 300
    assert TRAINED.convert_tokens_to_ids(list(SPECIAL)) == list(range(6))
    assert TRAINED.convert_tokens_to_ids(list(TAGS)) == list(range(294, 300))
    assert (TRAINED.pad_token, TRAINED.bos_token, TRAINED.eos_token) == ("<|pad|>", "<|bos|>", "<|end|>")
    assert TRAINED.all_special_ids and not set(TRAINED.convert_tokens_to_ids(list(TAGS))) & set(TRAINED.all_special_ids)


def test_the_text_format_in_tokens():
    step = "<step> pears= apples+4=12+4=16|16 CORRECT</step>"
    expected = "<step>,Ġpears,=,Ġapples,+,4,=,1,2,+,4,=,1,6,|,1,6,ĠCORRECT,</step>"
    assert pieces(step) == expected.split(",")
    assert pieces("4096") == list("4096"), "digits never merge"


def test_chat_template():
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": " U\n"}]
    text = TRAINED.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == "<|bos|><|system|>S<|end|><|user|> U\n<|end|><|assistant|>"
    turns.append({"role": "assistant", "content": "A"})
    assert TRAINED.apply_chat_template(turns, tokenize=False) == text + "A<|end|>"
    with pytest.raises(TemplateError, match="unknown role tool"):
        TRAINED.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_a_plain_directory(tmp_path):
    TRAINED.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == TRAINED.get_vocab() and again.chat_template == TRAINED.chat_template
    assert again.encode(TEXT) == TRAINED.encode(TEXT) and again.eos_token_id == 5 and again.pad_token_id == 0


def test_same_text_same_tokenizer():
    again = train_tokenizer([TEXT, "How many pears? Solve: CORRECT INCORRECT"] * 5, vocab_size=300)
    assert again.backend_tokenizer.to_str() == TRAINED.backend_tokenizer.to_str()


def test_too_small_a_vocabulary():
    with refuses("E_VOCABULARY_TOO_SMALL", names="need 268"):
        train_tokenizer([TEXT], vocab_size=267)
