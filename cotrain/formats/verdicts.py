r"""Reading what generative verifiers wrote about one solution; ``preferences.py`` has those that compare several.

::

    GenRM      (arXiv 2408.15240)   rationale … <verdict>Yes</verdict>           or nothing but the word
    GenPRM     (arXiv 2504.00891)   <analyze>…</analyze> <verify>…</verify> <output>\boxed{Yes}</output>, once a step
    scalar     (DeepSeekMath-V2)    evaluation … <score>0.5</score>

Every parser returns a value for every string, in one pass over it: a judgement, ``Abstention`` where the verifier wrote
``Abstain`` in the verdict's place, or a ``ParseFailure`` with its reason. Two verdicts, text after the verdict and
"not <verdict>Yes</verdict>" are failures, never a guess. A thought in front, ``… </think>``, is not read.

A verdict is a tag or the whole reply, never just the last line or the last ``\boxed{}``: a verifier that quotes the
solution and is cut off there would end on the candidate's words. What a verifier is shown has its tags broken
(``nonce.py``), so that a quotation of it is no verdict either.

GenPRM's programs are read past, here: ``rollout/tools/calls.py`` may run them, and keeps what they print out of the
text that is read. Left out: GenPRM's forced beginnings of each part, and its softmax over the Yes and No tokens, for
which engines would have to return the probability of a token that was not sampled; and the bare ``\boxed{}`` score of
DeepSeekMath-V2.

Format scores as in ``solutions.py``: 1 − 0.8 for what is missing − 0.4 for stray text. A refusal scores 0, so that
declining never pays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cotrain.core.types import ParseFailure, Span
from cotrain.formats.role_replies import HEDGES
from cotrain.formats.solutions import scan_blocks, scored_failure, without_thought

ABSTAIN = "Abstain"  # in the verdict's place: the verifier declines

_YES_NO = {"Yes": True, "No": False}
_SCORES = {"0": 0.0, "0.0": 0.0, "0.5": 0.5, ".5": 0.5, "1": 1.0, "1.0": 1.0}


# A judgement, in whatever format, has ``ok``, ``format_score`` and these, so that verifiers are interchangeable parts:
#
#     final   is the solution right; of two, is the first better; None: a tie, or not asked for
#     score   the same in [0, 1], as far as the text says it; None where there is no single number
#     steps   [K] one for each step, [] where steps are not judged
#     spans   where the words stand that decide: [K] of the steps, or [1]; [] for numbers, whose probability says
#             nothing about the opposite verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judgement of one solution."""

    final: bool | None  # None: half right
    score: float | None  # in [0, 1]
    steps: tuple[bool, ...] = ()  # [K]
    spans: tuple[Span, ...] = ()  # [K] or [1] the words Yes and No
    format_score: float = 1.0
    ok: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """The verifier followed the format and declined to judge. It is counted as such and says nothing of the
    solution."""

    reason: str = "refused"
    format_score: float = 0.0
    ok: ClassVar[bool] = False


# -- GenRM


def read_genrm(text: str) -> Verdict | Abstention | ParseFailure:
    r"""A rationale, then ``<verdict>Yes</verdict>``; or the whole reply is ``Yes`` or ``No``.

    ``final`` is whether the answer is right, ``score`` the same as a number. Reasons of failure: those of
    ``closing_block`` for "verdict", and "bad verdict".
    """
    reply = whole_reply(text)
    if isinstance(reply, ParseFailure):
        return reply
    is_bare_word = reply.text in _YES_NO
    verdict = reply if is_bare_word else closing_block(text, "verdict")
    if isinstance(verdict, ParseFailure):
        return verdict
    word = unbox_span(verdict)
    if word.text == ABSTAIN:
        return Abstention()
    if word.text not in _YES_NO:
        return scored_failure("bad verdict", missing=1)
    final = _YES_NO[word.text]
    return Verdict(final=final, score=float(final), spans=(word,))


# -- GenPRM


def read_genprm(text: str, count: int) -> Verdict | Abstention | ParseFailure:
    r"""For each of ``count`` steps an analysis, optionally code, and a verdict: see above. Only whitespace outside.

    ``final`` is whether every step is right, ``score`` the same as a number (the minimum). A verifier that abstains
    from one step abstains from the whole. Reasons of failure: "too long", "unclosed think", "several thoughts",
    "unclosed analyze" and so on, "stray text", "no steps", "step count", "bad order", "bad step verdict".
    """
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        return spoken
    scan = scan_blocks(spoken, ("analyze", "verify", "output"))
    if scan.broken is not None:
        return scored_failure(scan.broken, missing=1)
    words = tuple(unbox_span(block) for block in scan.blocks_named("output"))
    if not words:
        return scored_failure("no steps", missing=2)
    if len(words) != count:
        return scored_failure("step count", missing=1)
    if not _in_genprm_order([name for name, _ in scan.blocks]):
        return scored_failure("bad order", missing=1)
    if any(word.text not in _YES_NO and word.text != ABSTAIN for word in words):
        return scored_failure("bad step verdict", missing=1)
    if scan.stray:
        return scored_failure("stray text", stray=True)
    if any(word.text == ABSTAIN for word in words):
        return Abstention()
    steps = tuple(_YES_NO[word.text] for word in words)
    return Verdict(final=all(steps), score=float(all(steps)), steps=steps, spans=words)


def _in_genprm_order(names: Sequence[str]) -> bool:
    """Whether blocks come as they should: for each step "analyze", perhaps "verify", then "output"."""
    initials = "".join(name[0] for name in names)
    return re.fullmatch("(?:av?o)+", initials) is not None


# -- a scalar


def read_score(text: str) -> Verdict | Abstention | ParseFailure:
    r"""An evaluation, then ``<score>…</score>`` with 0 (fatally wrong), 0.5 (minor errors) or 1, as it is or boxed.

    ``final`` is None for 0.5. Reasons of failure: those of ``closing_block`` for "score", and "bad score".
    """
    block = closing_block(text, "score")
    if isinstance(block, ParseFailure):
        return block
    word = unbox_span(block).text
    if word == ABSTAIN:
        return Abstention()
    if word not in _SCORES:
        return scored_failure("bad score", missing=1)
    score = _SCORES[word]
    return Verdict(final=None if score == 0.5 else score == 1.0, score=score)


# -- what the formats share


def whole_reply(text: str) -> Span | ParseFailure:
    """All that was said apart from a thought, without white space at its ends."""
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        return spoken
    return trim_span(Span(start=0, end=len(spoken), text=spoken))


def closing_block(text: str, name: str) -> Span | ParseFailure:
    """The inside of the one ``<name>…</name>`` that a text ends on; a thought in front is not read.

    Reasons of failure, for the name "verdict": those of ``without_thought``, "unclosed verdict", "no verdict",
    "several verdicts", "stray tag" (a closing tag too many), "text after verdict", "verdict taken back" (what is
    before it on its line negates it).
    """
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        return spoken
    scan = scan_blocks(spoken, (name,))
    blocks = scan.blocks_named(name)
    if scan.broken is not None:
        return scored_failure(scan.broken, missing=1)
    if not blocks:
        return scored_failure(f"no {name}", missing=1, stray=scan.stray_tag)
    if len(blocks) > 1:
        return scored_failure(f"several {name}s", missing=1)
    if scan.stray_tag:
        return scored_failure("stray tag", stray=True)
    block = blocks[0]
    if spoken[block.end + len(f"</{name}>") :].strip():
        return scored_failure(f"text after {name}", stray=True)
    opening = block.start - len(f"<{name}>")
    line_start = spoken.rfind("\n", 0, opening) + 1
    if is_negated(spoken[line_start:opening]):
        return scored_failure(f"{name} taken back", missing=1)
    return block


def trim_span(span: Span) -> Span:
    """The span without white space at its ends."""
    start = span.start + len(span.text) - len(span.text.lstrip())
    word = span.text.strip()
    return Span(start=start, end=start + len(word), text=word)


def unbox_span(span: Span) -> Span:
    r"""The span of a block's content, without white space and the ornaments of GenPRM: ``**Judgement**: $\boxed{Yes}$``
    → ``Yes``."""
    span = trim_span(span)
    for before, after in (("**Judgement**:", ""), ("$", "$"), ("\\boxed{", "}")):  # from the outside in
        text = span.text
        if len(text) >= len(before) + len(after) and text.startswith(before) and text.endswith(after):
            inside = text[len(before) : len(text) - len(after)]
            start = span.start + len(before)
            span = trim_span(Span(start=start, end=start + len(inside), text=inside))
    return span


def is_negated(line: str) -> bool:
    """Whether a line ends in "not", "isn't", "or" and the like, with no end of a sentence behind it."""
    line = line.rstrip("*_\"'([{ \t")  # marks of what follows on the line, such as **
    words = line.rsplit(maxsplit=1)
    if not words:
        return False
    word = words[-1].lstrip("*_\"'([{").casefold()
    return word in HEDGES or word.endswith(("n't", "n’t"))
