"""Small causal language models from scratch: a Llama or Qwen3 of a few layers, initialised from a seed.

The defaults train well on a laptop; ``depth`` is the size to change first. Embeddings are tied.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen3Config

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.seeding import seed_of
from cotrain.models.linear import use_onednn
from cotrain.models.load import ATTENTION

KINDS = {"llama": LlamaConfig, "qwen3": Qwen3Config}


def small_config(
    vocab_size: int,
    depth: int = 4,
    width: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    feed_forward: int = 384,
    context: int = 1024,
    kind: str = "llama",
    pad_id: int = 0,
    bos_id: int = 1,
    eos_id: int = 5,
) -> PretrainedConfig:
    """A configuration with tied embeddings and rotary positions; head size is ``width // heads``.

    The default ids are those of the shipped tokenizer (``<|pad|>``, ``<|bos|>``, ``<|end|>``). Raises ConfigError
    for sizes that do not divide, UnknownName for another ``kind`` than "llama" and "qwen3".
    """
    if kind not in KINDS:
        raise UnknownName("kind of model", kind, KINDS)
    if width % heads or (width // heads) % 2:
        raise ConfigError(
            f"width {width} does not split into {heads} heads of an even size; choose a multiple of {2 * heads}",
            code="E_MODEL_SIZES",
        )
    if heads % kv_heads:
        raise ConfigError(f"heads {heads} must be a multiple of kv_heads {kv_heads}", code="E_MODEL_SIZES")
    if not all(0 <= token < vocab_size for token in (pad_id, bos_id, eos_id)):
        raise ConfigError(
            f"small_config: ids {pad_id}, {bos_id}, {eos_id} must be below vocab_size {vocab_size}",
            code="E_MODEL_SIZES",
        )
    return KINDS[kind](
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=feed_forward,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=width // heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        pad_token_id=pad_id,
        bos_token_id=bos_id,
        eos_token_id=eos_id,
    )


def new_model(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A float32 causal LM whose weights depend on ``config`` and ``seed`` alone; the global generator is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("new_model", seed))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=ATTENTION)
    use_onednn(model)
    return model.eval()
