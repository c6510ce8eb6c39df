"""Stores: what a run collects over its steps, such as a pool of problems that a model has written.

A store is a frozen value. A phase that names it (``Phase.stores``) passes it to its protocol as a keyword argument, as
it was when the step began; so no episode sees what another one of its step has added, and order and latency change
nothing. What enters it is written on turns, as findings (``MINTED``, ``REPLAYED``), and read from the step's traces in
address order when the step is over. A store is part of every checkpoint.

``TaskPool`` is the one store that protocols are passed so far (``data/curriculum.py`` has one that decides which
problems are drawn). A problem enters once: its signature tells it from those that are there, and a
replay only brings its record up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.core.notes import Finding
from cotrain.core.types import Episode, State, take_fields

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
