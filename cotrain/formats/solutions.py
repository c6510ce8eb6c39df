r"""Reading what roles wrote: solutions in steps, and answers; ``role_replies.py`` reads reviews and what further roles
write.

::

    solution:  <step>…</step> … <step>…</step><answer>…</answer>

Every parser returns a value for every string: the parsed text, or a ``ParseFailure`` with its reason and a graded
``format_score``. Whatever is ambiguous is a failure, never a guess.

The scanners are written by hand and go over the text once: rewards are computed on degenerate text, and ordinary
regular expressions take minutes on it. Format scores follow RL Tango (arXiv 2505.15034, released code): 1 − 0.8 for
each missing part − 0.4 for stray text, clipped to [0, 1]. Left out of Tango: its ``<think>`` and
``<step_verification>`` wrappers, verdicts in lower case, and the penalty on solutions of fewer than three steps
(short problems need fewer).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cotrain.core.types import ParseFailure, Span
from cotrain.prompts.thoughts import end_of_other_thoughts

MAX_CHARS = 100_000  # longer texts are not read: "too long"
UNFINISHED = "unclosed think"  # reason of a text that ends inside of a thought

TAGS = "tags"  # the form of solutions and reviews that is read here
VERDICT_WORDS = ("CORRECT", "INCORRECT")
THOUGHT = "<think>"
THOUGHT_ENDS = "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A solution that could be read."""

    steps: tuple[Span, ...]  # [K >= 1] the inside of each <step>, as it is
    answer: str  # the inside of the one <answer>, stripped; never empty
    format_score: float = 1.0  # in [0, 1]; 0.6 when there is text outside of the tags
    tagged: str | None = None  # the same in tags, where its text has none (``answers.py``)
    ok: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A review that could be read: a verdict for every step and one for the answer."""

    steps: tuple[bool, ...]  # [K] True where the reviewer wrote CORRECT
    final: bool  # the verdict on the answer
    final_span: Span  # the place of that word
    format_score: float = 1.0  # always 1: a review is read in full or not at all
    ok: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """A solution and the solver's own review of it, both read. Steps and answer are the solution's."""

    solution: Solution
    review: Review
    text: str  # the text of the solution alone
    analysis: str  # the text of the review
    format_score: float = 1.0
    ok: ClassVar[bool] = True

    @property
    def tagged(self) -> str:
        return self.text

    @property
    def steps(self) -> tuple[Span, ...]:
        return self.solution.steps

    @property
    def answer(self) -> str:
        return self.solution.answer


def parse_solution(text: str, fields: Mapping[str, Any]) -> Solution | ParseFailure:
    """The parser of roles that write solutions: in tags, unless ``Role.answer_format`` says otherwise."""
    return tagged_solution(text)


def tagged_solution(text: str) -> Solution | ParseFailure:
    """Read a stepwise solution. A thought in front costs what stray text does; steps may stand in it where none follow
    it, the answer never.

    Reasons of failure: "too long", "unclosed think", "unclosed step", "unclosed answer", "no steps", "no answer",
    "several answers", "answer before steps", "stray tag". A failure keeps the last answer that stands in tags.
    """
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    if (spoken := behind_thoughts(text)) is None:
        return scored_failure(UNFINISHED, missing=1)
    thought_end = len(text) - len(spoken)  # 0 without a thought
    solution = _tagged_solution(_with_unread_thought(text, thought_end))
    if isinstance(solution, Solution):
        # Their text as it was written: parts of a step in the thought may have been blanked out.
        steps = tuple(replace(step, text=text[step.start : step.end]) for step in solution.steps)
        return replace(solution, steps=steps)
    answer = last_block(spoken, "answer")
    return replace(solution, tagged=write_solution((), answer)) if answer else solution


def _with_unread_thought(text: str, thought_end: int) -> str:
    """The text of a solution with blanks for what is not read of the thought in front of it; all else keeps its place.

    - Steps follow the thought: nothing of it is read. A single "." stays, so that the thought costs what stray text
      does.
    - No steps follow: those in the thought are read, and its tags of answers and verdicts are not.
    """
    spoken = text[thought_end:]
    if thought_end == 0:
        return text
    if "<step>" in spoken:
        return "." + " " * (thought_end - 1) + spoken
    return re.sub("(answer|final)>", lambda tag: " " * len(tag[0]), text[:thought_end]) + spoken


def _tagged_solution(text: str) -> Solution | ParseFailure:
    scan = scan_blocks(text, ("step", "answer", "final"))
    steps = scan.blocks_named("step")
    answers = [a for a in scan.blocks_named("answer") if a.text.strip()]
    missing = (len(answers) != 1) + (not steps)
    has_stray = scan.stray or scan.broken is not None
    score = format_score_of(missing, has_stray)
    if scan.broken is not None:
        reason = scan.broken
    elif scan.stray_tag or scan.blocks_named("final"):
        reason = "stray tag"
    elif not steps:
        reason = "no steps"
    elif not answers:
        reason = "no answer"
    elif len(scan.blocks_named("answer")) > 1:
        reason = "several answers"
    elif answers[0].start < steps[-1].end:
        reason = "answer before steps"
    else:
        return Solution(steps=steps, answer=answers[0].text.strip(), format_score=score)
    return ParseFailure(reason=reason, format_score=min(score, 0.6))


def blocks_of(text: str, name: str) -> tuple[Span, ...]:
    """The insides of all complete blocks ``<name>…</name>``."""
    return scan_blocks(text, (name,)).blocks_named(name)


def last_block(text: str, name: str) -> str | None:
    """The inside of the last complete ``<name>…</name>``, stripped."""
    opening = f"<{name}>"
    end = text.rfind(f"</{name}>")
    if end < 0:
        return None
    start = text.rfind(opening, 0, end)
    if start < 0:
        return None
    return text[start + len(opening) : end].strip()


# -- thoughts


def behind_thoughts(text: str) -> str | None:
    """The text behind the last thought, all of a text without one; None for a text that ends inside of one. Other tags
    (``thoughts.TAGS``) count only where the thought is closed."""
    _, _, spoken = text.rpartition(THOUGHT_ENDS)  # all of a text that has no such tag
    if THOUGHT in spoken:
        return None
    return spoken[end_of_other_thoughts(spoken) :]


def without_thought(text: str) -> str | ParseFailure:
    """The text with a thought in front of it blanked out, so that positions stay what they are.

    The thought ends at the only ``</think>``; its ``<think>`` may be part of the prompt. Reasons of failure: "too
    long", "unclosed think", "several thoughts", "text before thought".
    """
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    end = text.find(THOUGHT_ENDS)
    others = end_of_other_thoughts(text)
    if end < 0 and THOUGHT in text:
        return scored_failure(UNFINISHED, missing=1)
    if end < 0:
        return _blank_until(others, text)
    thought_start = text.find(THOUGHT)
    if text.count(THOUGHT_ENDS) > 1 or text.count(THOUGHT) > 1 or thought_start > end:
        return scored_failure("several thoughts", missing=1)
    if thought_start > 0 and not text[:thought_start].isspace():
        return scored_failure("text before thought", stray=True)
    return _blank_until(max(end + len(THOUGHT_ENDS), others), text)


def _blank_until(end: int, text: str) -> str:
    """The text with blanks, and the end of a line, in the place of its first ``end`` characters."""
    if end == 0:
        return text
    return " " * (end - 1) + "\n" + text[end:]


def format_score_of(missing: int, stray: bool) -> float:
    """The format score of a text in which so many parts are missing, and which may have stray text."""
    return clip_score(1.0 - 0.8 * missing - 0.4 * stray)


def scored_failure(reason: str, *, missing: int = 0, stray: bool = False) -> ParseFailure:
    """A failure whose format score counts the missing parts and stray text."""
    return ParseFailure(reason=reason, format_score=format_score_of(missing, stray))


def write_solution(steps: Sequence[str], answer: str) -> str:
    """The text of a solution; ``tagged_solution`` reads it back."""
    return "".join(f"<step>{step}</step>" for step in steps) + f"<answer>{answer}</answer>"


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockScan:
    """The blocks and tags that one pass over a text found."""

    blocks: tuple[tuple[str, Span], ...]  # complete blocks in order: (tag name, inside)
    stray: bool  # something other than whitespace is outside of all blocks
    stray_tag: bool  # a closing tag is where nothing is open
    broken: str | None  # "unclosed step": the first block that another tag or the end of the text cuts off

    def blocks_named(self, name: str) -> tuple[Span, ...]:
        return tuple(span for tag, span in self.blocks if tag == name)


def scan_blocks(text: str, names: Sequence[str]) -> _BlockScan:
    """Cut a text into the blocks ``<name>…</name>``; blocks do not nest."""
    tags = {f"<{name}>": (name, True) for name in names} | {f"</{name}>": (name, False) for name in names}
    longest = max(map(len, tags))
    blocks: list[tuple[str, Span]] = []
    stray = stray_tag = False
    broken: str | None = None
    inside: str | None = None  # the open block's name
    since = 0  # where the open block begins, or the text outside of blocks
    at = 0  # where the search goes on
    while (at := text.find("<", at)) >= 0:
        tag = text[at : text.find(">", at, at + longest) + 1]
        if tag not in tags:
            at += 1
            continue
        name, opens = tags[tag]
        if inside is None:
            is_stray_tag = not opens
            stray_tag = stray_tag or is_stray_tag
            stray = stray or is_stray_tag or not _is_blank(text, since, at)
        elif name == inside and not opens:
            blocks.append((name, Span(start=since, end=at, text=text[since:at])))
        else:
            broken = broken or f"unclosed {inside}"

        inside = name if opens else None
        at += len(tag)
        since = at

    if inside is not None:
        broken = broken or f"unclosed {inside}"
    else:
        stray = stray or not _is_blank(text, since, len(text))
    return _BlockScan(blocks=tuple(blocks), stray=stray, stray_tag=stray_tag, broken=broken)


def _is_blank(text: str, start: int, end: int) -> bool:
    return start == end or text[start:end].isspace()


def clip_score(score: float) -> float:
    return round(min(1.0, max(0.0, score)), 6)
