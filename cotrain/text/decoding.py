"""Sampled ids → text, with a character offset for every token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BROKEN = "\ufffd"  # what decoders write for bytes that are not (yet) UTF-8
_WINDOW = 64  # tokens that ``offsets`` decodes again and again while a text stays broken


class Decoder:
    """Decodes for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, control: Collection[int]) -> None:
        """``control``: ids that carry no text; may still grow."""
        self.tokenizer, self._control = tokenizer, control
        self._widths: dict[int, int] | None = {} if _is_byte_level(tokenizer) else None

    def raw_text(self, plain: list[int]) -> str:
        """Of these ids, control tokens included."""
        text = self.tokenizer.decode(plain, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids without control tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.raw_text([i for i in ids if i not in self._control])

    def offsets(self, ids: Sequence[int]) -> list[int]:
        """For each sampled token [T] the end, in characters of ``decode(ids)``, of the text up to and with it.

        Equal to ``len(decode(ids[:t + 1]))`` wherever that prefix is complete UTF-8; inside of a character it is the
        number of characters that the prefix shares with the whole text. Never decreasing; the last is the text's
        length. Linear in T: decodes a sliding window, with the piece before it as context.
        """
        plain = [i for i in ids if i not in self._control]
        text, ends = self.raw_text(plain), []
        context = settled = 0  # plain[context:settled] is decoded before each window plain[settled:t + 1]
        length = before = 0  # characters of the settled text; of the context
        for t, token in enumerate(plain):
            width = self._char_width(token)
            if settled == t and width is not None:
                length, before, context, settled = length + width, width, t, t + 1
                ends.append(length)
                continue
            piece = self.raw_text(plain[context : t + 1])[before:]
            shared = _common_prefix(piece, text, length)
            ends.append(length + shared)
            if shared == len(piece) and not piece.endswith(_BROKEN):
                context, settled, length = settled, t + 1, length + shared
                before = len(self.raw_text(plain[context:settled]))
            elif shared == len(piece) and t - settled >= _WINDOW and self._can_cut(plain, t + 1, text, length + shared):
                context = settled = t + 1
                length, before = length + shared, 0
        if ends and ends[-1] != len(text):  # a decoder that looks further back than the window
            ends = [_common_prefix(self.raw_text(plain[: t + 1]), text, 0) for t in range(len(plain))]
        running = iter(accumulate(ends, max))
        last, spread = 0, []
        for i in ids:
            last = last if i in self._control else next(running)
            spread.append(last)
        return spread

    def _char_width(self, token: int) -> int | None:
        """Characters of a token whose text does not depend on its neighbours; None where it may."""
        if self._widths is None:
            return None
        if token not in self._widths:
            text = self.raw_text([token])
            self._widths[token] = -1 if _BROKEN in text else len(text)
        width = self._widths[token]
        return None if width < 0 else width

    def _can_cut(self, plain: list[int], t: int, text: str, length: int) -> bool:
        """Whether a run of broken bytes may be cut before token t: what follows decodes as it does in the text."""
        return text.startswith(self.raw_text(plain[t : t + 8]).rstrip(_BROKEN), length)


def _common_prefix(piece: str, text: str, start: int) -> int:
    """Number of leading characters of ``piece`` that stand in ``text`` at ``start``."""
    if text.startswith(piece, start):
        return len(piece)
    return next(i for i, char in enumerate(piece) if start + i >= len(text) or text[start + i] != char)


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a text is the tokens' bytes in a row, read as UTF-8 (GPT-2, Llama 3, Qwen, the embedded base)."""
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    return isinstance(tokenizer, PreTrainedTokenizerFast) and isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel)
