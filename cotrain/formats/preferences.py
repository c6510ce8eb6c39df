r"""Reading what generative verifiers wrote about several solutions of one problem.

::

    RM-R1         (arXiv 2505.02387)   <rubric>…</rubric> <eval>…</eval> <answer>[[A]]</answer>
    Think-RM      (arXiv 2505.16265)   <think>…</think> <answer>B</answer>       or <answer>-3</answer> … 3
    DeepSeek-GRM  (arXiv 2504.02495)   <principles>60% …</principles> <critique>…</critique> <scores>[7, 3]</scores>
    GRAM          (arXiv 2506.14175)   A

The rules are those of ``verdicts.py``: one verdict, at the end, or no judgement. Every parser is one pass.

Left out: RM-R1's task types (``<type>``; a rubric or an own solution count alike) and its quotations, which are free
text; DeepSeek-GRM's hints and the computing of scores from weights (the paper's model weighs by itself). GRAM's label
smoothing belongs to a loss (``algorithms/sft.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cotrain.core.types import ParseFailure, Span
from cotrain.formats.solutions import clip_score, scan_blocks, scored_failure, without_thought
from cotrain.formats.verdicts import ABSTAIN, Abstention, closing_block, trim_span, unbox_span, whole_reply
from cotrain.prompts.thoughts import closes_thought

LAST_CHARS = 80  # RM-R1: how much of the end may name only one letter
BEST = 10  # DeepSeek-GRM: scores are 1 … 10

_LETTERS = {"A": 1, "B": -1}  # as margins
_BRACKETED = {f"[[{letter}]]": margin for letter, margin in _LETTERS.items()}
_LEVELS = {str(level): level for level in range(-3, 4)} | {f"+{level}": level for level in range(1, 4)}
_POINTS = {str(points): points for points in range(1, BEST + 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A judgement of two responses."""

    margin: int  # d = r_first − r_second, in −limit … limit
    limit: int = 1  # 1: only which is better; 3: also by how much
    spans: tuple[Span, ...] = ()  # [1] the letter; [] for a number
    format_score: float = 1.0
    ok: ClassVar[bool] = True
    steps: ClassVar[tuple[bool, ...]] = ()

    @property
    def final(self) -> bool | None:
        """Whether the first is better; None for a tie."""
        return None if self.margin == 0 else self.margin > 0

    @property
    def score(self) -> float:
        """0 … 1, where 1 is the first by far and 0.5 a tie."""
        return 0.5 + self.margin / (2 * self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """A judgement of any number of responses, each by itself."""

    points: tuple[int, ...]  # [N] 1 … 10
    principles: tuple[tuple[str, int], ...]  # (what counts, its weight in per cent); they need not add up
    format_score: float = 1.0
    ok: ClassVar[bool] = True
    steps: ClassVar[tuple[bool, ...]] = ()
    spans: ClassVar[tuple[Span, ...]] = ()

    @property
    def best(self) -> int | None:
        """0-based index of the response that is strictly best, else None."""
        top = max(self.points)
        return self.points.index(top) if self.points.count(top) == 1 else None

    @property
    def final(self) -> bool | None:
        """Whether the first of two is better; None for a tie, and for any other number of responses."""
        if len(self.points) != 2 or self.best is None:
            return None
        return self.best == 0

    @property
    def score(self) -> float | None:
        """In [0, 1]: of one, its points; of two, how far the first is ahead; of more, None."""
        if len(self.points) == 1:
            return (self.points[0] - 1) / (BEST - 1)
        if len(self.points) == 2:
            first, second = self.points
            return 0.5 + (first - second) / (2 * (BEST - 1))
        return None


# -- RM-R1


def read_rmr1(text: str) -> Preference | Abstention | ParseFailure:
    """The text ends on ``<answer>[[A]]</answer>`` or B, and its last 80 characters name no other letter in brackets.

    A judgement without rubric (or own solution) or without evaluation can be read; each costs 0.4 of its format score.
    Reasons of failure: those of ``closing_block`` for "answer", "bad answer", "two letters".
    """
    block = closing_block(text, "answer")
    if isinstance(block, ParseFailure):
        return block
    word = trim_span(block)
    if word.text == f"[[{ABSTAIN}]]":
        return Abstention()
    if word.text not in _BRACKETED:
        return scored_failure("bad answer", missing=1)
    end = text.rstrip()[-LAST_CHARS:]
    if end.count("[[A]]") + end.count("[[B]]") != 1:
        return scored_failure("two letters", missing=1)
    letter = Span(start=word.start + 2, end=word.end - 2, text=word.text[2:-2])
    has_evaluation = _has_block(text, "eval")
    has_grounds = _has_block(text, "rubric") or _has_block(text, "solution")
    missing = (not has_evaluation) + (not has_grounds)
    return Preference(margin=_BRACKETED[word.text], spans=(letter,), format_score=clip_score(1.0 - 0.4 * missing))


# -- Think-RM


def read_thinkrm(text: str, *, graded: bool = False) -> Preference | Abstention | ParseFailure:
    """A thought, then an answer: a letter, or with ``graded`` an integer from −3 (the first is much better) to 3.

    0, which the released prompt does not offer, is a tie. Text between thought and answer is free; a missing thought
    costs 0.4 of the format score. Reasons of failure: those of ``without_thought`` and of ``closing_block`` for
    "answer", "bad answer".
    """
    block = closing_block(text, "answer")
    if isinstance(block, ParseFailure):
        return block
    word = trim_span(block)
    score = 1.0 if closes_thought(text) else 0.6
    if word.text == ABSTAIN:
        return Abstention()
    if graded and word.text in _LEVELS:
        return Preference(margin=-_LEVELS[word.text], limit=3, format_score=score)
    if not graded and word.text in _LETTERS:
        return Preference(margin=_LETTERS[word.text], spans=(word,), format_score=score)
    return scored_failure("bad answer", missing=1)


# -- DeepSeek-GRM

GRM_BLOCKS = ("principles", "critique", "scores")  # in this order


def read_grm(text: str, count: int) -> Ratings | Abstention | ParseFailure:
    r"""Weighted principles, a critique, and ``count`` integers 1 … 10 in one list, in brackets or ``\boxed{}``.

    Each line of the principles is ``40% what counts``, with a weight of 1 … 100 and perhaps a dash before it. Only
    whitespace outside of the three blocks. Reasons of failure: those of ``without_thought``, "unclosed principles" and
    so on, "bad order", "bad principles", "bad scores", "score count", "stray text".
    """
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        return spoken
    scan = scan_blocks(spoken, GRM_BLOCKS)
    names = [name for name, _ in scan.blocks]
    if scan.broken is not None:
        return scored_failure(scan.broken, missing=1)
    if names != list(GRM_BLOCKS):
        missing = set(GRM_BLOCKS) - set(names)
        return scored_failure("bad order", missing=max(1, len(missing)))
    if scan.stray:
        return scored_failure("stray text", stray=True)

    (scores_block,) = scan.blocks_named("scores")
    scores_text = unbox_span(scores_block).text
    if scores_text == ABSTAIN:
        return Abstention()
    (principles_block,) = scan.blocks_named("principles")
    principles = []
    for line in principles_block.text.splitlines():
        if not line.strip():
            continue
        principle = _parse_principle(line)
        if principle is None:
            return scored_failure("bad principles", missing=1)
        principles.append(principle)
    if not principles:
        return scored_failure("bad principles", missing=1)

    if scores_text.startswith("[") and scores_text.endswith("]"):
        scores_text = scores_text[1:-1]
    points = tuple(_POINTS.get(number.strip(), 0) for number in scores_text.split(","))
    if 0 in points:
        return scored_failure("bad scores", missing=1)
    if len(points) != count:
        return scored_failure("score count", missing=1)
    return Ratings(points=points, principles=tuple(principles))


# -- GRAM


def read_gram(text: str) -> Preference | ParseFailure:
    """The whole reply is the label A or B. Reasons of failure: "too long", "bad label"."""
    word = whole_reply(text)
    if isinstance(word, ParseFailure):
        return word
    if word.text not in _LETTERS:
        return scored_failure("bad label", missing=1)
    return Preference(margin=_LETTERS[word.text], spans=(word,))


def write_gram(first: bool) -> str:
    """``read_gram`` reads it back."""
    return "A" if first else "B"


def _has_block(text: str, name: str) -> bool:
    return 0 <= text.find(f"<{name}>") < text.rfind(f"</{name}>")


def _parse_principle(line: str) -> tuple[str, int] | None:
    """``- 40% right results`` → ("right results", 40)."""
    weight, percent, name = line.strip().removeprefix("- ").partition("%")
    if not percent or not name.strip() or not (weight.isascii() and weight.isdigit() and len(weight) <= 3):
        return None
    return (name.strip(), int(weight)) if 1 <= int(weight) <= 100 else None
