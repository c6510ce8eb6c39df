"""The models of the benchmarks: random Llamas around the shape of the embedded base, and a tokenizer of made-up words.

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
from transformers import PreTrainedTokenizerFast
from work import PAD, STOP, VOCABULARY, word

from cotrain.models.config import new_model, small_config
from cotrain.models.load import save_model

SIZES = {
    "tiny": Shape(depth=2, width=32, heads=4, kv_heads=2, feed_forward=64, vocabulary=VOCABULARY),
    "1M": Shape(depth=4, width=128, heads=4, kv_heads=2, feed_forward=384, vocabulary=VOCABULARY),  # the embedded base
    "5M": Shape(depth=6, width=256, heads=8, kv_heads=4, feed_forward=768, vocabulary=VOCABULARY),
    "25M": Shape(depth=8, width=512, heads=8, kv_heads=4, feed_forward=1536, vocabulary=VOCABULARY),
}


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word(i): i for i in range(VOCABULARY + 1)}, unk_token=word(PAD)))
    words.pre_tokenizer = WhitespaceSplit()
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=word(VOCABULARY), pad_token=word(PAD), padding_side="left"
    )


def make(size: str, directory: Path) -> Path:
    """Write the model of a size, if it is not there, and return its directory."""
    if not (directory / "config.json").is_file():
        shape = SIZES[size]
        config = small_config(
            VOCABULARY,
            depth=shape.depth,
            width=shape.width,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            feed_forward=shape.feed_forward,
            pad_id=PAD,
            eos_id=STOP,
        )
        save_model(new_model(config, seed=0), tokenizer(), directory)
    return directory


if __name__ == "__main__":
    print(make(sys.argv[1], Path(sys.argv[2])))
