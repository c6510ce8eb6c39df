"""The models of the benchmarks: random Llamas around the shape of the shipped base, one each of SmolLM2-135M's and
Qwen2.5-0.5B's sizes, and a tokenizer of made-up words.

    python benchmarks/models.py 5M DIR

Both sides load the same directory. The tokenizer's words are ids (``w17``), split at spaces, so that a text has as many
tokens as words. Its end of sequence is one id past the model's vocabulary: no answer ends before its imposed length.
"""

from __future__ import annotations

import sys
from pathlib import Path

from floors import Shape
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config
from work import PAD, STOP, VOCABULARY, word

from cotrain.models.from_scratch import new_model, small_config
from cotrain.models.load import save_model

SIZES = {
    "tiny": Shape(depth=2, width=32, heads=4, kv_heads=2, feed_forward=64, vocabulary=VOCABULARY),
    "1M": Shape(depth=4, width=128, heads=4, kv_heads=2, feed_forward=384, vocabulary=VOCABULARY),  # the shipped base
    "5M": Shape(depth=6, width=256, heads=8, kv_heads=4, feed_forward=768, vocabulary=VOCABULARY),
    "25M": Shape(depth=8, width=512, heads=8, kv_heads=4, feed_forward=1536, vocabulary=VOCABULARY),
}
REAL_SIZES = {
    "135M": Shape(depth=30, width=576, heads=9, kv_heads=3, feed_forward=1536, vocabulary=49152),  # of SmolLM2-135M
}
GPU_SIZES = {
    "wide": Shape(depth=2, width=32, heads=4, kv_heads=2, feed_forward=64, vocabulary=2 * VOCABULARY),
    "0.5B": Shape(depth=24, width=896, heads=14, kv_heads=2, feed_forward=4864, vocabulary=151936),  # of Qwen2.5
}


def tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word(i): i for i in range(vocabulary + 1)}, unk_token=word(PAD)))
    words.pre_tokenizer = WhitespaceSplit()
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=word(vocabulary), pad_token=word(PAD), padding_side="left"
    )


def make(size: str, directory: Path) -> Path:
    """Write the model of a size, if it is not there, and return its directory."""
    if not (directory / "config.json").is_file():
        shape = (SIZES | REAL_SIZES | GPU_SIZES)[size]
        config = small_config(
            shape.vocabulary,
            depth=shape.depth,
            width=shape.width,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            feed_forward=shape.feed_forward,
            pad_id=PAD,
            eos_id=STOP,
        )
        save_model(new_model(config, seed=0), tokenizer(shape.vocabulary), directory)
    return directory


def qwen(shape: Shape) -> Qwen2Config:
    """A Qwen2 with tied embeddings, to be made in memory: from a directory of this type transformers reads no tokenizer
    but Qwen2's own."""
    return Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=PAD,
        eos_token_id=STOP,
    )


if __name__ == "__main__":
    print(make(sys.argv[1], Path(sys.argv[2])))
