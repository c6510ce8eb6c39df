"""Which problem a training step draws: a function of seed, stream and position, so that a run keeps no list of them."""

from __future__ import annotations

from cotrain.core.address import seed_of
from cotrain.core.types import Task, TaskSource


def train_task(source: TaskSource, seed: int, stream: str, position: int) -> Task:
    """The ``position``-th training problem of a stream. An endless source is drawn from by hash; a finite one is gone
    through in a new order each epoch, by a Feistel walk that needs no list."""
    size = source.size("train")
    if size is None:
        return source.get("train", seed_of("draw", seed, stream, position) % 2**40)
    epoch, place = divmod(position, size)
    return source.get("train", permuted(place, size, seed_of("epoch", seed, stream, epoch)))


def permuted(place: int, size: int, key: int) -> int:
    """A permutation of ``range(size)`` by cycle walking over a four-round Feistel network; constant memory."""
    half = max(1, (size - 1).bit_length() + 1) // 2 + 1
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(4):
            left, right = right, left ^ (seed_of(key, turn, right) & mask)
        place = (left << half) | right
        if place < size:
            return place
