"""A model whose tokenizer is unlike that of the other tests' models."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

MARKS = ["<s>", "</s>", "[user]", "[tool]", "[model]"]
TEMPLATE = (
    "<s>{% for m in messages %}"
    "{% if m.role == 'assistant' %}[model]{{ m.content }}</s>"
    "{% elif m.role == 'tool' %}[tool]{{ m.content }}"
    "{% else %}[user]{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[model]{% endif %}"
)


def save_byte_model(path: Path) -> str:
    """A model of one token a byte, with a template of its own: its ids mean nothing to the other models."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([*MARKS, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", additional_special_tokens=MARKS[2:]
    )
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)
