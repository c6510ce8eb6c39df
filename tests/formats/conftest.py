"""Small tokenizers of the two kinds in use (bytes, and SentencePiece-like with byte fallback) and chat templates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "There are 12 apples. There are 4 more pears than apples. How many plums are there?\nSolve:",
    "<step> pears= apples+4=12+4=16</step><answer>4</answer> CORRECT INCORRECT Review: user assistant model",
    "日本語の文 naïve café 🙂🙃 don't aaa  \n\n x",
] * 8

OURS = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = (
    "{{ bos_token }}{% for m in messages %}<|header|>{{ m['role'] }}<|/header|>\n\n{{ m['content'] | trim }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}"
)
STRICT = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
TEMPLATES = {"ours": OURS, "chatml": CHATML, "trimming": TRIMMING, "strict": STRICT, "thinking": THINKING}

_SPECIAL = ["<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|im_start|>", "<|im_end|>"]
_SPECIAL += ["<|header|>", "<|/header|>", "<|eot|>", "<start_of_turn>", "<end_of_turn>"]
_TAGS = ["<step>", "</step>", "<answer>", "</answer>", "<final>", "</final>", "<think>", "</think>"]


def _byte_level() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _sentencepiece_like() -> Tokenizer:
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", *fallback, *_SPECIAL], show_progress=False)
    backend.train_from_iterator([line for line in CORPUS if "日" not in line], trainer)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    # the trainer marks the byte tokens special; build it anew so that they are ordinary vocabulary
    import json

    content = json.loads(backend.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(content))


def _wrap(backend: Tokenizer, template: str | None) -> PreTrainedTokenizerFast:
    backend = Tokenizer.from_str(backend.to_str())
    backend.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in _TAGS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>"
    )
    fast.chat_template = template
    return fast


@pytest.fixture(scope="session")
def tokenizer_with() -> Callable[[str, str | None], PreTrainedTokenizerFast]:
    """``tokenizer_with(kind, template)``: kind "bytes" or "pieces", a template's name or None."""
    backends = {"bytes": _byte_level(), "pieces": _sentencepiece_like()}
    return lambda kind, template: _wrap(backends[kind], TEMPLATES[template] if template else None)
