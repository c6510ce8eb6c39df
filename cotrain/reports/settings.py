"""Settings of a run as one flat table, so that two runs can be laid side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten_settings(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted path → value. Parts of a list that have names, as phases have, go by their names; other lists, and what is
    empty, are values."""
    if isinstance(value, list) and value and all(isinstance(part, Mapping) and "name" in part for part in value):
        parts = {}
        for part in value:
            parts[str(part["name"])] = {key: inside for key, inside in part.items() if key != "name"}
        value = parts
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    flat_values: dict[str, Any] = {}
    for key, inside in value.items():
        flat_values |= flatten_settings(inside, f"{path}.{key}" if path else str(key))
    return flat_values


def value_text(value: Any) -> str:
    """A value as a page and a terminal show it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(value_text, value)) or "none"
    return str(value)
