"""State that can be saved: whoever owns mutable state has ``state()`` and ``load()``, and ``load`` takes all of it or
none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cotrain.core.errors import StateError
from cotrain.core.types import Episode

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


class Store(Protocol):
    """Something that a run collects and that grows from step to step (``rollout/stores.py``)."""

    def with_episodes(self, episodes: Sequence[Episode], step: int) -> Store:
        """The store when the episodes of a step are over."""
        ...

    def metrics(self) -> dict[str, float]: ...

    def state(self) -> State: ...

    def restore_state(self, state: State) -> Store:
        """The store that gave this state. Raises StateError."""
        ...
