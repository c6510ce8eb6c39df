"""The entropy of a token's distribution as a level from 0 to 91: coarse, but one character in the ledger.

Level q stands for (q / 22)² nats: steps of 0.002 nats near 0, of 0.09 near 1, up to 17 nats, the entropy of 26 million
equal choices. Levels are for looking at; nothing learns from them.
"""

from __future__ import annotations

MOST = 91  # the largest level
PER_ROOT = 22.0  # levels to the square root of a nat
_FIRST = 35  # "#", the character of level 0; level 91 is "~"
_UP = bytes(min(level + _FIRST, 126) for level in range(256))
_DOWN = bytes(max(code - _FIRST, 0) for code in range(256))


def nats_of(level: int) -> float:
    """The entropy that a level stands for."""
    return (level / PER_ROOT) ** 2


def as_text(levels: bytes) -> str:
    """One printable ASCII character a level."""
    return levels.translate(_UP).decode("ascii")


def from_text(text: str) -> bytes:
    """The inverse of ``as_text``. Raises ValueError for other characters."""
    levels = text.encode("ascii")
    if any(not _FIRST <= code <= _FIRST + MOST for code in levels):
        raise ValueError(f"entropies {text[:20]!r} hold characters beside those from '#' to '~'")
    return levels.translate(_DOWN)
