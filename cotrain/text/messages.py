"""Messages of a conversation, and how they are changed for a chat template that lacks a role.

Templates know some of these roles. ``environment`` is nobody's role: it speaks as a user. A template that never
mentions tools was not written for their messages, whatever it makes of them; there, and where it refuses them, what a
tool printed is a user message between the markers of ``TOOL_MARKERS``. A system message that is refused stands in front
of the first user message, and neighbours of one role become one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TOOL_MARKERS = ("<tool_response>\n", "\n</tool_response>")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # "system", "user", "assistant", "tool" or "environment"
    content: str


def plainer_versions(messages: Sequence[Message], *, knows_tools: bool) -> Iterator[list[Message]]:
    """The same conversation in ever plainer roles, for a template to take the first that it can."""
    spoken = [Message("user", m.content) if m.role == "environment" else m for m in messages]
    if knows_tools or all(m.role != "tool" for m in spoken):
        yield spoken
    plain = [Message("user", m.content.join(TOOL_MARKERS)) if m.role == "tool" else m for m in spoken]
    yield plain
    yield _fold_roles(plain)


def _fold_roles(messages: Sequence[Message]) -> list[Message]:
    """System messages go in front of the first user message; neighbours of one role become one message."""
    system = [m.content for m in messages if m.role == "system"]
    others = [m for m in messages if m.role != "system"]
    if system and all(m.role != "user" for m in others):
        others.insert(0, Message("user", "\n\n".join(system)))
        system = []
    folded: list[Message] = []
    for m in others:
        if m.role == "user" and system:
            m = Message("user", "\n\n".join([*system, m.content]))
            system = []
        if folded and folded[-1].role == m.role:
            m = Message(m.role, folded.pop().content + "\n\n" + m.content)
        folded.append(m)
    return folded
