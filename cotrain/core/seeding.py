"""Addressed randomness: the seed of a draw is a hash of where the draw happens, never the state of a generator.

There is no random state to save, so resuming is exact by construction, and the order in which things happen
cannot change what is drawn (the rule of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace

Part = str | int | float | bool | None

NONCE_LENGTH = 8  # hexadecimal characters: 32 bits


def seed_of(*parts: Part) -> int:
    """Hash coordinates to a seed in [0, 2**63).

    Every part is written with its type and length, so that ``("a", "bc")`` differs from ``("ab", "c")`` and ``1``
    from ``"1"``.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"{type(part).__name__}:{part!r}"
        digest.update(f"{len(text)}|{text}".encode())
    return int.from_bytes(digest.digest(), "big") >> 1


def rng_of(*parts: Part) -> random.Random:
    """A Python generator that belongs to these coordinates alone; use it and throw it away."""
    return random.Random(seed_of(*parts))


def permuted_index(place: int, size: int, key: int) -> int:
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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Address:
    """The place of one call of a role in a run. Sums run in the order of addresses."""

    step: int  # training step, or -1 outside of training
    task: int  # position of the task in the step's draw
    member: int  # index among the G episodes of this task
    role: str  # role that spoke
    call: int  # number of earlier calls of this role in the episode
    path: tuple[int, ...] = ()  # () for a call's first turn; further ones: (turn,), in forks (turn, fork, turn) …

    def __str__(self) -> str:
        call = ".".join(str(number) for number in (self.call, *self.path))
        return f"{self.step}:{self.task}:{self.member}:{self.role}:{call}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """The inverse of ``str(address)``; raises ValueError on anything else."""
        step, task, member, role, place = text.split(":")
        call, *path = (int(number) for number in place.split("."))
        return cls(step=int(step), task=int(task), member=int(member), role=role, call=call, path=tuple(path))

    def later_turn(self, turns: int) -> Address:
        """The address of the turn that comes ``turns`` turns later in the same conversation."""
        *fork, turn = self.path or (0,)
        return replace(self, path=(*fork, turn + turns) if fork or turn + turns else ())


def make_nonce(seed: int, address: Address | str) -> str:
    """The mark of one showing of a text to a judge (``formats/nonce.py``), from the run's
    seed and the address of what is shown (or of the showing): 8 hex digits.

    Addressed, so that a resumed run shows the same text; another at every step, so that none can be learned.
    """
    return f"{seed_of('nonce', seed, str(address)):016x}"[-NONCE_LENGTH:]
