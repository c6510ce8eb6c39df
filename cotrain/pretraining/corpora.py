"""Sources of training text: an addressed corpus gives for each index the same text or conversation, always.

Procedural text, a text file (paragraphs), or rows of a file:

::

    {"text": "…"}                                       running text
    {"messages": [{"role", "content"}, …]}              a conversation, of which every reply is learned
    {"conversations": [{"from": "human", "value"}, …]}  the same, as ShareGPT writes it
    {"prompt": …, "completion": …}                      one reply and its prompt, a text or messages (TRL)
    {"instruction": …, "input": …, "output": …}         the same of instruction data (Alpaca), or with "response"

A finite corpus is read in epochs, each in its own order; an endless one never repeats. Nothing here knows tokens.

Left out: streaming of files larger than memory and remote data sets; convert them to JSONL shards of moderate size.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError
from cotrain.core.input_files import MOST_ROW, lines_of_file
from cotrain.core.seeding import rng_of
from cotrain.data.columns import SPEAKERS
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.marks import check_message_marks, check_row_marks
from cotrain.data.preferences import REPLIES, read_chat
from cotrain.data.read_rows import numbered_lines, parse_rows
from cotrain.data.row_files import BYTE_ORDER_MARK, whole_text
from cotrain.data.unread_columns import (
    check_lost_parts,
    columns_note,
    count_columns,
    is_system,
    system_text,
    unread_columns,
)
from cotrain.data.word_problems.practice import OF_SKILL, SWAPPED, check_practice, solve_practice
from cotrain.data.word_problems.source import WordProblems

Message = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
Item = str | Sequence[Message]  # running text, or one conversation


class TextPart(str):
    """A stretch of a running text that is longer than a batch."""

    begins: bool  # the text begins with it
    ends: bool

    def __new__(cls, text: str, *, begins: bool = True, ends: bool = True) -> TextPart:
        part = super().__new__(cls, text)
        part.begins = begins
        part.ends = ends
        return part


ROWS = (".jsonl", ".parquet", ".csv", ".json")  # and all of them with .gz
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Texts or conversations by index."""

    name: str  # for messages and metrics
    size: int | None  # None: endless, every index is new
    get: Callable[[int], Item]  # index in [0, size) → the same item, always
    notes: tuple[str, ...] = ()  # what is to be said of how its file was read


def procedural_corpus(name: str, get: Callable[[int], Item]) -> Corpus:
    """An endless corpus from a function of an index."""
    return Corpus(name=name, size=None, get=get)


def from_items(name: str, items: Sequence[Item]) -> Corpus:
    """A finite corpus from a list; raises DataError when it is empty."""
    if not items:
        raise DataError(f"{name}: no texts in it; expected at least one", code="E_DATA_EMPTY")
    return Corpus(name=name, size=len(items), get=items.__getitem__)


MOST_DIGESTED = 20_000  # items of a corpus that its digest is of
ENDLESS_DIGESTED = 16  # the same of an endless one


def digest_of_corpus(corpus: Corpus) -> str:
    """Return a digest that tells this corpus from another one: its size, and a hash of its items, or of many of
    them."""
    count = ENDLESS_DIGESTED if corpus.size is None else min(corpus.size, MOST_DIGESTED)
    size = count if corpus.size is None else corpus.size
    digest = hashlib.blake2b(digest_size=16)
    for place in range(count):
        digest.update(repr(corpus.get(place * size // count)).encode(errors="replace"))
    return f"{'endless' if corpus.size is None else corpus.size}:{digest.hexdigest()}"


def text_file(path: str | Path, min_characters: int = 400) -> Corpus:
    """A UTF-8 text file: paragraphs (parted by empty lines, or lines where there are none), short ones joined until
    ``min_characters`` are reached."""
    parts = [paragraph for paragraph in _read_paragraphs(Path(path)) if paragraph]
    gap = "\n\n"
    if len(parts) == 1:
        parts = parts[0].splitlines()
        gap = "\n"
    texts: list[str] = []
    pending = ""
    for part in parts:
        if part:
            pending = f"{pending}{gap}{part}" if pending else part
            if len(pending) >= min_characters:
                texts.append(pending)
                pending = ""
    return from_items(str(path), [*texts, pending] if pending else texts)


def jsonl_file(path: str | Path, aside: Quarantine | None = None) -> Corpus:
    """A file of JSON lines (``.gz`` too) or parquet whose every row is in one of the layouts above.

    A text in a column ``system`` is the first message. Tools and pictures next to messages are refused, other columns
    counted in ``notes``. Raises DataError with row (from 1) and column for whatever else is found, or sets such a row
    ``aside``, at most half of all.
    """
    rows = parse_rows(numbered_lines(Path(path)), parse_text_row, aside)
    if aside is not None:
        aside.check_share(path)
    items = [row.item for row in rows]
    return with_column_note(from_items(str(path), items), [row.unread for row in rows])


def with_column_note(corpus: Corpus, unread: Sequence[Sequence[str]]) -> Corpus:
    """The corpus with a note of the columns that were not read; ``unread``: those of each row."""
    note = columns_note(count_columns(unread))
    return replace(corpus, notes=(f"note: {corpus.name}: {note}",)) if note else corpus


def corpus_file(path: str | Path, aside: Quarantine | None = None) -> Corpus:
    """``.jsonl``, ``.csv``, ``.json`` and ``.parquet`` as rows, anything else as text; raises DataError when there is
    no such file."""
    rows = str(path).lower().removesuffix(".gz").endswith(ROWS)
    return jsonl_file(path, aside) if rows else text_file(path)


def interleave(parts: Sequence[tuple[Corpus, int]]) -> Corpus:
    """Mix corpora in fixed proportion: weight w means w items of every sum-of-weights. Finite parts repeat in epochs.

    Item i of the mixture has its own item of its part, so endless parts never repeat. The mixture is endless.
    """
    if not parts or any(weight < 1 for _, weight in parts):
        raise ConfigError(
            "interleave: expected one corpus or more, each with an integer weight of 1 or more",
            code="E_INTERLEAVE_WEIGHTS",
        )
    turns = [(number, rank) for number, (_, weight) in enumerate(parts) for rank in range(weight)]

    def get_item(index: int) -> Item:
        period, place = divmod(index, len(turns))
        order = list(range(len(turns)))
        rng_of("interleave", period).shuffle(order)
        number, rank = turns[order[place]]
        corpus, weight = parts[number]
        own = period * weight + rank
        return corpus.get(own) if corpus.size is None else corpus.get(epoch_index(corpus.size, own, number))

    return Corpus(name="+".join(f"{weight}×{corpus.name}" for corpus, weight in parts), size=None, get=get_item)


def split_corpus(corpus: Corpus, validation: int, seed: int = 0) -> tuple[Corpus, Corpus]:
    """(training, validation) without an item in common; ``validation`` items are held out.

    Of an endless corpus the first ones are held out, of a finite one a draw by ``seed``, at most a tenth of its items
    and at least one. Raises DataError when the corpus has one item alone.
    """
    if corpus.size is None:
        later = procedural_corpus(corpus.name, lambda index: corpus.get(index + validation))
        return later, Corpus(name=f"{corpus.name} (validation)", size=validation, get=corpus.get)
    validation = min(validation, max(1, corpus.size // 10))
    if corpus.size <= validation:
        raise DataError(
            f"{corpus.name}: one item alone, which would have to be held out; bring at least two",
            code="E_CORPUS_OF_ONE_ITEM",
        )
    order = list(range(corpus.size))
    rng_of("split", seed).shuffle(order)
    held_places = sorted(order[:validation])
    kept_places = sorted(order[validation:])
    return (
        Corpus(name=corpus.name, size=len(kept_places), get=lambda index: corpus.get(kept_places[index])),
        Corpus(
            name=f"{corpus.name} (validation)", size=len(held_places), get=lambda index: corpus.get(held_places[index])
        ),
    )


def repeat_epochs(corpus: Corpus, seed: int) -> Callable[[int], Item]:
    """index in [0, ∞) → item: a finite corpus is read again and again, in another order each time."""
    if corpus.size is None:
        return corpus.get
    size = corpus.size
    return lambda index: corpus.get(epoch_index(size, index, seed))


def epoch_index(size: int, index: int, seed: int) -> int:
    """Where the ``index``-th item of repeated, shuffled reading stands in a corpus of ``size`` items."""
    epoch, place = divmod(index, size)
    return _epoch_order(size, epoch, seed)[place]


@lru_cache(maxsize=8)
def _epoch_order(size: int, epoch: int, seed: int) -> list[int]:
    order = list(range(size))
    rng_of("epoch", seed, epoch).shuffle(order)
    return order


def _read_paragraphs(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a file, which stand between empty lines, without white space at their ends."""
    lines: list[str] = []  # lines of this paragraph
    size = 0  # their bytes
    at = 0  # bytes in front of this line
    try:
        for line in lines_of_file(path):
            size += len(line)
            if size > MOST_ROW:
                raise DataError(
                    f"{path}: a paragraph of more than {MOST_ROW} bytes; part it by empty lines", code="E_ROW_TOO_LARGE"
                )
            text = (line.removeprefix(BYTE_ORDER_MARK) if at == 0 else line).decode("utf-8")
            at += len(line)
            for each in io.StringIO(text, newline=None):  # \r and \r\n are line breaks too
                if each != "\n":
                    lines.append(each)
                    continue
                yield "".join(lines).strip()
                lines = []
                size = 0
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {at + error.start}; save the file as UTF-8", code="E_TEXT_ENCODING"
        ) from error
    yield "".join(lines).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """A row of a file."""

    item: Item
    unread: tuple[str, ...]  # columns that have a value and were not read


DIALOGUES = ("messages", "conversations")  # columns of whole conversations
EXPECTED = "'text', 'messages', 'conversations', 'prompt' and 'completion', or 'instruction' and 'output'"


def parse_text_row(fields: dict[str, Any], place: str) -> TextRow:
    """A row in any of the layouts above. Raises DataError that begins with ``place``."""
    names = [name for name in ("text", *DIALOGUES) if fields.get(name) is not None]
    if len(names) > 1:
        raise DataError(
            f"{place}: both {names[0]!r} and {names[1]!r}; leave out the column that is not to be learned",
            code="E_TEXT_AND_MESSAGES",
        )
    replies = [name for name in REPLIES if fields.get(name) is not None]
    empty = [name for name in ("text", *DIALOGUES) if name in fields]  # whose reader says what it expected
    column = next(iter([*names, *replies, *empty]), None)
    if column == "text":
        return _running_text(fields, place)
    if column in DIALOGUES:
        return _dialogue(fields, column, place)
    if column is not None:
        return _prompt_and_reply(fields, place)
    there = ", ".join(sorted(fields)) or "none"
    raise DataError(
        f"{place}: no column of a text or a conversation; there are: {there}; expected {EXPECTED}; questions with "
        "answers are learned by `cotrain teach solver`",
        code="E_FIELD_MISSING",
    )


def _running_text(fields: dict[str, Any], place: str) -> TextRow:
    where = f"{place}, column 'text'"
    check_lost_parts(fields, ["text"], place, is_conversation=True)
    check_row_marks(fields, place)
    text = fields["text"]
    if not isinstance(text, str) or not text:
        raise DataError(f"{where}: expected a non-empty string, found {text!r:.40}", code="E_FIELD_BLANK")
    return TextRow(item=whole_text(text, where), unread=unread_columns(fields, ["text"]))


def _dialogue(fields: dict[str, Any], column: str, place: str) -> TextRow:
    """A conversation of which every reply is learned."""
    where = f"{place}, column {column!r}"
    check_lost_parts(fields, [column], place, is_conversation=True)
    check_row_marks(fields, place)
    turns = fields[column]
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{where}: expected a non-empty list, found {turns!r:.40}", code="E_MESSAGES_SHAPE")

    messages = [_message_of(turn, f"{place}, column '{column}[{number}]") for number, turn in enumerate(turns)]
    if messages[0]["role"] == "assistant":
        raise DataError(
            f"{where}: the first message is the assistant's; expected what it answers", code="E_MESSAGES_BEGIN"
        )
    if messages[-1]["role"] != "assistant":
        raise DataError(
            f"{where}: the last message must be the assistant's, it is what is learned", code="E_MESSAGES_END"
        )
    item = _behind_system_text(messages, system_text(fields, place), place)
    unread = tuple(name for name in unread_columns(fields, [column]) if not is_system(name))
    return TextRow(item=item, unread=unread)


def _message_of(turn: Any, where: str) -> dict[str, str]:
    """A message as ``{"role", "content"}``, or as ``{"from", "value"}``. ``where`` lacks its closing quote."""
    if not isinstance(turn, dict):
        raise DataError(
            f"{where}': expected an object with 'role' and 'content', found {turn!r:.40}", code="E_MESSAGES_SHAPE"
        )
    is_shared = "role" not in turn and "from" in turn
    name_column, text_column = ("from", "value") if is_shared else ("role", "content")
    name = turn.get(name_column)
    role = SPEAKERS.get(name) if isinstance(name, str) else None
    if role is None:
        names = ", ".join(SPEAKERS if is_shared else ROLES)
        raise DataError(f"{where}.{name_column}': expected one of {names}, found {name!r:.40}", code="E_MESSAGES_SHAPE")
    text = turn.get(text_column)
    if not isinstance(text, str):
        raise DataError(f"{where}.{text_column}': expected a string, found {text!r:.40}", code="E_MESSAGES_SHAPE")
    if role == "assistant":
        check_message_marks(turn, f"{where}'")
    whole_text(text, f"{where}.{text_column}'")
    return {"role": role, "content": text}


def _prompt_and_reply(fields: dict[str, Any], place: str) -> TextRow:
    """One reply, which is learned, behind its prompt, which is not."""
    row = read_chat({name: value for name, value in fields.items() if value is not None}, place)
    messages = [{"role": message.role, "content": message.content} for message in row.messages]
    if any(message["role"] == "assistant" for message in messages):
        raise DataError(
            f"{place}: the prompt has replies of the assistant, which would be learned too; give the whole "
            "conversation in 'messages'",
            code="E_REPLIES_IN_PROMPT",
        )
    if not messages:
        messages = [{"role": "user", "content": row.question}]
    return TextRow(item=[*messages, {"role": "assistant", "content": row.solution or ""}], unread=row.unread)


def _behind_system_text(messages: list[dict[str, str]], system: str, place: str) -> Item:
    """The messages behind the text of a column ``system``. Raises DataError where they have another one."""
    first = {"role": "system", "content": system}
    if not system or messages[0] == first:
        return messages
    if messages[0]["role"] == "system":
        raise DataError(
            f"{place}: two system texts, in a column and in the messages; keep one of them", code="E_TWO_SYSTEM_TEXTS"
        )
    return [first, *messages]


def practice_of(source: WordProblems, seed: int, stage: str, rise: int = 0) -> list[tuple[Corpus, int]]:
    """Conversations that solve word problems and that review solutions, in equal numbers. ``stage`` names the draw, and
    "mend" reviews other errors than the rest; ``rise``: problems of a kind after which one step more comes, 0 for all
    lengths from the start."""
    errors = SWAPPED if stage == "mend" else OF_SKILL
    solve = procedural_corpus("solve", lambda i: solve_practice(source, stage, seed, i, rise))
    check = procedural_corpus("check", lambda i: check_practice(source, stage, seed, i, rise, errors))
    return [(solve, 1), (check, 1)]
