"""From a corpus to tokens with a mask: which tokens a model learns to produce.

Running text becomes BOS text END, all of it learned. A conversation is rendered exactly as in a rollout, token by
token; pretraining learns all of it, supervised training the replies of the assistant with their stop token.

Before training a finite corpus is looked at as a whole (``examine``), and what will not be learned as it stands is
told: conversations that are longer than a row are left out, texts that are longer than a batch are read in parts, or of
an endless corpus left out. A reply that cannot follow its prompt, and a conversation that was rendered to text before,
are refused.

Left out: templates that rewrite earlier turns depending on later ones; the renderer refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from transformers import GenerationConfig, PreTrainedTokenizerBase

from cotrain.core.errors import DataError, ModelError
from cotrain.pretraining.corpora import Corpus, Item, Message, TextPart, from_items, repeat_epochs
from cotrain.pretraining.packing import Document
from cotrain.prompts.chat_template import Message as Rendered
from cotrain.prompts.render import Renderer
from cotrain.prompts.thoughts import begins_with_thought

PROBE = 200  # items of an endless corpus that are looked at before training begins
CHUNK = 200  # items that are looked at in one go
MOST_LEFT_OUT = 0.5  # share of conversations; above it the limit is taken for a mistake
# Marks of any family of chat templates.
_RENDERED = re.compile(r"\s*(?:<\|\w+\|>|<｜[^｜<>]+｜>|<start_of_turn>|<s>\s*\[INST\]|\[INST\])")


def document_reader(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
    replies_only: bool = False,
    longest: int = 0,
    begun: datetime | None = None,
    ends: GenerationConfig | None = None,
    batch: int = 0,
) -> Callable[[int, int], list[Document]]:
    """(start, count) → documents; endless, a finite corpus is repeated in epochs of another order.

    Args:
        replies_only: of conversations, learn the assistant's tokens only.
        longest: a conversation of more tokens is a document without any (0: never).
        begun: the time for chat templates that ask for it.
        ends: what the model's authors say of its ends of sequence.
        batch: a running text of more tokens is a document without any (0: never).
    """
    get = repeat_epochs(corpus, seed)
    renderer = renderer_at(tokenizer, begun, ends)

    def read_documents(start: int, count: int) -> list[Document]:
        return tokenize([get(index) for index in range(start, start + count)], renderer, replies_only, longest, batch)

    return read_documents


def all_documents(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    replies_only: bool = False,
    longest: int = 0,
    begun: datetime | None = None,
    ends: GenerationConfig | None = None,
) -> list[Document]:
    """Every document of a finite corpus, in order, without those that are longer than ``longest``."""
    if corpus.size is None:
        raise DataError(
            f"{corpus.name}: endless; expected a finite corpus, such as the held-out part of a split",
            code="E_CORPUS_ENDLESS",
        )
    renderer = renderer_at(tokenizer, begun, ends)
    documents = tokenize([corpus.get(index) for index in range(corpus.size)], renderer, replies_only, longest)
    return [document for document in documents if document.ids]


@dataclass(slots=True)
class Examined:
    """Figures of a corpus before training."""

    name: str
    conversations: int = 0
    texts: int = 0
    left_out: int = 0  # conversations that are longer than they may be
    texts_left_out: int = 0  # texts of an endless corpus that are longer than a batch
    in_parts: int = 0  # texts that are longer than a batch
    longest: int = 0  # tokens of the longest conversation
    control_texts: int = 0  # texts that name control tokens of the model behind their beginning
    thoughts: int = 0  # conversations with a thought, where prompts of the model switch thoughts off

    def notes(self, most: int, batch: int) -> list[str]:
        """The notes on what was left out or divided. ``most``: the most tokens of a conversation; ``batch``: the tokens
        of a batch."""
        lines = []
        if self.left_out:
            lines.append(
                f"note: {self.name}: {self.left_out} of {self.conversations} conversations are left out, as they are "
                f"longer than {most} tokens; the longest has {self.longest}"
            )
        if self.texts_left_out:
            lines.append(
                f"note: {self.name}: {self.texts_left_out} of the first {self.texts} texts, and others like them, are "
                f"left out, as they are longer than a batch of {batch} tokens"
            )
        if self.in_parts:
            lines.append(
                f"note: {self.name}: {self.in_parts} of {self.texts} texts are longer than a batch of {batch} tokens, "
                "and are read in parts"
            )
        if self.control_texts:
            lines.append(
                f"note: {self.name}: {self.control_texts} of {self.texts} texts name control tokens of the model, "
                "which are learned letter by letter; conversations belong in a column 'messages'"
            )
        if self.thoughts:
            lines.append(
                f"note: {self.name}: {self.thoughts} of {self.conversations} conversations have a thought in a reply. "
                "It is learned as the chat template writes it, with thoughts switched on; runs of this model ask with "
                "thoughts switched off"
            )
        return lines


def examine(corpus: Corpus, renderer: Renderer, length: int, batch: int, replies_only: bool) -> Examined:
    """Look at all of a finite corpus, and at the beginning of an endless one.

    ``length``: tokens that a conversation may have (0: as a batch); ``batch``: those of a batch, for texts. Raises
    DataError for a conversation that cannot be learned, where most are too long, and, for ``replies_only``, for texts
    that are rendered conversations.
    """
    most = length or batch
    seen = Examined(name=corpus.name)
    count = PROBE if corpus.size is None else corpus.size
    for start in range(0, count, CHUNK):
        items = [corpus.get(index) for index in range(start, min(start + CHUNK, count))]
        for offset, item in enumerate(items):
            place = f"{corpus.name}, item {start + offset + 1}"
            if not isinstance(item, str):
                _examine_conversation(item, renderer, most, seen, place)
            elif replies_only:
                _check_not_rendered(item, renderer, place)
                seen.control_texts += renderer.names_control(item)

        texts = [item for item in items if isinstance(item, str)]
        documents = running_documents(texts, renderer.tokenizer) if texts else []
        sizes = [len(document.ids) for document in documents]
        seen.texts += len(texts)
        too_long = sum(size > batch for size in sizes)
        if corpus.size is None:
            seen.texts_left_out += too_long
        else:
            seen.in_parts += too_long
    if seen.texts_left_out > MOST_LEFT_OUT * seen.texts:
        raise DataError(
            f"{corpus.name}: {seen.texts_left_out} of the first {seen.texts} texts are longer than a batch of {batch} "
            "tokens and would be left out; raise --batch-tokens",
            code="E_TEXTS_LEFT_OUT",
        )
    if seen.left_out > MOST_LEFT_OUT * seen.conversations:
        raise DataError(
            f"{corpus.name}: {seen.left_out} of {seen.conversations} conversations are longer than {most} tokens (the "
            f"longest {seen.longest}) and would be left out; raise {'--length' if length else '--batch-tokens'}",
            code="E_CONVERSATIONS_LEFT_OUT",
        )
    return seen


def _examine_conversation(item: Sequence[Message], renderer: Renderer, most: int, seen: Examined, place: str) -> None:
    try:
        ids, _ = renderer.render_conversation(_as_rendered(item))
    except ModelError as error:
        raise DataError(f"{place}: {error}", code=error.code) from error
    seen.conversations += 1
    seen.left_out += len(ids) > most
    seen.longest = max(seen.longest, len(ids))
    replies = [message["content"] for message in item if message["role"] == "assistant"]
    seen.thoughts += renderer.switches_thoughts_off and any(map(begins_with_thought, replies))


def _check_not_rendered(text: str, renderer: Renderer, place: str) -> None:
    """Raise DataError for a text that begins as a rendered conversation does: its control tokens would be learned
    letter by letter."""
    mark = renderer.control_text_at_start(text)
    if not mark:
        match = _RENDERED.match(text)
        mark = match.group().strip() if match else ""
    if mark:
        raise DataError(
            f"{place}: the text begins with {mark!r}, as a conversation that a chat template has rendered; as text its "
            "control tokens would be learned letter by letter; give the conversation in a column 'messages', or learn "
            "it as text by `cotrain pretrain --model`",
            code="E_TEXT_IS_CONVERSATION",
        )


def in_parts(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, most: int) -> Corpus:
    """The same finite corpus, with texts of more than ``most`` tokens in parts of at most as many."""
    items: list[Item] = []
    for index in range(corpus.size or 0):
        item = corpus.get(index)
        items += _parts_of(item, tokenizer, most) if isinstance(item, str) else [item]
    return from_items(corpus.name, items)


def _parts_of(text: str, tokenizer: PreTrainedTokenizerBase, most: int) -> list[str]:
    (document,) = running_documents([text], tokenizer)
    if len(document.ids) <= most:
        return [text]
    pieces = _halves(text, tokenizer, max(1, most - 2))  # besides the marks of begin and end
    last = len(pieces) - 1
    return [TextPart(piece, begins=i == 0, ends=i == last) for i, piece in enumerate(pieces)]


def _halves(text: str, tokenizer: PreTrainedTokenizerBase, most: int) -> list[str]:
    """A text in stretches of at most ``most`` tokens, cut where a paragraph, a line or a word ends near its middle."""
    if len(text) < 2 or len(tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids) <= most:
        return [text]
    middle = len(text) // 2
    quarter = len(text) // 4
    for gap in ("\n\n", "\n", " "):
        at = text.rfind(gap, quarter, len(text) - quarter)
        if at >= 0:
            middle = at + len(gap)
            break
    return [*_halves(text[:middle], tokenizer, most), *_halves(text[middle:], tokenizer, most)]


def tokenize(
    items: Sequence[Item], renderer: Renderer, replies_only: bool = False, longest: int = 0, batch: int = 0
) -> list[Document]:
    """Tokens of each item; running texts go through the tokenizer in one call, conversations through the renderer. A
    conversation of more than ``longest`` tokens has none, nor has a text of more than ``batch`` (0: any number)."""
    texts = [item for item in items if isinstance(item, str)]
    running = iter(running_documents(texts, renderer.tokenizer) if texts else ())
    tokenized = []
    for item in items:
        if isinstance(item, str):
            document = next(running)
            most = batch
        else:
            ids, sampled = renderer.render_conversation(_as_rendered(item))
            learn = sampled if replies_only else (True,) * len(ids)
            document = Document(ids=ids, learn=learn)
            most = longest
        is_too_long = most > 0 and len(document.ids) > most
        tokenized.append(Document(ids=(), learn=()) if is_too_long else document)
    return tokenized


def _as_rendered(item: Sequence[Message]) -> list[Rendered]:
    return [Rendered(message["role"], message["content"]) for message in item]


def renderer_at(
    tokenizer: PreTrainedTokenizerBase, begun: datetime | None = None, ends: GenerationConfig | None = None
) -> Renderer:
    """A renderer whose templates get the time at which a training was ``begun``."""
    renderer = Renderer(tokenizer, ends)
    if begun is not None:
        renderer.set_time(begun)
    return renderer


def running_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[Document]:
    """BOS text END, as far as the tokenizer has those; what a text says never becomes a control token. A part of a
    text has the mark of the end that it has."""
    begin = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
    end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    encoded = tokenizer(
        [str(text) for text in texts], add_special_tokens=False, return_attention_mask=False, split_special_tokens=True
    )
    rows = []
    for text, ids in zip(texts, encoded["input_ids"], strict=True):
        part = text if isinstance(text, TextPart) else TextPart(text)
        rows.append((*(begin if part.begins else ()), *ids, *(end if part.ends else ())))
    return [Document(ids=row, learn=(True,) * len(row)) for row in rows]
