"""From a corpus to tokens with a mask: which tokens a model learns to produce.

Running text becomes BOS text END, all of it learned. A conversation is rendered exactly as in play, token by token;
pretraining learns all of it, supervised training the replies of the assistant with their stop token.

Left out: templates that rewrite earlier turns depending on later ones; the renderer refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from transformers import PreTrainedTokenizerBase

from cotrain.core.errors import DataError
from cotrain.stages.corpora import Corpus, Item, repeat_epochs
from cotrain.stages.packing import Document
from cotrain.text.chat_template import Message as Rendered
from cotrain.text.render import Renderer

PROBE = 200  # conversations looked at before training begins


def document_reader(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
    replies_only: bool = False,
    longest: int = 0,
    begun: datetime | None = None,
) -> Callable[[int, int], list[Document]]:
    """(start, count) → documents; endless, a finite corpus is repeated in epochs of another order.

    Args:
        replies_only: of conversations, learn the assistant's tokens only.
        longest: conversations are cut off after this many tokens (0: never); running text is left whole.
        begun: the time that chat templates are told.
    """
    get = repeat_epochs(corpus, seed)
    renderer = _renderer_at(tokenizer, begun)

    def read_documents(start: int, count: int) -> list[Document]:
        return tokenize([get(index) for index in range(start, start + count)], renderer, replies_only, longest)

    return read_documents


def all_documents(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    replies_only: bool = False,
    longest: int = 0,
    begun: datetime | None = None,
) -> list[Document]:
    """Every document of a finite corpus, in order."""
    if corpus.size is None:
        raise DataError(f"{corpus.name}: endless; expected a finite corpus, such as the held-out part of a split")
    renderer = _renderer_at(tokenizer, begun)
    return tokenize([corpus.get(index) for index in range(corpus.size)], renderer, replies_only, longest)


def refuse_overlong(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, length: int, batch: int) -> None:
    """Raise DataError when more than a tenth of the first documents would lose their ends: conversations that are
    longer than ``length`` tokens (0: than a batch), and texts longer than the ``batch``, which has as many tokens."""
    count = PROBE if corpus.size is None else min(PROBE, corpus.size)
    items = list(map(corpus.get, range(count)))
    limits = [
        (length, "--length") if length and not isinstance(item, str) else (batch, "--batch-tokens") for item in items
    ]
    documents = tokenize(items, Renderer(tokenizer))
    over = [(len(one.ids), *limit) for one, limit in zip(documents, limits, strict=True) if len(one.ids) > limit[0]]
    if len(over) > len(items) / 10:
        size, limit, flag = max(over)
        raise DataError(
            f"{corpus.name}: {len(over)} of the first {len(items)} documents are longer than {limit} tokens (the "
            f"longest {size}) and would lose their ends; raise {flag}"
        )


def tokenize(items: Sequence[Item], renderer: Renderer, replies_only: bool = False, longest: int = 0) -> list[Document]:
    """Tokens of each item; running texts go through the tokenizer in one call, conversations through the renderer."""
    texts = [item for item in items if isinstance(item, str)]
    running = iter(running_documents(texts, renderer.tokenizer) if texts else ())
    tokenized = []
    for item in items:
        if isinstance(item, str):
            tokenized.append(next(running))
            continue
        ids, sampled = renderer.render_conversation([Rendered(m["role"], m["content"]) for m in item])
        learn = sampled if replies_only else (True,) * len(ids)
        last = longest or len(ids)
        tokenized.append(Document(ids=ids[:last], learn=learn[:last]))
    return tokenized


def _renderer_at(tokenizer: PreTrainedTokenizerBase, begun: datetime | None) -> Renderer:
    renderer = Renderer(tokenizer)
    if begun is not None:
        renderer.set_time(begun)
    return renderer


def running_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[Document]:
    """BOS text END, as far as the tokenizer has those; what a text says never becomes a control token."""
    begin = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
    end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, split_special_tokens=True)
    rows = [(*begin, *ids, *end) for ids in encoded["input_ids"]]
    return [Document(ids=row, learn=(True,) * len(row)) for row in rows]
