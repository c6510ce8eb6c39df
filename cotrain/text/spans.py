"""Converting between spans of characters and spans of sampled tokens.

``offsets[t]`` is the end, in characters of the decoded text, of what sampled token t completes (``Renderer.offsets``).
It never decreases; a token that only carries the first bytes of a character, or a control token, repeats the value
before it. So token t holds the characters ``[offsets[t-1], offsets[t])``, and where a character is spread over
several tokens, the last of them completes it.

Spans are found in the text of the tokens that were sampled; nothing is tokenised a second time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def char_to_tokens(offsets: Sequence[int], start: int, end: int) -> tuple[int, int]:
    """The smallest half-open range of tokens that holds the characters ``[start, end)``.

    Args: offsets [T], non-decreasing; 0 <= start <= end <= offsets[-1]. A token that straddles an edge is included, and
    so are the tokens with the first bytes of the character at ``start``. An empty character range gives an empty
    token range. Raises ValueError when the range does not lie in the text.
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
