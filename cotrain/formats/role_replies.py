r"""Reading what roles besides the solver wrote; solutions themselves are read in ``solutions.py``.

::

    review:        <step>… CORRECT</step> … <step>… INCORRECT</step><final>INCORRECT</final>
    self check:    <step>…</step>…<answer>…</answer><step>… CORRECT</step>…<final>CORRECT</final>
    meta verdict:  whatever reasoning …
                   <final>INCORRECT</final>
    search:        <search>word</search>
    searched:      <search>word</search><found>…</found>…<step>…</step>…<answer>…</answer>

As there, every parser returns a value for every string. A review is three-valued on purpose: CORRECT, INCORRECT, or not
a review. Whatever is ambiguous (two finals, "not CORRECT", a verdict too many) is the third, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cotrain.core.types import ParseFailure, Span
from cotrain.formats.solutions import (
    MAX_CHARS,
    Review,
    SelfCheck,
    Solution,
    format_score_of,
    scan_blocks,
    tagged_solution,
    without_thought,
)

_ANSWER_ENDS = "</answer>"
_FINAL_BEGINS = "<final>"
_SEARCH_BEGINS = "<search>"
_SEARCH_ENDS = "</search>"
FOUND = re.compile(r"<found>[^<]*</found>")  # the result of a search, as a policy writes it
_SEARCHED = re.compile(rf"<search>[^<]*</search>|{FOUND.pattern}")
_VERDICTS = {"CORRECT": True, "INCORRECT": False}
HEDGES = frozenset({"not", "never", "no", "or", "nor", "cannot"})  # "not CORRECT" is not a verdict


def step_verdicts(text: str, count: int) -> Review | ParseFailure:
    r"""Read the review of a solution with ``count`` steps.

    Exactly ``count`` blocks ``<step>…</step>``, each ending in the word CORRECT or INCORRECT (alone or as
    ``\boxed{CORRECT}``), then exactly one ``<final>`` that holds such a word and nothing else; only whitespace
    outside. Verdict words elsewhere in a block are ordinary text.

    Reasons of failure: "too long", "unclosed step", "unclosed final", "no final verdict", "several finals",
    "bad final verdict", "final before steps", "no steps", "step count", "bad step verdict", "stray text".
    """
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    scan = scan_blocks(text, ("step", "final"))
    blocks = scan.blocks_named("step")
    finals = scan.blocks_named("final")
    verdicts = [_last_verdict(block.text) for block in blocks]
    final = _whole_verdict(finals[0].text) if len(finals) == 1 else None
    final_is_early = bool(finals and blocks and finals[0].start < blocks[-1].end)
    has_no_steps = count > 0 and not blocks
    has_step_verdicts = len(blocks) == count and None not in verdicts

    # The parts: a final verdict, steps, and a verdict on each of them. Without steps two of these are missing.
    missing = (final is None or final_is_early) + has_no_steps + (not has_step_verdicts)
    has_stray = scan.stray or scan.broken is not None

    # The first fault that applies.
    if scan.broken is not None:
        reason = scan.broken
    elif not finals:
        reason = "no final verdict"
    elif len(finals) > 1:
        reason = "several finals"
    elif final is None:
        reason = "bad final verdict"
    elif final_is_early:
        reason = "final before steps"
    elif has_no_steps:
        reason = "no steps"
    elif len(blocks) != count:
        reason = "step count"
    elif not has_step_verdicts:
        reason = "bad step verdict"
    elif scan.stray:
        reason = "stray text"
    else:
        inside = finals[0]
        start = inside.start + len(inside.text) - len(inside.text.lstrip())
        word = inside.text.strip()
        span = Span(start=start, end=start + len(word), text=word)
        return Review(steps=tuple(bool(v) for v in verdicts), final=final, final_span=span)
    return ParseFailure(reason=reason, format_score=format_score_of(missing, has_stray))


def write_review(derivations: Sequence[str], verdicts: Sequence[bool], final: bool) -> str:
    """The text of a review; ``step_verdicts`` reads its verdicts back."""
    text = ""
    for derivation, verdict in zip(derivations, verdicts, strict=True):
        text += f"<step>{derivation} {_verdict_word(verdict)}</step>"
    return text + f"<final>{_verdict_word(final)}</final>"


def corrected_review(text: str, verdicts: Sequence[bool], final: bool) -> str:
    """A review with other verdicts behind the same derivations; without derivations where it cannot be read."""
    if isinstance(step_verdicts(text, len(verdicts)), ParseFailure):
        return write_review([""] * len(verdicts), verdicts, final)
    blocks = scan_blocks(text, ("step", "final")).blocks_named("step")
    derivations = [" ".join(block.text.split()[:-1]) for block in blocks]  # without the verdict at the end
    return write_review(derivations, verdicts, final)


def _verdict_word(verdict: bool) -> str:
    return "CORRECT" if verdict else "INCORRECT"


def _whole_verdict(text: str) -> bool | None:
    r"""The verdict that a text consists of: ``CORRECT`` or ``\boxed{CORRECT}`` and whitespace."""
    word = text.strip()
    if word.startswith("\\boxed{") and word.endswith("}"):
        word = word[len("\\boxed{") : -1].strip()
    return _VERDICTS.get(word)


def _last_verdict(text: str) -> bool | None:
    """The verdict that a text ends in as a word of its own; None when there is none or it is taken back."""
    words = text.rsplit(maxsplit=2)  # the last two words, behind all that is before them
    verdict = _whole_verdict(words[-1]) if words else None
    if verdict is None or len(words) < 2:
        return verdict
    word_before = words[-2].removeprefix("\\boxed{").strip(".,:;!?*_\"'()[]{}/|")
    if word_before in _VERDICTS:
        return None  # two verdicts
    is_same_sentence = not words[-2].endswith((".", ":", ";", "!", "?"))
    is_hedge = word_before.casefold() in HEDGES or word_before.casefold().endswith(("n't", "n’t"))
    return None if is_hedge and is_same_sentence else verdict


def self_check(text: str) -> SelfCheck | ParseFailure:
    """A solution up to the first ``</answer>``, then its review. Reasons of failure: those of either parser, those of
    the review after "check: "; a solution without a check has the format score 0.2."""
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        spoken = text  # read as it stands: the solution's parser allows for more thoughts
    before, end, review_text = spoken.partition(_ANSWER_ENDS)
    solution_text = before + end
    solution = tagged_solution(solution_text)
    if isinstance(solution, ParseFailure):
        return ParseFailure(reason=solution.reason, tagged=solution.tagged)
    review = step_verdicts(review_text, len(solution.steps))
    if isinstance(review, ParseFailure):
        return ParseFailure(reason=f"check: {review.reason}", format_score=0.2, tagged=solution_text)
    return SelfCheck(solution=solution, review=review, text=solution_text, analysis=review_text)


def meta_verdict(text: str) -> Review | ParseFailure:
    """The verdict that a text ends on, on a line of its own, after any reasoning: a ``Review`` without steps. Reasons
    of failure: those of ``step_verdicts``, "several finals", and "verdict inside a sentence": where something is
    before it on its line, the verifier tells of the review that it was shown."""
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    if text.count(_FINAL_BEGINS) > 1:
        return ParseFailure(reason="several finals")
    start = max(0, text.find(_FINAL_BEGINS))  # 0 without one, which ``step_verdicts`` then says
    line_start = text.rfind("\n", 0, start) + 1
    if text[line_start:start].strip():
        return ParseFailure(reason="verdict inside a sentence", format_score=0.6)
    verdict = step_verdicts(text[start:], 0)
    if isinstance(verdict, ParseFailure):
        return verdict
    span = verdict.final_span
    return replace(verdict, final_span=replace(span, start=span.start + start, end=span.end + start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search that could be read."""

    text: str  # stripped; never empty
    format_score: float = 1.0
    ok: ClassVar[bool] = True


def search_query(text: str) -> Query | ParseFailure:
    """The first search in a text. Reasons of failure: "no search", "empty search"."""
    _, opened, rest = text[:MAX_CHARS].partition(_SEARCH_BEGINS)
    inside, closed, _ = rest.partition(_SEARCH_ENDS)
    if not opened or not closed:
        return ParseFailure(reason="no search")
    if not inside.strip():
        return ParseFailure(reason="empty search")
    return Query(text=inside.strip())


def without_searches(text: str) -> str:
    """The text with its searches and their information blanked out: places of all else stay. A text of more than
    ``MAX_CHARS`` characters is cut, and still too long, as its parser then says."""
    return _SEARCHED.sub(lambda block: " " * len(block.group()), text[: MAX_CHARS + 1])


def searched_solution(text: str) -> Solution | ParseFailure:
    """A solution that searches may stand in. Reasons of failure: those of ``tagged_solution``, and "unclosed search"
    and "unclosed found" where such a block has no end or holds another tag."""
    plain = without_searches(text)
    solution = tagged_solution(plain)
    for tag in ("search", "found"):
        if f"<{tag}>" in plain or f"</{tag}>" in plain:
            return ParseFailure(reason=f"unclosed {tag}", tagged=plain if solution.ok else solution.tagged)
    return solution
