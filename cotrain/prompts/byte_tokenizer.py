"""A tokenizer of bytes, for policies that are programs: one token is one byte of UTF-8, and 256 ends a turn."""

from __future__ import annotations

from collections.abc import Sequence

from cotrain.prompts.chat_template import Message
from cotrain.prompts.decoding import Piece

STOP = 256


class ByteRenderer:
    """The methods of a ``Renderer`` that rollouts need, for texts as they are."""

    stop_ids: tuple[int, ...] = (STOP,)
    vocabulary: int = STOP + 1

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The contents of the messages, a reply behind its prompt and others on a line of their own, as bytes [P]; a
        single stop token where there are none."""
        return self.encode_pieces(self.prompt_pieces(messages))

    def prompt_pieces(self, messages: Sequence[Message]) -> list[Piece]:
        return [("\n" * (i > 0 and m.role != "assistant") + m.content, "content") for i, m in enumerate(messages)]

    def encode_pieces(self, pieces: Sequence[Piece], before: str = "") -> tuple[int, ...]:
        return tuple("".join(text for text, _ in pieces).encode()) or (STOP,)

    def token_text(self, token: int) -> str:
        return self.decode([token])

    def encode(self, text: str, before: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(text.encode())

    def encode_reply(self, text: str, prompt: Sequence[int]) -> tuple[int, ...]:
        return (*self.encode(text), STOP)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids below 256; bytes that are not UTF-8 become U+FFFD."""
        return bytes(i for i in ids if i < STOP).decode(errors="replace")

    def offsets(self, ids: Sequence[int]) -> list[int]:
        """For each token [T] the end, in characters, of the text up to and with it; within a character its start."""
        ends, length = [], 0
        for i in ids:
            length += int(i < 128 or 192 <= i < STOP)  # the first byte of a character
            ends.append(length)
        return ends
