r"""Conversations from a file: a prompt and the reply that is wanted, and of preferences the one that is not.

::

    {"prompt": "…", "chosen": "…", "rejected": "…"}                            texts
    {"prompt": [{role, content}, …], "chosen": [{…}], "rejected": [{…}]}       messages, as TRL has them; the
                                                                               prompt in ``conversations`` too
    {"chosen": [{…}, …, {…}], "rejected": [{…}, …, {…}]}                       whole conversations: what both begin with
                                                                               is the prompt (TRL, UltraFeedback)
    {"chosen": "\n\nHuman: …\n\nAssistant: …", "rejected": "\n\nHuman: …"}     the same in words (HH-RLHF)
    {"messages": [{…}, …, {role: "assistant", …}]}                             ``Chats``: the last reply is the wanted
                                                                               one; so in ``conversations`` (ShareGPT)
    {"prompt": …, "completion": …}                                             the same in two parts (TRL)
    {"instruction": …, "input": …, "output": …}                                as instruction data have it (Alpaca); so
                                                                               with ``response``

A prompt of one text is a problem, which a role asks as it asks any other; messages are sent as they stand. An ``input``
next to an ``instruction`` is the second half of the question (Alpaca), and a text in ``system`` the first message. A
prompt that the replies repeat is asked once. Tools, images and other columns that the question needs are refused, those
that nobody reads counted (``unread_columns.py``). Files, splits and digests are those of ``files.py``: a prompt lies in
one split, whatever replies it has. A pair of two equal replies prefers none; such are left out and counted.

Left out: several replies to one prompt after which conversations go on, tools, images, rows without a prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, DataError, RowError
from cotrain.core.nearest_names import nearest_name
from cotrain.core.types import Grade, StepVerdicts, Task
from cotrain.data.columns import SPEAKERS, Row
from cotrain.data.files import JsonlTasks
from cotrain.data.malformed_rows import SHOWN, RefusedRow
from cotrain.data.marks import check_message_marks, check_row_marks
from cotrain.data.read_rows import RowReader
from cotrain.data.row_files import kind_of, text_of, whole_text
from cotrain.data.unread_columns import (
    check_lost_parts,
    columns_note,
    count_columns,
    has_content,
    is_system,
    system_text,
    unread_columns,
)
from cotrain.prompts.chat_template import Message

LAYOUT = "'prompt', 'chosen' and 'rejected', as texts or as lists of messages"
CHATS = (
    "'messages' or 'conversations' that end with the assistant's, 'prompt' and 'completion', or 'instruction' and "
    "'output'"
)
REPLIES = ("completion", "output", "response")  # columns of a reply that is apart from its prompt
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
    """The messages before the reply; [] where a role asks for it in its own words."""
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

    kind = "chats"
    learned_by = "spin"
    has_replies = True  # its tasks have replies, which a model's chat template has to be able to write

    def __init__(self, path: str | Path, name: str = "", digest: str | None = None, lenient: bool = False) -> None:
        super().__init__(path, name=name or self.kind, digest=digest, lenient=lenient)

    @property
    def notes(self) -> list[str]:
        """The notes that are printed as a run begins: the files and the columns that are not read."""
        unread = columns_note(count_columns(row.unread for rows in self._rows.values() for row in rows))
        notes = [*self._file_notes(), *([unread] if unread else [])]
        return [f"note: {self.path}: {note}" for note in notes]

    def set_aside(self, reasons: Mapping[tuple[str, int], str]) -> None:
        """Leave these tasks, by split and index, out and into the quarantine. Raises DataError for the first of them
        where the file is not read leniently, and where nothing or less than half is left."""
        if not reasons:
            return
        refused = [self._set_aside_reply(split, index, reason) for (split, index), reason in reasons.items()]
        if not self._lenient:
            first = refused[0]
            raise RowError(f"{first.where}: {first.reason}", code=first.code)
        for name, rows in self._rows.items():
            self._rows[name] = tuple(row for index, row in enumerate(rows) if (name, index) not in reasons)
        self.quarantine.refused += refused
        self.quarantine.read -= len(refused)
        self.quarantine.check_share(self.path)

    def _set_aside_reply(self, split: str, index: int, reason: str) -> RefusedRow:
        row = self._rows[split][index]
        assert isinstance(row, ChatRow)
        said = {"prompt": row.question, "chosen": row.solution, "rejected": row.rejected}
        text = json.dumps(said, ensure_ascii=False)[:SHOWN]
        where = f"{self.path}, task {index} of {split} ({row.question:.40})"
        return RefusedRow(where=where, reason=reason, row=text, code="E_PREFERENCE_REFUSED")

    def describe(self) -> dict[str, Any]:
        kept = super().describe()["settings"]
        return {"kind": self.kind, "settings": {n: kept[n] for n in ("path", "name", "digest", "lenient") if n in kept}}

    def grade(self, task: Task, text: str) -> Grade:
        raise ConfigError(
            f"tasks {self.name!r}: {self.path} holds replies and no answers by which others could be graded; learn "
            f"from it by {self.learned_by}, or give this recipe questions with answers",
            code="E_PREFERENCES_AS_TASKS",
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
            gold=None,
            solution=row.solution,
            difficulty=0.0,
            grader=self,
            messages=row.messages,
            rejected=row.rejected,
        )


class Pairs(Chats):
    """A task source over preferences. ``equal``: the rows whose two replies are one."""

    kind = "pairs"
    learned_by = "dpo or reward"

    def __init__(self, path: str | Path, name: str = "", digest: str | None = None, lenient: bool = False) -> None:
        self.equal: list[str] = []
        super().__init__(path, name=name, digest=digest, lenient=lenient)

    @property
    def notes(self) -> list[str]:
        """How many pairs were left out, and why; and the columns that were not read."""
        if not self.equal:
            return super().notes
        count = len(self.equal)
        verb = "pair is" if len(self.equal) == 1 else "pairs are"
        equal = f"note: {count} {verb} left out, as chosen and rejected are equal; the first: {self.equal[0]}"
        return [equal, *super().notes]

    def _reader(self) -> RowReader:
        return RowReader(self._read_pair, LAYOUT)

    def _read_pair(self, row: dict[str, Any], where: str) -> Row:
        pair = read_pair(row, where)
        if pair.solution == pair.rejected:
            self.equal.append(where)
        return pair

    def _arrange_splits(self, parts: Mapping[str, list[Row]]) -> dict[str, tuple[Row, ...]]:
        unequal = {}
        for name, rows in parts.items():
            unequal[name] = [row for row in rows if row.content[1] != row.content[2]]
        if self.equal and not any(unequal.values()):
            raise DataError(
                f"{self.path}: in all {len(self.equal)} rows chosen and rejected are equal; nothing to learn",
                code="E_PREFERENCES_ALL_EQUAL",
            )
        return super()._arrange_splits(unequal)


def read_chat(row: dict[str, Any], where: str) -> ChatRow:
    """One conversation, in any of the layouts above. Raises DataError that begins with ``where``."""
    name = next((name for name in ("messages", "conversations", *REPLIES) if name in row), None)
    if name is None:
        raise DataError(
            f"{where}: fields {', '.join(map(repr, row)) or 'none'}; expected {CHATS}", code="E_PREFERENCE_FIELDS"
        )
    check_row_marks(row, where)
    _check_reply_marks(row[name], f"{where}, field {name!r}")
    said = _parse_text(row[name], f"{where}, field {name!r}")
    stands_apart = name in REPLIES
    prompt = _prompt_of(row, where) if stands_apart else Prompt()
    if isinstance(said, str):
        if not stands_apart:
            raise DataError(
                f"{where}, field {name!r}: found a text; expected a list of messages", code="E_FIELD_NOT_MESSAGES"
            )
        return _chat_row(row, prompt, (), (said, None), [name], where)
    reply = _one_reply(said[-1:], f"{where}, field {name!r}")
    return _chat_row(row, prompt, said[:-1], (reply, None), [name], where)


def _count_common_messages(chosen: Messages, rejected: Messages, prompt: Prompt) -> int:
    """How many messages in front of the two replies are the conversation that both answer: those of the prompt where
    both repeat it, else the first ones in which they do not differ. The last message of each is always a reply."""
    prompt_messages = prompt.content if isinstance(prompt.content, tuple) else ()
    n_prompt = len(prompt_messages)
    if n_prompt and chosen[:n_prompt] == prompt_messages == rejected[:n_prompt]:
        return n_prompt
    count = 0
    for message, other in zip(chosen[:-1], rejected[:-1], strict=False):
        if message != other:
            break
        count += 1
    return count


def read_pair(row: dict[str, Any], where: str) -> ChatRow:
    """One preference, in any of the layouts above. Raises DataError that begins with ``where``."""
    check_row_marks(row, where)
    replies: dict[str, str | Messages] = {}
    for name in ("chosen", "rejected"):
        if name not in row:
            near = nearest_name(name, row)
            hint = f"; did you mean {near!r}?" if near else ""
            there = ", ".join(map(repr, row)) or "none"
            raise DataError(
                f"{where}: no field {name!r}{hint} (there are: {there}); expected {LAYOUT}", code="E_FIELD_MISSING"
            )
        _check_reply_marks(row[name], f"{where}, field {name!r}")
        replies[name] = _parse_text(row[name], f"{where}, field {name!r}")

    chosen, rejected = replies.values()
    prompt = _prompt_of(row, where, (*PROMPTS, "conversations"))
    if isinstance(chosen, str) and isinstance(rejected, str):
        return _chat_row(row, prompt, (), (chosen, rejected), [*replies], where)
    if isinstance(chosen, str) or isinstance(rejected, str):
        kinds = "a text and messages" if isinstance(chosen, str) else "messages and a text"
        raise DataError(
            f"{where}: chosen and rejected are {kinds}; expected two of one kind", code="E_PREFERENCE_KINDS_DIFFER"
        )
    common = _count_common_messages(chosen, rejected, prompt)
    wanted = _one_reply(chosen[common:], f"{where}, field 'chosen'")
    unwanted = _one_reply(rejected[common:], f"{where}, field 'rejected'")
    return _chat_row(row, prompt, chosen[:common], (wanted, unwanted), [*replies], where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a row has before the replies, in columns of its own."""

    content: str | Messages = ()  # (): nothing
    columns: tuple[str, ...] = ()  # that it was read from


def _prompt_of(row: Mapping[str, Any], where: str, names: Sequence[str] = PROMPTS) -> Prompt:
    name = next((name for name in names if name in row), None)
    if name is None:
        return Prompt()
    content = _parse_text(row[name], f"{where}, field {name!r}")
    if isinstance(content, str):
        content = text_of(content, f"{where}, field {name!r}", numbers=False)
        if name == "instruction" and has_content(row.get("input")):
            more = text_of(row["input"], f"{where}, field 'input'", numbers=False)
            return Prompt(content=f"{content}\n\n{more}", columns=(name, "input"))
        return Prompt(content=content, columns=(name,))
    if content[-1] == Message("assistant", ""):  # "Assistant:" waits for the reply
        content = content[:-1]
    return Prompt(content=content, columns=(name,))


def _parse_text(value: Any, where: str) -> str | Messages:
    """A text, or messages in any of their forms."""
    if isinstance(value, str):
        whole_text(value, where)
        if _WRITTEN_LIST.match(value):
            raise DataError(
                f"{where}: a list of messages written as text; save the data as JSON lines or parquet",
                code="E_MESSAGES_AS_TEXT",
            )
        if not _SPOKEN.match(value):
            return value
        _, *parts = _SPOKEN.split(value)
        who = {"Human": "user", "Assistant": "assistant"}
        return tuple(Message(who[a], b.strip()) for a, b in zip(parts[::2], parts[1::2], strict=True))

    entries: list[Any] = [None]
    if isinstance(value, dict):
        entries = [value]
    elif isinstance(value, list) and value:
        entries = value
    said = []
    for message in entries:
        role = None
        text = None
        if isinstance(message, dict):
            role = SPEAKERS.get(str(message.get("role", message.get("from"))))
            text = message.get("content", message.get("value"))
        if role is None or not isinstance(text, str):
            shown = kind_of(value) if message is None else f"{message!r:.60}"
            raise DataError(
                f"{where}: found {shown}; expected a text, or a list of {{role, content}} of system, user "
                "and assistant",
                code="E_FIELD_NOT_MESSAGES",
            )
        if isinstance(message, dict) and role == "assistant":
            check_message_marks(message, where, is_trained_on=False)
        said.append(Message(role, whole_text(text, where)))
    return tuple(said)


def _check_reply_marks(value: Any, where: str) -> None:
    """Raise DataError where the last of these messages, which is the one that is learned, is marked; the earlier ones
    are read, and never learned."""
    last = value[-1] if isinstance(value, list) and value else value
    if isinstance(last, dict):
        check_message_marks(last, where)


def _one_reply(messages: Messages, where: str) -> str:
    if len(messages) != 1 or messages[0].role != "assistant":
        roles = ", ".join(message.role for message in messages) or "nothing"
        raise DataError(
            f"{where}: behind the prompt stands {roles}; expected one message of the assistant",
            code="E_REPLY_NOT_ONE_MESSAGE",
        )
    return messages[0].content


def _chat_row(
    row: Mapping[str, Any],
    prompt: Prompt,
    reply_start: Messages,
    replies: tuple[str, str | None],
    reply_columns: Sequence[str],
    where: str,
) -> ChatRow:
    """A row of a prompt and of the messages with which both replies begin."""
    conversation = _conversation_before(prompt, reply_start, where)
    text = conversation if isinstance(conversation, str) else ""
    messages = () if isinstance(conversation, str) else conversation
    if not messages and not text:
        raise DataError(
            f"{where}: no prompt; expected it in the field 'prompt', or at the beginning of both replies",
            code="E_PREFERENCE_WITHOUT_PROMPT",
        )
    if messages and messages[-1].role != "user":
        raise DataError(
            f"{where}: the prompt ends with a message of the {messages[-1].role}; expected one of the user",
            code="E_PROMPT_END_NOT_USER",
        )

    if system := system_text(row, where):
        messages = _with_system_message(system, messages or (Message("user", text),), where)

    is_repeated = (
        isinstance(prompt.content, tuple) or conversation == prompt.content or _occurs_in(prompt.content, messages)
    )
    read = [*(prompt.columns if is_repeated else ()), *reply_columns]
    check_lost_parts(row, read, where, is_conversation=not isinstance(conversation, str))
    question = text
    if messages:
        question = messages[0].content if len(messages) == 1 else _written_out(messages)
    return ChatRow(
        question=question,
        answer="",
        solution=replies[0],
        messages=messages,
        rejected=replies[1],
        unread=tuple(name for name in unread_columns(row, read) if not is_system(name)),
    )


def _conversation_before(prompt: Prompt, reply_start: Messages, where: str) -> str | Messages:
    """The conversation before the replies: the prompt, and the messages with which the replies begin, each message
    once. Raises DataError where the one does not lead to the other."""
    if not reply_start:
        return prompt.content
    if isinstance(prompt.content, str):  # it says what the conversation says, or is not read
        return reply_start
    messages = prompt.content
    without_system = reply_start[1:] if reply_start[0].role == "system" else reply_start
    repeats_prompt = messages in (reply_start[: len(messages)], without_system[: len(messages)])
    if repeats_prompt:
        return reply_start
    # The most messages that end the prompt and begin the replies.
    shared = next((n for n in range(len(messages), 0, -1) if messages[-n:] == reply_start[:n]), 0)
    if not shared and messages and messages[-1].role == reply_start[0].role:
        raise DataError(
            f"{where}: the prompt ends with a message of the {messages[-1].role}, and the replies begin with another "
            "one; keep the whole conversation in one place",
            code="E_PROMPT_IN_TWO_PLACES",
        )
    if not shared and messages and reply_start[0].role == "system":
        raise DataError(
            f"{where}: a system message in the replies, behind the prompt; move it to the prompt's start",
            code="E_SYSTEM_IN_REPLY",
        )
    return (*messages, *reply_start[shared:])


def _with_system_message(system: str, messages: Messages, where: str) -> Messages:
    """The messages behind the text of a column ``system``; as they are where it is their own."""
    first = Message("system", system)
    if messages[0] == first:
        return messages
    if messages[0].role == "system":
        raise DataError(
            f"{where}: two system texts, in a column and in the messages; keep one of them", code="E_TWO_SYSTEM_TEXTS"
        )
    return (first, *messages)


def _occurs_in(text: str | Messages, messages: Messages) -> bool:
    """Whether one of the messages, or all of them written out, say this text."""
    return any(text == message.content for message in messages) or text == _written_out(messages)


def _written_out(messages: Sequence[Message]) -> str:
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)
