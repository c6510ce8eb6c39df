r"""Reading what further roles wrote; solutions and reviews themselves are read in ``parsers.py``.

::

    self check:    <step>…</step>…<answer>…</answer><step>… CORRECT</step>…<final>CORRECT</final>
    meta verdict:  whatever reasoning …
                   <final>INCORRECT</final>
    search:        <search>word</search>
    searched:      <search>word</search><found>…</found>…<step>…</step>…<answer>…</answer>

As there, every parser returns a value for every string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cotrain.core.types import ParseFailure
from cotrain.text.parsers import MAX_CHARS, Review, SelfCheck, Solution, step_verdicts, tagged_solution, without_thought

_END, _FINAL, _OPEN, _CLOSE = "</answer>", "<final>", "<search>", "</search>"
FOUND = re.compile(r"<found>[^<]*</found>")  # what a policy says that a search found
_SEARCHED = re.compile(rf"<search>[^<]*</search>|{FOUND.pattern}")


def self_check(text: str) -> SelfCheck | ParseFailure:
    """A solution up to the first ``</answer>``, then its review. Reasons of failure: those of either parser, those of
    the review after "check: "; a solution without a check has the format score 0.2."""
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    spoken = without_thought(text)
    before, end, after = (text if isinstance(spoken, ParseFailure) else spoken).partition(_END)
    solution = tagged_solution(before + end)
    if isinstance(solution, ParseFailure):
        return ParseFailure(reason=solution.reason, tagged=solution.tagged)
    review = step_verdicts(after, len(solution.steps))
    if isinstance(review, ParseFailure):
        return ParseFailure(reason=f"check: {review.reason}", format_score=0.2, tagged=before + end)
    return SelfCheck(solution=solution, review=review, text=before + end, analysis=after)


def meta_verdict(text: str) -> Review | ParseFailure:
    """The verdict that a text ends on, on a line of its own, after any reasoning: a ``Review`` without steps. Reasons
    of
    failure: those of ``step_verdicts``, "several finals", and "verdict inside a sentence": where something stands
    before it on its line, the judge tells of the review that it was shown."""
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    if text.count(_FINAL) > 1:
        return ParseFailure(reason="several finals")
    start = max(0, text.find(_FINAL))
    if text[text.rfind("\n", 0, start) + 1 : start].strip():
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

    @property
    def ok(self) -> bool:
        return True


def search_query(text: str) -> Query | ParseFailure:
    """The first search in a text. Reasons of failure: "no search", "empty search"."""
    _, opened, rest = text[:MAX_CHARS].partition(_OPEN)
    inside, closed, _ = rest.partition(_CLOSE)
    if not opened or not closed:
        return ParseFailure(reason="no search")
    if not inside.strip():
        return ParseFailure(reason="empty search")
    return Query(text=inside.strip())


def without_searches(text: str) -> str:
    """The text with its searches and their information blanked out: places of all else stay."""
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
