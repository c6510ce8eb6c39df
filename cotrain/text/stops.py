"""Stop strings: where a sampled text ends that contains one.

Of several stop strings the one that is complete first ends the text, of equals the longest: so it is the same one
whether a text is read token by token or at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_SLACK = (
    16  # characters before the longest stop string that are read again with each token: enough for broken beginnings
)
_STRIDE = 8  # tokens that are dropped from what is read at a time


def stop_in(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Half-open range of characters of the stop string that ends a text; None where there is none."""
    hits = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    if not hits:
        return None
    end, start = min(hits)
    return start, end


class StopWatch:
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
