"""The entropy of a token's distribution as a level from 0 to 91: coarse, but one character in the ledger.

Level q stands for (q / 22)² nats: steps of 0.002 nats near 0, of 0.09 near 1, up to 17 nats, the entropy of 26 million
equal choices. Levels are for looking at; nothing learns from them.
"""

from __future__ import annotations

MAX_LEVEL = 91
LEVELS_PER_ROOT_NAT = 22.0  # level = 22 · √entropy
_LOWEST_CODE = ord("#")  # the character of level 0
_HIGHEST_CODE = _LOWEST_CODE + MAX_LEVEL  # "~", the last printable character
# Tables for ``bytes.translate``.
_CODE_OF_LEVEL = bytes(min(level + _LOWEST_CODE, _HIGHEST_CODE) for level in range(256))
_LEVEL_OF_CODE = bytes(max(code - _LOWEST_CODE, 0) for code in range(256))


def nats_of(level: int) -> float:
    """The entropy that a level stands for."""
    return (level / LEVELS_PER_ROOT_NAT) ** 2


def as_text(levels: bytes) -> str:
    """Levels, a byte each, as a printable ASCII character each."""
    return levels.translate(_CODE_OF_LEVEL).decode("ascii")


def from_text(text: str) -> bytes:
    """The inverse of ``as_text``. Raises ValueError for other characters."""
    codes = text.encode("ascii")
    if any(not _LOWEST_CODE <= code <= _HIGHEST_CODE for code in codes):
        raise ValueError(f"entropies {text[:20]!r} hold characters beside those from '#' to '~'")
    return codes.translate(_LEVEL_OF_CODE)
