"""Thoughts: the tags in which models write them, and what a reply that is given has to go on from where a prompt has
begun a thought, or switched it off. ``TAGS`` is the one list, for reading (``formats/solutions.py``) and for learning.

Models that think are asked in one of three ways. Some prompts leave the thought to the model. Some end with its opening
(``<think>``, DeepSeek-R1 and Qwen3-Thinking), so that the model begins inside of it. Some hold an empty thought
(``<think></think>``, Qwen3 with thoughts switched off) or the end of one alone (``</think>``, DeepSeek-V3.1), so that
it has none. gpt-oss writes channels: all in front of the final one is a thought.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FINAL_CHANNEL = "<|channel|>final<|message|>"  # from gpt-oss; it occurs without a thought in front of it, too
TAGS = {  # opening tag of a thought → closing tag
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<Thought>": "</Thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "<|channel|>analysis<|message|>": FINAL_CHANNEL,
}
TOKENS = frozenset((*TAGS, *TAGS.values(), "<|channel|>", "<|message|>"))  # control tokens of some models, yet text
_OPENINGS = "|".join(map(re.escape, TAGS))
_OPENED_AT_END = re.compile(rf"({_OPENINGS})(\s*)\Z")
_EMPTY_AT_END = re.compile(
    "|".join(rf"(?:{re.escape(opens)}\s*)?{re.escape(closes)}\s*\Z" for opens, closes in TAGS.items())
)
_CLOSING = re.compile("|".join(map(re.escape, TAGS.values())))
_CLOSING_OF_OTHERS = re.compile("|".join(re.escape(closes) for closes in TAGS.values() if closes != "</think>"))
_TAG = re.compile("|".join(map(re.escape, (*TAGS, *TAGS.values()))))
_BEGINS = re.compile(rf"\s*(?:{_OPENINGS})")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenThought:
    """A thought that a prompt has begun."""

    opens: str  # the tag, such as "<think>"
    blank: str  # the white space that the prompt has behind it
    closes: str  # the tag that ends it


def open_thought_of(prompt: str) -> OpenThought | None:
    """The thought that a prompt ends with; None where it does not."""
    match = _OPENED_AT_END.search(prompt)
    if match is None:
        return None
    opens, blank = match.groups()
    return OpenThought(opens=opens, blank=blank, closes=TAGS[opens])


def empty_thought_at_end(prompt: str) -> str:
    """The empty thought that a prompt ends with, or the end of one alone, blanks included; "" where it does not, as
    behind a thought with words in it."""
    match = _EMPTY_AT_END.search(prompt)
    if match is None:
        return ""
    tags = _TAG.findall(prompt, 0, match.start())
    has_words = bool(tags) and TAGS.get(tags[-1]) == match.group().strip()
    return "" if has_words else match.group()


def closes_thought(text: str) -> bool:
    """Whether a text closes a thought, in the tags of any model."""
    return _CLOSING.search(text) is not None


def end_of_other_thoughts(text: str) -> int:
    """Where the last thought in other tags than ``<think>`` ends; 0 without one."""
    return max((match.end() for match in _CLOSING_OF_OTHERS.finditer(text)), default=0)


def without_tags(text: str) -> str:
    """A text with blanks in the place of all tags of thoughts."""
    return _TAG.sub(lambda tag: " " * len(tag[0]), text)


def begins_with_thought(reply: str) -> bool:
    """Whether a reply opens a thought before it says anything else."""
    return _BEGINS.match(reply) is not None


def broken_thought_in(reply: str) -> str:
    """Return the fault of the thought in a reply whose prompt is in no thought: it never ends, or it ends one that has
    not begun. "" where there is none."""
    if begins_with_thought(reply):
        opens = reply.split(maxsplit=1)[0]
        tag = next(tag for tag in TAGS if opens.startswith(tag))
        return "" if TAGS[tag] in reply else f"opens a thought with {tag!r} and never closes it"
    first = _TAG.search(reply)
    if first is None or first.group() in TAGS or first.group() == FINAL_CHANNEL:
        return ""
    return f"closes with {first.group()!r} a thought that it has not opened"
