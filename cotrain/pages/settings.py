"""Settings of a run as one flat table, so that two runs can be laid side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted path → value. Parts of a list that have names, as phases have, go by their names; other lists, and what is
    empty, are values."""
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
        value = {str(one["name"]): {key: inside for key, inside in one.items() if key != "name"} for one in value}
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    found: dict[str, Any] = {}
    for key, inside in value.items():
        found |= flat(inside, f"{path}.{key}" if path else str(key))
    return found


def word(value: Any) -> str:
    """A value as a page and a terminal show it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(word, value)) or "none"
    return str(value)
