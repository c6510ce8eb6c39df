"""Search as a plain async function, which a method awaits: a library of documents in a file, or anything else.

    library = Library("facts.jsonl")

    async def search(query: str) -> list[str]:
        return library.search(query)

``--search my_file.py:search`` names it. What it raises, or gives that is no list of texts, is a failure with a reason.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.arguments import check_called_with
from cotrain.core.errors import ConfigError, DataError, install_extra
from cotrain.core.input_files import parse_json
from cotrain.core.user_code import INTERRUPTS
from cotrain.rollout.event_loop import awaiting_server

Search = Callable[[str], Awaitable[Sequence[str]]]  # what is searched for → documents, the best first


class Library:
    """Documents of a file, ranked by BM25 (Robertson and Zaragoza 2009) with ``bm25s``, the extra ``search``.

    A ``.jsonl`` file has a document in each row, under ``text`` or ``contents``, a ``title`` before it if there is one;
    any other file has one in each line. Raises DataError for a file without documents or a row without a text.
    """

    def __init__(self, path: str | Path) -> None:
        self.documents = _read_documents(Path(path))
        self._index: Any = None

    def search(self, query: str, most: int = 5) -> list[str]:
        """The documents that share a word with the query, the best first, ``most`` of them. Raises ConfigError where
        ``bm25s`` is missing."""
        try:
            import bm25s
        except ImportError as error:
            raise ConfigError(
                f"a library is searched with bm25s; install it: {install_extra('search')}",
                code="E_SEARCH_NOT_INSTALLED",
            ) from error
        if self._index is None:
            self._index = bm25s.BM25()
            self._index.index(bm25s.tokenize(self.documents, stopwords=None, show_progress=False), show_progress=False)
        words = bm25s.tokenize([query], stopwords=None, show_progress=False, return_ids=False)
        if not words[0]:
            return []
        found, scores = self._index.retrieve(words, k=min(most, len(self.documents)), show_progress=False)
        return [self.documents[i] for i, score in zip(found[0], scores[0], strict=True) if score > 0.0]


def _read_documents(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"library {path}: {error}; expected a file of documents in UTF-8", code="E_LIBRARY_UNREADABLE"
        ) from error
    documents = [line.strip() for line in lines]
    if path.suffix == ".jsonl":
        documents = [_document_of(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not any(documents):
        raise DataError(f"library {path}: no documents; expected one a line", code="E_DATA_EMPTY")
    return [document for document in documents if document]


def _document_of(line: str, where: str) -> str:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: {error}; expected a JSON object", code="E_LIBRARY_ROW") from error
    text = next((row[key] for key in ("text", "contents") if isinstance(row, dict) and row.get(key)), None)
    if not isinstance(text, str):
        raise DataError(f'{where}: no text; expected {{"text": …}} or {{"contents": …}}', code="E_LIBRARY_ROW")
    return " ".join([str(row["title"]), text] if row.get("title") else [text])


def check_search(search: Search | None, where: str) -> None:
    """Raise ConfigError for a search that cannot be awaited, and for one that does not take a query."""
    if search is None:
        return
    if not inspect.iscoroutinefunction(search):
        name = getattr(search, "__name__", search)
        raise ConfigError(
            f"search of {where}: {name!r} is no async function; expected `async def {name}(query)`",
            code="E_SEARCH_NOT_FUNCTION",
        )
    check_called_with(f"search of {where}", search, "query")


class AskFailed(Exception):
    """Why a function of the user's gave nothing that can be read: a short fixed phrase, a metric's key."""


async def ask_function(function: Callable[[str], Any], text: str, name: str, limit_s: float | None = None) -> Any:
    """Return the result of an async function of the user's for a text; the engine goes on meanwhile. Raises AskFailed
    for whatever it raises and, after ``limit_s``, "timeout", each behind the ``name``."""
    limit = asyncio.timeout(limit_s)
    try:
        with awaiting_server():
            async with limit:
                return await function(text)
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise AskFailed(f"{name}: {'timeout' if limit.expired() else type(error).__name__}") from error


async def ask_search(search: Search, query: str) -> tuple[str, ...]:
    """Return the texts that a search finds. Raises AskFailed."""
    found = await ask_function(search, query, "search")
    try:
        texts = tuple(found) if isinstance(found, Sequence) and not isinstance(found, str) else (None,)
    except INTERRUPTS:
        raise
    except BaseException as error:  # a user's object
        raise AskFailed(f"search: {type(error).__name__}") from error
    if not all(isinstance(text, str) for text in texts):
        raise AskFailed("search: no list of texts")
    return texts
