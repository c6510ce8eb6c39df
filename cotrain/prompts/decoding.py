"""Tokens and their text: sampled ids → text with a character offset for every token, the tokens of a span of text, stop
strings, and the ids of a conversation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Piece = tuple[str, str]  # a stretch of a prompt, and whose it is: "template", "content" or "reply"


class Codec(Protocol):
    """The part of a renderer that continues a conversation (``render.Rendering``)."""

    stop_ids: tuple[int, ...]

    def encode_pieces(self, pieces: Sequence[Piece], before: str = "") -> tuple[int, ...]: ...

    def token_text(self, token: int) -> str: ...

    def decode(self, ids: Sequence[int]) -> str: ...


_BROKEN = "\ufffd"  # the character that decoders write for bytes that are not (yet) UTF-8
_WINDOW = 64  # tokens that ``offsets`` decodes again and again while a text stays broken


class Decoder:
    """Decodes for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, control: Collection[int]) -> None:
        """``control``: ids that carry no text; may still grow."""
        self.tokenizer, self._control = tokenizer, control
        self._widths: dict[int, int] | None = {} if _is_byte_level(tokenizer) else None

    def raw_text(self, plain: list[int]) -> str:
        """The text of these ids, control tokens included."""
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
        context = start = 0  # plain[context:start] is decoded before each window plain[start:t + 1]
        length = before = 0  # characters of the text before the window; of the context
        for t, token in enumerate(plain):
            width = self._char_width(token)
            if start == t and width is not None:
                length, before, context, start = length + width, width, t, t + 1
                ends.append(length)
                continue
            piece = self.raw_text(plain[context : t + 1])[before:]
            shared = _common_prefix(piece, text, length)
            ends.append(length + shared)
            if shared == len(piece) and not piece.endswith(_BROKEN):
                context, start, length = start, t + 1, length + shared
                before = len(self.raw_text(plain[context:start]))
            elif shared == len(piece) and t - start >= _WINDOW and self._can_cut(plain, t + 1, text, length + shared):
                context = start = t + 1
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
    """Whether a text is the tokens' bytes in a row, read as UTF-8 (GPT-2, Llama 3, Qwen, the shipped base)."""
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    return isinstance(tokenizer, PreTrainedTokenizerFast) and isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel)


# -- Characters ↔ sampled tokens.


def char_to_tokens(offsets: Sequence[int], start: int, end: int) -> tuple[int, int]:
    """The smallest half-open range of tokens that holds the characters ``[start, end)``.

    A token that straddles an edge is included, and so are the tokens with the first bytes of the character at
    ``start``. An empty character range gives an empty token range.

    Args:
        offsets: ``[T]``, non-decreasing.
        start: first character, from 0.
        end: character behind the last one; start <= end <= offsets[-1].

    Raises ValueError when the range does not lie in the text.
    """
    last = offsets[-1] if offsets else 0
    if not 0 <= start <= end <= last:
        raise ValueError(f"characters [{start}, {end}) do not lie in a text of {last} characters")
    if start == 0:
        first = 0
    else:
        first = bisect_left(offsets, start)  # the token that completes character start - 1 ...
        first += offsets[first] == start  # ... holds no more than that, unless it straddles the edge
    if start == end:
        return first, first
    return first, bisect_left(offsets, end) + 1


# -- Stop strings: where a text ends that contains one.


_SLACK = 16  # characters before the longest stop string, read again with each token: enough for broken beginnings
_STRIDE = 8  # tokens that are dropped from what is read at a time


def stop_in(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Half-open range of characters of the stop string that ends a text; None where there is none."""
    hits = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    if not hits:
        return None
    end, start = min(hits)
    return start, end


class StopMatcher:
    """Reads a completion as it grows, through a window: linear in its tokens."""

    def __init__(self, stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        """``decode``: ids → text."""
        self._stops, self._decode = tuple(stops), decode
        self._longest = max(map(len, stops))
        self._window: list[int] = []
        self.seen = 0  # tokens that were read
        self.count: int | None = None  # tokens up to and with the one that completes a stop string

    def read(self, ids: Sequence[int]) -> int | None:
        """Take the next ids; returns ``count``."""
        for token in ids if self.count is None else ():
            self._window.append(token)
            self.seen += 1
            text = self._decode(self._window)
            if stop_in(text, self._stops) is not None:
                self.count = self.seen
                break
            if len(text) > 2 * (self._longest + _SLACK):
                while len(self._decode(self._window[_STRIDE:])) > self._longest + _SLACK:
                    del self._window[:_STRIDE]
        return self.count


# -- Several turns of a conversation as one sequence of tokens, for as long as each prompt begins with what is there.


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """Tokens with what they say, control tokens included."""

    ids: tuple[int, ...]
    text: str

    def new_ids(self, prompt: Sequence[Piece], renderer: Codec) -> tuple[int, ...] | None:
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
    prompt: Sequence[Piece], prompt_ids: tuple[int, ...], ids: tuple[int, ...], renderer: Codec
) -> TokenSequence:
    """The sequence of a prompt and what was sampled after it."""
    text = "".join(text for text, _ in prompt) + renderer.decode(ids)
    ended = bool(ids) and ids[-1] in renderer.stop_ids
    return TokenSequence(ids=(*prompt_ids, *ids), text=text + (renderer.token_text(ids[-1]) if ended else ""))
