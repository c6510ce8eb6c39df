"""Marking a candidate's text in a verifier's prompt with a random nonce, so that it cannot pass as instructions.

::

    <solution id=9f3c01ab>
    … whatever the candidate wrote, ``</solution id=00000000>`` and ``<|im_end|>`` included …
    </solution id=9f3c01ab>

Three ways for a candidate's text to become a verdict, and what stands in each:

- It ends its block and goes on as if it were the prompt. The markers hold a nonce that it could not know when it was
  written; should it hold the nonce all the same (a verifier's text was shown to it), the nonce is struck out in it.
- It ends the chat turn. ``render.Renderer`` encodes contents with control tokens switched off.
- The verifier quotes it and stops there, or is cut off. Parsers read only what the verifier said, and demand one
  verdict at the end; but a reply may end with the quotation, and the solver's own ``<answer>3</answer>`` would read as
  a grade of Think-RM. So the tags of verifiers' formats are broken in what a verifier is shown, ``<answer>`` →
  ``< answer>``, and nothing else is: steps, boxes, LaTeX and all other tags reach the verifier as they stand.

What no marker can stop is persuasion: a verifier may still do as the text asks. The prompts tell it not to.
"""

from __future__ import annotations

from collections.abc import Sequence

VERDICT_TAGS = (  # tags of all formats, those of preferences.py included
    *("verdict", "output", "score", "scores", "answer", "final"),  # the texts in these tags decide
    *("think", "analyze", "verify", "rubric", "eval", "principles", "critique"),
)


def wrap_text(text: str, nonce: str, tag: str = "solution") -> str:
    """The text between its markers, on lines of their own, with verifiers' tags broken and the nonce struck out.

    Raises ValueError for a nonce that is not of letters and digits.
    """
    if not nonce.isalnum():
        raise ValueError(f"a nonce is letters and digits, not {nonce!r}")
    inside = break_verdict_tags(text).replace(nonce, "-" * len(nonce))
    return f"<{tag} id={nonce}>\n{inside}\n</{tag} id={nonce}>"


def wrap_all(texts: Sequence[str], nonce: str, tag: str = "response") -> str:
    """Several texts, each between markers with its number from 1: ``<response 1 id=9f3c01ab>``."""
    return "\n".join(wrap_text(text, nonce, f"{tag} {number}") for number, text in enumerate(texts, 1))


def break_verdict_tags(text: str, tags: Sequence[str] = VERDICT_TAGS) -> str:
    """The text with a space in the tags that a parser of judgements would take for its own: ``< answer>4</
    answer>``."""
    for tag in tags:
        text = text.replace(f"<{tag}>", f"< {tag}>").replace(f"</{tag}>", f"</ {tag}>")
    return text
