"""Settings of a run as one flat table, so that two runs can be laid side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten_settings(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted path → value. A list whose items have a "name", such as the phases, counts as a table by name. Any other
    list is a value, and so is an empty table."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        by_name = {}
        for item in value:
            by_name[str(item["name"])] = {key: inner for key, inner in item.items() if key != "name"}
        value = by_name
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    flat_values: dict[str, Any] = {}
    for key, inner in value.items():
        flat_values |= flatten_settings(inner, f"{path}.{key}" if path else str(key))
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
