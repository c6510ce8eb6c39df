"""Columns of a row besides its question and its answer. None of them is passed over in silence.

::

    system, system_prompt              said in front of the question
    instruction next to input          one question of two parts, as Alpaca has them
    choices, context, images, tools …  refused by name, since the question cannot be understood without them
    all others                         counted, and told in one line: "columns not read: level, source (500 rows)"

A name counts in any spelling: ``System Prompt`` is ``system_prompt``, and ``option_b`` and ``image_1`` are an option
and an image. A column without a value (null, a blank text, an empty list) is as if it were not there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cotrain.core.errors import DataError
from cotrain.data.question_text import is_word_character

SYSTEM = ("system", "systemprompt", "systemmessage")
LETTERS = ("A", "B", "C")  # columns of choices, as in C-Eval
_NUMBER = r"(?:[a-j]|\d+)?"
_NEVER_TEXT = re.compile(rf"(?:tool|function|image|picture|photo|audio|video)s?{_NUMBER}(?:path|url|file|list)?")
_PART = re.compile(
    r"(?:(?:answer)?(?:choice|option)|context|passage|paragraph|article|document|background|story|premise|table|body"
    rf"|figure|diagram|instruction|input|history)s?{_NUMBER}(?:text|list)?"
)


def plain_spelling(name: str) -> str:
    """A column's name without capitals, spaces and strokes: "Ground Truth" and "ground_truth" are one."""
    return "".join(filter(is_word_character, str(name).casefold()))


def has_content(value: Any) -> bool:
    """Whether a cell says anything: not null, not blank, and not a list or an object of such cells."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, Mapping):
        return any(map(has_content, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_content, value))
    return value is not None


def is_system(name: str) -> bool:
    """Whether a column is called as those of system texts are."""
    return plain_spelling(name) in SYSTEM


def system_text(row: Mapping[str, Any], where: str) -> str:
    """The system text that a row has in a column of its own; "" for none. Raises DataError for what is no text, and
    for two that differ."""
    text = ""
    for name in filter(is_system, row):
        value = row[name]
        if not has_content(value):
            continue
        if not isinstance(value, str):
            raise DataError(
                f"{where}, field {name!r}: expected a text, which is said before the question", code="E_FIELD_NOT_TEXT"
            )
        if text and value != text:
            raise DataError(
                f"{where}, field {name!r}: a second system text, and another one; keep one of them",
                code="E_TWO_SYSTEM_TEXTS",
            )
        text = value
    return text


def check_lost_parts(
    row: Mapping[str, Any],
    read: Collection[str],
    where: str,
    *,
    is_conversation: bool = False,
    can_name_columns: bool = False,
) -> None:
    """Raise DataError for a column that belongs to the question and is not among those ``read``, of which the first
    holds the question.

    Args:
        is_conversation: the question is a conversation, which says all but what no message can hold: tools, images,
            sounds.
        can_name_columns: the command has ``--question-column``.
    """
    for name in unread_columns(row, read):
        spelled = plain_spelling(name)
        if _NEVER_TEXT.fullmatch(spelled):
            raise DataError(
                f"{where}, field {name!r}: what is said may depend on it, and it is not asked; leave out such rows, or "
                "the column where it says nothing",
                code="E_COLUMN_NOT_ASKED",
            )
        if is_conversation:
            continue
        if _PART.fullmatch(spelled) or _is_lettered_choice(row, name):
            advice = _advice(row, name, next(iter(read), "question"), can_name_columns)
            raise DataError(
                f"{where}, field {name!r}: the question may need it, and it is not asked; {advice}",
                code="E_COLUMN_NOT_ASKED",
            )


def _is_lettered_choice(row: Mapping[str, Any], name: str) -> bool:
    return name in LETTERS and all(letter in row for letter in LETTERS)


def _advice(row: Mapping[str, Any], name: str, question: str, can_name_columns: bool) -> str:
    """Advise what to do about a part of the question that is not read."""
    if not can_name_columns:
        return f"write it into {question!r}, or leave out the column where it says nothing"
    alone = f"or say that {question!r} is all with --question-column {question!r}"
    if isinstance(row[name], str) and not _is_lettered_choice(row, name):
        return f"ask both with --question-column {f'{name}+{question}'!r}, {alone}"
    return f"write it into {question!r}, {alone}"


def unread_columns(row: Mapping[str, Any], read: Collection[str]) -> tuple[str, ...]:
    """The columns of a row that have a value and are not among those ``read``. Of an object of which one field is
    read, as ``reward_model.ground_truth`` is, the others."""
    unread: list[str] = []
    for name, value in row.items():
        if name in read or not has_content(value):
            continue
        inside = {path.removeprefix(f"{name}.") for path in read if path.startswith(f"{name}.")}
        if inside and isinstance(value, Mapping):
            unread += [f"{name}.{field}" for field in value if field not in inside and has_content(value[field])]
        else:
            unread.append(name)
    return tuple(unread)


def count_columns(unread: Iterable[Iterable[str]]) -> dict[str, int]:
    """In how many rows each column is that is not read; ``unread``: the columns of each row."""
    return dict(Counter(name for names in unread for name in names))


def columns_note(counts: Mapping[str, int]) -> str | None:
    """``{"level": 500, "source": 500, "hint": 3}`` → "columns not read: level, source (500 rows), hint (3 rows)"; None
    where all are read."""
    names_by_count: dict[int, list[str]] = {}
    for name, count in counts.items():
        names_by_count.setdefault(count, []).append(name)
    parts = []
    for count, names in sorted(names_by_count.items(), reverse=True):
        rows = "row" if count == 1 else "rows"
        parts.append(f"{', '.join(names)} ({count} {rows})")
    return f"columns not read: {', '.join(parts)}" if parts else None
