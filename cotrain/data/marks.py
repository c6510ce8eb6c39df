"""Marks of replies that are not to be learned, and fields of a reply that a conversation of texts would lose.

Trainers spell them in many ways: OpenAI and Tinker have ``weight``, axolotl ``training`` and ``train_detail``, ms-swift
``loss``, others ``train_on``, ``loss_mask``, ``mask``. TRL's unpaired preferences have ``label``, and data of sampled
solutions ``is_correct``. Whatever reads replies to learn them asks here, so that none learns what its file has marked.
A marked row is refused and not left out: how much of a conversation goes with a mark is for its owner to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotrain.core.errors import DataError

LOST = (  # what a reply says besides its content
    *("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "thoughts", "thought"),
    *("train_detail", "train_details"),
)
SWITCHES = (  # keys that are 1 or true where a reply is learned
    *("weight", "weights", "train", "training", "trainable", "train_on", "train_on_turn", "learn"),
    *("loss", "loss_mask", "loss_weight", "loss_scale", "loss_on"),
)
MASKS = ("mask", "masked", "ignore", "skip")  # keys that are 0 or false where a reply is learned
REPLIES = ("messages", "conversations", "completion")  # columns with a reply
VERDICTS = ("label", "is_correct", "correct")  # keys of a whole row, which are 1 or true where its reply is wanted
_NOTHING: tuple[Any, ...] = (None, "", [], {})
_YES = ("true", "1", "1.0", "yes")
_NO = ("false", "0", "0.0", "no")


def check_message_marks(message: Mapping[str, Any], where: str, *, is_trained_on: bool = True) -> None:
    """Raise DataError that begins with ``where`` for a message of the assistant that says more than its content, or,
    where it ``is_trained_on``, is marked."""
    for name in LOST:
        if message.get(name) not in _NOTHING:
            raise DataError(
                f"{where}, {name!r}: {message[name]!r:.40} would be lost; a reply is learned as its 'content' says it; "
                "write it there, or part the row",
                code="E_REPLY_FIELD_LOST",
            )
    if not is_trained_on:
        return
    for name in (*SWITCHES, *MASKS):
        value = message.get(name)
        if value in _NOTHING or (_is_no(value) if name in MASKS else _is_yes(value)):
            continue
        raise DataError(
            f"{where}, {name!r}: {value!r:.40} would be lost: it marks a reply that is not to be learned as the others "
            "are; leave the row out, or end the conversation before this message",
            code="E_REPLY_FIELD_LOST",
        )


def check_row_marks(row: Mapping[str, Any], where: str) -> None:
    """Raise DataError that begins with ``where`` for a row that is marked as a whole, such as an unwanted completion
    of unpaired preferences. A ``label`` of 0 says so of a reply alone; of a problem it may be an answer."""
    for name in _marks_of(row):
        if _has_no(row.get(name)):
            raise _unwanted_marks(name, row[name], where)
    for name in MASKS:
        if _has_yes(row.get(name)):
            raise _unwanted_marks(name, row[name], where)


def _marks_of(row: Mapping[str, Any]) -> list[str]:
    """The columns in which a no marks a row."""
    if "chosen" in row:  # a label says which of the two is better
        return [*SWITCHES]
    if any(name in row for name in REPLIES):
        return [*VERDICTS, *SWITCHES]
    return [name for name in (*VERDICTS, *SWITCHES) if name != "label" or not _is_count(row.get(name))]


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unwanted_marks(name: str, value: Any, where: str) -> DataError:
    return DataError(
        f"{where}, field {name!r}: {value!r:.40} marks a reply that is not to be learned; leave such rows out",
        code="E_REPLY_MARK",
    )


def _is_yes(value: Any) -> bool:
    return value.strip().casefold() in _YES if isinstance(value, str) else _is_number(value) and value == 1


def _is_no(value: Any) -> bool:
    return value.strip().casefold() in _NO if isinstance(value, str) else _is_number(value) and value == 0


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _has_no(value: Any) -> bool:
    """Whether a value, or one of a list, says no."""
    return any(map(_is_no, value)) if isinstance(value, list) else _is_no(value)


def _has_yes(value: Any) -> bool:
    return any(map(_is_yes, value)) if isinstance(value, list) else _is_yes(value)
