"""Streaming a reply: the part of its text that can be shown already. The stop string is never shown, and what could
still become one, or the rest of a character, is held back."""

from __future__ import annotations

from collections.abc import Sequence

from cotrain.text.decoding import stop_in
from cotrain.text.render import Rendering

_BROKEN = "\ufffd"


class StreamedReply:
    """Reads one reply. ``text`` is what may be shown so far."""

    def __init__(self, renderer: Rendering, stops: Sequence[str]) -> None:
        self._renderer, self._stops = renderer, stops
        self.text = ""

    def read_new_text(self, ids: Sequence[int], *, final: bool = False) -> str:
        """Take all ids so far and return what is new of the text."""
        before, text = len(self.text), self._renderer.decode(ids)
        stop = stop_in(text, self._stops)
        if stop is not None:
            self.text = text[: stop[0]]
        else:
            self.text = text if final else _certain_text(text, self._stops)
        return self.text[before:]


def _certain_text(text: str, stops: Sequence[str]) -> str:
    """The text without a last character that is not complete, and without an end that a stop string begins with."""
    text = text.rstrip(_BROKEN)
    held = (k for stop in stops for k in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:k]))
    return text[: len(text) - max(held, default=0)]
