"""Thoughts that a prompt has begun, or switched off: what a reply that is given has to go on from.

Models that think are asked in one of three ways. Some prompts leave the thought to the model. Some end with its opening
(``<think>``, DeepSeek-R1 and Qwen3-Thinking), so that the model begins inside of it. Some hold an empty thought
(``<think></think>``, Qwen3 with thoughts switched off), so that it has none. Reading thoughts back is the work of
``parsers.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TAGS = {  # what opens a thought, and what closes it
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "[THINK]": "[/THINK]",
}
_OPENINGS = "|".join(map(re.escape, TAGS))
_OPENED_AT_END = re.compile(rf"({_OPENINGS})(\s*)\Z")
_EMPTY_AT_END = re.compile(
    "|".join(rf"{re.escape(opens)}\s*{re.escape(closes)}\s*\Z" for opens, closes in TAGS.items())
)
_BEGINS = re.compile(rf"\s*(?:{_OPENINGS})")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenThought:
    """A thought that a prompt has begun."""

    opens: str  # the tag, such as "<think>"
    blank: str  # the white space that the prompt has behind it
    closes: str  # the tag that ends it


def open_thought_of(prompt: str) -> OpenThought | None:
    """The thought that a prompt ends with; None where it does not."""
    found = _OPENED_AT_END.search(prompt)
    if found is None:
        return None
    opens, blank = found.groups()
    return OpenThought(opens=opens, blank=blank, closes=TAGS[opens])


def empty_thought_at_end(prompt: str) -> str:
    """The empty thought that a prompt ends with, blanks included; "" where it does not."""
    found = _EMPTY_AT_END.search(prompt)
    return "" if found is None else found.group()


def begins_with_thought(reply: str) -> bool:
    """Whether a reply opens a thought before it says anything else."""
    return _BEGINS.match(reply) is not None
