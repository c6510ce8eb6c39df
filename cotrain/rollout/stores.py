"""Stores: what a run collects over its steps, such as a pool of problems that a model has written.

A store is a frozen value. A phase that names it (``Phase.stores``) passes it to its protocol as a keyword argument, as
it was when the step began; so no episode sees what another one of its step has added, and order and latency change
nothing. What enters it is written on turns, as findings (``MINTED``, ``REPLAYED``), and read from the step's traces in
address order when the step is over. A store is part of every checkpoint.

``TaskPool`` is the one store of the package that protocols are passed (``data/curriculum.py`` has one that decides
which problems are drawn). A problem enters once: its signature tells it from those that are there, and a replay only
brings its record up to date.

A store of another kind is a class with the same four methods, ``METHODS``; docs/method-changes.md writes one. What they
return is checked: ``store_after`` after each step, ``complete_state`` before each checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.core.notes import Finding
from cotrain.core.types import Episode, State, Store, take_fields

METHODS = ("with_episodes", "metrics", "state", "restore_state")  # of a store

MINTED = Finding[tuple[str, str, str, float]](
    "minted", tuple[str, str, str, float], "a new problem: text, answer, signature and share of solvers that were right"
)
REPLAYED = Finding[tuple[str, float]]("replayed", tuple[str, float], "signature of an old problem, and that share now")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolProblem:
    """A problem of the pool."""

    problem: str
    answer: str
    signature: str  # equal for two problems that count as the same
    solved: float  # share of solvers that were right, when it was asked last
    born: int  # step
    source: str  # address of the turn that wrote it
    played: int = 1  # times


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPool:
    """Problems in the order in which they came; of more than ``cap`` the oldest leave."""

    cap: int = 16384  # most problems that are kept; the value of Absolute Zero
    items: tuple[PoolProblem, ...] = ()

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise ConfigError(f"TaskPool: cap is {self.cap}, expected at least 1", code="E_POOL_CAP")

    @property
    def signatures(self) -> frozenset[str]:
        return frozenset(item.signature for item in self.items)

    def draw_problem(self, rng: Random, *, below: float = 1.0) -> PoolProblem | None:
        """One of the problems whose share of right answers is at most ``below``; None where there is none."""
        candidates = [item for item in self.items if item.solved <= below]
        if not candidates:
            return None
        return rng.choice(candidates)

    def with_episodes(self, episodes: Sequence[Episode], step: int) -> TaskPool:
        """The pool with the problems that these episodes wrote, and with new records of those that they replayed."""
        items = {item.signature: item for item in self.items}
        for episode in episodes:
            for trace in episode.traces:
                minted = MINTED.of(trace)
                if minted is not None:
                    problem, answer, signature, solved = minted
                    new_item = PoolProblem(
                        problem=problem,
                        answer=answer,
                        signature=signature,
                        solved=solved,
                        born=step,
                        source=str(trace.address),
                    )
                    items.setdefault(signature, new_item)

                replayed = REPLAYED.of(trace)
                if replayed is not None:
                    signature, solved = replayed
                    if signature in items:
                        item = items[signature]
                        items[signature] = replace(item, solved=solved, played=item.played + 1)
        return replace(self, items=tuple(items.values())[-self.cap :])

    def metrics(self) -> dict[str, float]:
        size = len(self.items)
        metrics = {"size": float(size)}
        if size:
            metrics["solved"] = sum(item.solved for item in self.items) / size
        return metrics

    def state(self) -> State:
        return {"items": [asdict(item) for item in self.items]}

    def restore_state(self, state: State) -> TaskPool:
        (items,) = take_fields("a pool of problems", state, "items")
        names = tuple(PoolProblem.__slots__)
        problems = []
        for item in items:
            values: dict[str, Any] = dict(zip(names, take_fields("a problem", item, *names), strict=True))
            problems.append(PoolProblem(**values))
        return replace(self, items=tuple(problems))


# -- Checks of stores, which may be a user's own.


def missing_methods(store: object) -> list[str]:
    """The methods of a store that an object does not have."""
    return [method for method in METHODS if not callable(getattr(store, method, None))]


def store_after(name: str, store: Store, episodes: Sequence[Episode], step: int) -> Store:
    """The store after a step. Raises ConfigError where it is none, was changed in place, or has metrics that are no
    numbers. ``name``: its name in the recipe."""
    metrics_before = _metrics_of(name, store)
    after = store.with_episodes(episodes, step)
    missing = missing_methods(after)
    if missing:
        raise ConfigError(
            f"store {name!r}: with_episodes of {type(store).__name__} returned a {type(after).__name__}, which has no "
            f"{missing[0]}; expected the store as it is after the step, as dataclasses.replace(self, …) makes it",
            code="E_STORE_RETURNED",
        )
    if after is store and _as_text(_metrics_of(name, after)) != _as_text(metrics_before):
        raise ConfigError(
            f"store {name!r}: with_episodes of {type(store).__name__} changed the store in place, where a step that is "
            "repeated would add its episodes twice; return a new one, as dataclasses.replace(self, …) makes it",
            code="E_STORE_CHANGED_IN_PLACE",
        )
    _metrics_of(name, after)
    return after


def _metrics_of(name: str, store: Store) -> Mapping[str, float]:
    metrics: Any = store.metrics()
    are_numbers = isinstance(metrics, Mapping) and all(isinstance(value, int | float) for value in metrics.values())
    if not are_numbers:
        raise ConfigError(
            f"store {name!r}: metrics of {type(store).__name__} returned {metrics!r}; expected {{name: number}}",
            code="E_STORE_METRICS",
        )
    return metrics


def complete_state(name: str, store: Store, initial: Store) -> State:
    """The state of a store, for a checkpoint. Raises ConfigError for a store whose state is still that of the beginning
    although its metrics are others: a resumed run would go on with less. ``initial``: the store with which a resumed
    run begins."""
    state = store.state()
    try:
        state_text = json.dumps(state)
    except (TypeError, ValueError):
        return state  # whoever writes the checkpoint says which value is none of JSON
    if state_text != json.dumps(initial.state()):
        return state  # metrics may be those of the last step, which no state needs to hold
    restored = initial.restore_state(json.loads(state_text))
    was = _as_text(_metrics_of(name, store))
    becomes = _as_text(_metrics_of(name, restored))
    if was != becomes:
        raise ConfigError(
            f"store {name!r}: state of {type(store).__name__} does not hold all of it, or restore_state leaves "
            f"something out: its metrics are {was}, and {becomes} once it is restored; put all that is to be "
            "kept into the state",
            code="E_STORE_STATE_INCOMPLETE",
        )
    return state


def _as_text(metrics: Mapping[str, float]) -> str:
    """Metrics as text: two that are not a number are equal."""
    return json.dumps(dict(metrics), sort_keys=True)
