"""Which problem a training step draws: a function of seed, stream and position, so that no list of them is kept."""

from __future__ import annotations

from cotrain.core.address import permuted_index, seed_of
from cotrain.core.types import Task, TaskSource


def train_task(source: TaskSource, seed: int, stream: str, position: int, split: str = "train") -> Task:
    """The ``position``-th training problem of a stream. An endless source is drawn from by hash; a finite one is gone
    through in a new order each epoch, by a Feistel walk that needs no list."""
    size = source.size(split)
    if size is None:
        return source.get(split, seed_of("draw", seed, stream, position) % 2**40)
    epoch, place = divmod(position, size)
    return source.get(split, permuted_index(place, size, seed_of("epoch", seed, stream, epoch)))
