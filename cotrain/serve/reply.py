"""The text of a reply while its tokens come in: stop strings, and what may be shown already.

Of several stop strings the one that is complete first ends the text, of equals the longest: so it is the same one
whether the text is read token by token or at its end. What could still become a stop string, or the rest of a
character, is held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotrain.text.render import Rendering

_BROKEN = "\ufffd"


class Reply:
    """Reads one reply. ``text`` is what may be shown so far; ``count`` of the ids make it up once it is stopped."""

    def __init__(self, renderer: Rendering, stops: Sequence[str]) -> None:
        self._renderer, self._stops = renderer, stops
        self.text, self.stopped, self.count = "", False, 0

    def read(self, ids: Sequence[int], *, final: bool = False) -> str:
        """Take all ids so far and return what is new of the text; of stopped replies nothing."""
        if self.stopped:
            return ""
        before, text = len(self.text), self._renderer.decode(ids)
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        self.count = len(ids)
        if found:
            end, start = min(found)
            self.stopped, self.text = True, text[:start]
            ends = self._renderer.offsets(ids)
            self.count = next(t for t, here in enumerate(ends, 1) if here >= end)
        else:
            self.text = text if final else _certain(text, self._stops)
        return self.text[before:]


def _certain(text: str, stops: Sequence[str]) -> str:
    """The text without a last character that is not complete, and without an end that a stop string begins with."""
    text = text.rstrip(_BROKEN)
    held = (k for stop in stops for k in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:k]))
    return text[: len(text) - max(held, default=0)]
