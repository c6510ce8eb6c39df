"""The tokenizer of the shipped base: byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) of a few hundred tokens.

Digits are single tokens, so that arithmetic is done digit by digit and no number is ever unknown. Bytes are the
alphabet, so that any text whatever survives encode and decode. The tags of the text formats are added tokens that are
ordinary text (a parser must see them in what was decoded); the turn marks are special tokens.

Left out: normalisation (it would break the round trip), and a vocabulary for anything but the training text given.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cotrain.core.errors import ConfigError

PAD, BOS, USER, ASSISTANT, SYSTEM, END = "<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
SPECIAL = (PAD, BOS, USER, ASSISTANT, SYSTEM, END)
TAGS = ("<step>", "</step>", "<answer>", "</answer>", "<final>", "</final>")
ALPHABET = 256  # every byte is a token

CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('unknown role ' + message['role'] + ' (there are: system, user, assistant)') -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' -}}{{- message['content'] -}}{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def train_tokenizer(
    texts: Iterable[str], vocab_size: int = 640, context: int = 1024, min_frequency: int = 2
) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE from ``texts`` with exactly the special tokens and tags of the shipped text formats.

    Args:
        texts: training text without turn marks; tags in it are cut out before pairs are counted.
        vocab_size: all tokens: 6 special, 256 bytes, the learned merges, 6 tags. Fewer if the text has fewer pairs.
        context: written as ``model_max_length``.
        min_frequency: a pair must occur this often to be merged.

    Returns a tokenizer that ``save_pretrained`` writes as a plain directory and ``AutoTokenizer`` reads.
    Raises ConfigError when ``vocab_size`` has no room for the bytes and the fixed tokens.
    """
    fixed = len(SPECIAL) + len(TAGS)
    if vocab_size < ALPHABET + fixed:
        raise ConfigError(
            f"tokenizer: vocab_size {vocab_size} is too small; bytes and fixed tokens alone need {ALPHABET + fixed}",
            code="E_VOCABULARY_TOO_SMALL",
        )
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator((piece for text in texts for piece in _without_tags(text)), trainer)
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[USER, ASSISTANT, SYSTEM],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _without_tags(text: str) -> list[str]:
    pieces = [text]
    for tag in TAGS:
        pieces = [part for piece in pieces for part in piece.split(tag)]
    return pieces
