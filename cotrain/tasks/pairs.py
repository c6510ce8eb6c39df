r"""Conversations from a file: a prompt and the reply that is wanted, and of preferences the one that is not.

::

    {"prompt": "…", "chosen": "…", "rejected": "…"}                            texts
    {"prompt": [{role, content}, …], "chosen": [{…}], "rejected": [{…}]}       messages, as TRL has them
    {"chosen": [{…}, …, {…}], "rejected": [{…}, …, {…}]}                       whole conversations: what both begin with
                                                                               is the prompt (TRL, UltraFeedback)
    {"chosen": "\n\nHuman: …\n\nAssistant: …", "rejected": "\n\nHuman: …"}     the same in words (HH-RLHF)
    {"messages": [{…}, …, {role: "assistant", …}]}                             ``Chats``: the last reply is the wanted
                                                                               one; so in ``conversations`` (ShareGPT)
    {"prompt": …, "completion": …}                                             the same in two parts (TRL)

A prompt of one text is a problem, which a role asks as it asks any other; messages are sent as they stand. Beside whole
conversations a ``prompt`` of text says nothing new and is not read, nor are scores. Files, splits and digests are those
of ``jsonl.py``: a prompt lies in one split, whatever replies it has. A pair of two equal replies prefers none; such are
left out and counted.

Left out: several replies to one prompt after which conversations go on, tools, images, rows without a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError
from cotrain.core.types import Grade, StepVerdicts, Task
from cotrain.tasks.jsonl import JsonlTasks
from cotrain.tasks.marks import refuse_marked_message, refuse_marked_row
from cotrain.tasks.reading import RowReader
from cotrain.tasks.rows import SPEAKERS, Row, kind_of, text_of, whole_text
from cotrain.text.chat_template import Message

LAYOUT = "'prompt', 'chosen' and 'rejected', as texts or as lists of messages"
CHATS = "'messages' or 'conversations' that end with the assistant's, or 'prompt' and 'completion'"
PROMPTS = ("prompt", "question", "instruction")
_SPOKEN = re.compile(r"\n\n(Human|Assistant):[ \t]*")
_WRITTEN_LIST = re.compile(r"\s*\[\s*\{\s*['\"](role|content|from|value)['\"]")
Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTask(Task):
    """A task whose ``solution`` is the reply that is wanted."""

    messages: Messages = ()  # what is said before it; (): the prompt alone, asked as the role asks
    rejected: str | None = None  # the reply that is not wanted


def messages_of(task: Task) -> list[Message]:
    """What is said before the reply; [] where a role asks for it in its own words."""
    return list(task.messages) if isinstance(task, ChatTask) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow(Row):
    """A row; ``question`` is all of the prompt, and ``solution`` the reply."""

    messages: Messages
    rejected: str | None

    @property
    def content(self) -> list[Any]:
        said = [(message.role, message.content) for message in self.messages]
        return [self.question, self.solution, self.rejected, said]


class Chats(JsonlTasks):
    """A task source over conversations, of which the last reply is what is wanted."""

    kind, learned_by = "chats", "spin"

    def __init__(self, path: str | Path, name: str = "", digest: str | None = None, lenient: bool = False) -> None:
        super().__init__(path, name=name or self.kind, digest=digest, lenient=lenient)

    @property
    def notes(self) -> list[str]:
        """What is to be said of how the file was read."""
        return []

    def describe(self) -> dict[str, Any]:
        kept = super().describe()["settings"]
        return {"kind": self.kind, "settings": {n: kept[n] for n in ("path", "name", "digest", "lenient") if n in kept}}

    def grade(self, task: Task, text: str) -> Grade:
        raise ConfigError(
            f"tasks {self.name!r}: {self.path} holds replies and no answers by which others could be graded; learn "
            f"from it by {self.learned_by}, or give this recipe questions with answers"
        )

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None

    def _reader(self) -> RowReader:
        return RowReader(read_chat, CHATS)

    def _task_of(self, row: Row, task_id: str) -> Task:
        assert isinstance(row, ChatRow)
        return ChatTask(
            id=task_id,
            prompt=row.question,
            answer=None,
            solution=row.solution,
            difficulty=0.0,
            grader=self,
            messages=row.messages,
            rejected=row.rejected,
        )


class Pairs(Chats):
    """A task source over preferences. ``equal``: the rows whose two replies are one."""

    kind, learned_by = "pairs", "dpo or reward"

    def __init__(self, path: str | Path, name: str = "", digest: str | None = None, lenient: bool = False) -> None:
        self.equal: list[str] = []
        super().__init__(path, name=name, digest=digest, lenient=lenient)

    @property
    def notes(self) -> list[str]:
        """How many pairs were left out, and why."""
        if not self.equal:
            return []
        count, verb = len(self.equal), "pair is" if len(self.equal) == 1 else "pairs are"
        return [f"note: {count} {verb} left out, as chosen and rejected are equal; the first: {self.equal[0]}"]

    def _reader(self) -> RowReader:
        return RowReader(self._read_pair, LAYOUT)

    def _read_pair(self, row: dict[str, Any], where: str) -> Row:
        pair = read_pair(row, where)
        if pair.solution == pair.rejected:
            self.equal.append(where)
        return pair

    def _arrange_splits(self, parts: Mapping[str, list[Row]]) -> dict[str, tuple[Row, ...]]:
        unequal = {name: [r for r in rows if r.content[1] != r.content[2]] for name, rows in parts.items()}
        if self.equal and not any(unequal.values()):
            raise DataError(
                f"{self.path}: in all {len(self.equal)} rows chosen and rejected are equal; nothing to learn"
            )
        return super()._arrange_splits(unequal)


def read_chat(row: dict[str, Any], where: str) -> ChatRow:
    """One conversation, in any of the layouts above. Raises DataError that begins with ``where``."""
    name = next((name for name in ("messages", "conversations", "completion") if name in row), None)
    if name is None:
        raise DataError(f"{where}: fields {', '.join(map(repr, row)) or 'none'}; expected {CHATS}")
    refuse_marked_row(row, where)
    _refuse_marked_reply(row[name], f"{where}, field {name!r}")
    said = _parse_text(row[name], f"{where}, field {name!r}")
    prompt = _prompt_of(row, where) if name == "completion" else None
    if isinstance(said, str):
        if name != "completion":
            raise DataError(f"{where}, field {name!r}: found a text; expected a list of messages")
        return _chat_row(row, prompt, (), (said, None), where)
    return _chat_row(row, prompt, said[:-1], (_one_reply(said[-1:], f"{where}, field {name!r}"), None), where)


def read_pair(row: dict[str, Any], where: str) -> ChatRow:
    """One preference, in any of the layouts above. Raises DataError that begins with ``where``."""
    refuse_marked_row(row, where)
    replies: dict[str, str | Messages] = {}
    for name in ("chosen", "rejected"):
        if name not in row:
            near = get_close_matches(name, row, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            there = ", ".join(map(repr, row)) or "none"
            raise DataError(f"{where}: no field {name!r}{hint} (there are: {there}); expected {LAYOUT}")
        _refuse_marked_reply(row[name], f"{where}, field {name!r}")
        replies[name] = _parse_text(row[name], f"{where}, field {name!r}")
    chosen, rejected = replies.values()
    prompt = _prompt_of(row, where)
    if isinstance(chosen, str) and isinstance(rejected, str):
        return _chat_row(row, prompt, (), (chosen, rejected), where)
    if isinstance(chosen, str) or isinstance(rejected, str):
        kinds = " and ".join("a text" if isinstance(one, str) else "messages" for one in (chosen, rejected))
        raise DataError(f"{where}: chosen and rejected are {kinds}; expected two of one kind")
    if isinstance(prompt, tuple) and chosen[: len(prompt)] == prompt == rejected[: len(prompt)]:
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    before = list(zip(chosen[:-1], rejected[:-1], strict=False))
    common = next((i for i, (one, other) in enumerate(before) if one != other), len(before))
    wanted = _one_reply(chosen[common:], f"{where}, field 'chosen'")
    unwanted = _one_reply(rejected[common:], f"{where}, field 'rejected'")
    return _chat_row(row, prompt, chosen[:common], (wanted, unwanted), where)


def _prompt_of(row: Mapping[str, Any], where: str) -> str | Messages | None:
    name = next((name for name in PROMPTS if name in row), None)
    if name is None:
        return None
    said = _parse_text(row[name], f"{where}, field {name!r}")
    if isinstance(said, str):
        return text_of(said, f"{where}, field {name!r}", numbers=False)
    return said[:-1] if said[-1] == Message("assistant", "") else said  # where "Assistant:" waits for the reply


def _parse_text(value: Any, where: str) -> str | Messages:
    """A text, or messages in any of their forms."""
    if isinstance(value, str):
        whole_text(value, where)
        if _WRITTEN_LIST.match(value):
            raise DataError(f"{where}: a list of messages written as text; save the data as JSON lines or parquet")
        if not _SPOKEN.match(value):
            return value
        _, *parts = _SPOKEN.split(value)
        who = {"Human": "user", "Assistant": "assistant"}
        return tuple(Message(who[a], b.strip()) for a, b in zip(parts[::2], parts[1::2], strict=True))
    said = []
    for message in [value] if isinstance(value, dict) else value if isinstance(value, list) and value else [None]:
        role = SPEAKERS.get(str(message.get("role", message.get("from")))) if isinstance(message, dict) else None
        text = message.get("content", message.get("value")) if isinstance(message, dict) else None
        if role is None or not isinstance(text, str):
            found = kind_of(value) if message is None else f"{message!r:.60}"
            raise DataError(
                f"{where}: found {found}; expected a text, or a list of {{role, content}} of system, user and assistant"
            )
        if isinstance(message, dict) and role == "assistant":
            refuse_marked_message(message, where, learned=False)
        said.append(Message(role, whole_text(text, where)))
    return tuple(said)


def _refuse_marked_reply(value: Any, where: str) -> None:
    """Raise DataError where the last of these messages, which is the one that is learned, is marked; the earlier ones
    are read, and never learned."""
    last = value[-1] if isinstance(value, list) and value else value
    if isinstance(last, dict):
        refuse_marked_message(last, where)


def _one_reply(said: Messages, where: str) -> str:
    if len(said) != 1 or said[0].role != "assistant":
        found = ", ".join(message.role for message in said) or "nothing"
        raise DataError(f"{where}: behind the prompt stands {found}; expected one message of the assistant")
    return said[0].content


def _chat_row(
    row: Mapping[str, Any], prompt: str | Messages | None, more: Messages, replies: tuple[str, str | None], where: str
) -> ChatRow:
    """``more``: what is said behind ``prompt``, or, where that is a text, in its place."""
    messages = (*(prompt if isinstance(prompt, tuple) else ()), *more)
    if not messages and isinstance(prompt, str) and isinstance(system := row.get("system"), str) and system.strip():
        messages = (Message("system", system), Message("user", prompt))
    if not messages and not isinstance(prompt, str):
        raise DataError(f"{where}: no prompt; expected it in the field 'prompt', or at the beginning of both replies")
    if messages and messages[-1].role != "user":
        raise DataError(f"{where}: the prompt ends with a message of the {messages[-1].role}; expected one of the user")
    question = str(prompt) if not messages else messages[0].content if len(messages) == 1 else _written_out(messages)
    return ChatRow(question=question, answer="", solution=replies[0], messages=messages, rejected=replies[1])


def _written_out(messages: Sequence[Message]) -> str:
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)
