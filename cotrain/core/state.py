"""Explicit state: whoever owns mutable state has ``state()`` and ``load()``, and ``load`` takes all of it or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotrain.core.errors import StateError

State = dict[str, Any]  # JSON values only; tensors are saved beside it, by name


def take_fields(owner: str, state: Mapping[str, Any], *fields: str) -> list[Any]:
    """Return ``[state[f] for f in fields]`` and refuse missing and unknown fields alike.

    Raises StateError, naming the owner and every field that is missing or unknown.
    """
    missing = [f for f in fields if f not in state]
    unknown = [f for f in state if f not in fields]
    if missing or unknown:
        raise StateError(
            f"state of {owner} does not fit: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}"
        )
    return [state[f] for f in fields]
