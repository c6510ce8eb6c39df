"""Arrays of floats as text that keeps every bit."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence


def encode_floats(values: Sequence[float]) -> str:
    """Bits in base64, little-endian: float32 where that loses nothing, float64 where it would."""
    exact = array("d", values)
    short = array("f", values)
    kind, bits = ("f4", short) if array("d", short).tobytes() == exact.tobytes() else ("f8", exact)
    if sys.byteorder == "big":
        bits.byteswap()
    return f"{kind}:{base64.b64encode(bits.tobytes()).decode('ascii')}"


def decode_floats(text: str) -> tuple[float, ...]:
    """The inverse of ``encode_floats``. Raises ValueError."""
    bits = array({"f4:": "f", "f8:": "d"}.get(text[:3], "?"))
    bits.frombytes(base64.b64decode(text[3:], validate=True))
    if sys.byteorder == "big":
        bits.byteswap()
    return tuple(bits)
