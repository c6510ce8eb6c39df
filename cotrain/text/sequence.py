"""A conversation of several turns as one sequence of tokens, for as long as each prompt begins with all earlier tokens.

::

    sequence   <user>2 + 2?<end><assistant>4<end>
    prompt     <user>2 + 2?<end><assistant>4<end>\n<user>Sure?<end><assistant>
    new                                          \n<user>Sure?<end><assistant>

The rule compares *texts*: of the prompt as the template renders it now, and of the tokens that are there, with the
control tokens in both. Only what is new is encoded, as it stands behind the rest. So no token is ever made twice: what
was sampled stays as it was sampled, also where the tokenizer would cut its text otherwise. A template that rewrites
earlier turns (drops a thought, trims a reply, moves the system message) makes a prompt that does not begin so, and a
new sequence begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotrain.text.render import Piece, Rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """Tokens with what they say, control tokens included."""

    ids: tuple[int, ...]
    text: str

    def new_ids(self, prompt: Sequence[Piece], renderer: Rendering) -> tuple[int, ...] | None:
        """The tokens that a prompt has behind this sequence; None where it does not begin with it."""
        left = self.text
        for i, (text, origin) in enumerate(prompt):
            if len(left) <= len(text):
                if not text.startswith(left):
                    return None
                rest = [piece for piece in [(text[len(left) :], origin), *prompt[i + 1 :]] if piece[0]]
                return renderer.encode_pieces(rest, self.text) if rest else ()
            if not left.startswith(text):
                return None
            left = left[len(text) :]
        return None


def sampled_after(
    prompt: Sequence[Piece], prompt_ids: tuple[int, ...], ids: tuple[int, ...], renderer: Rendering
) -> TokenSequence:
    """The sequence of a prompt and what was sampled after it."""
    text = "".join(text for text, _ in prompt) + renderer.decode(ids)
    ended = bool(ids) and ids[-1] in renderer.stop_ids
    return TokenSequence(ids=(*prompt_ids, *ids), text=text + (renderer.token_text(ids[-1]) if ended else ""))
