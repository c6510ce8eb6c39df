"""Addressed randomness: the seed of a draw is a hash of where the draw happens, never the state of a generator.

There is no random state to save, so resuming is exact by construction, and the order in which things happen
cannot change what is drawn (the rule of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

import hashlib
import random
import sys
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


def global_draws() -> tuple[object, ...]:
    """The state of the generators that a process shares, Python's and numpy's: equal at two moments if nobody drew from
    them in between. Nothing of cotrain's does."""
    states: list[object] = [random.getstate()]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, words, place, *_ = numpy.random.get_state()
        states.append((words.tobytes(), place))
    return tuple(states)


def permuted_index(index: int, size: int, key: int) -> int:
    """Where a permutation of ``range(size)`` sends an index. Each key gives another permutation; none is ever stored.

    A four-round Feistel network permutes the numbers of 2·``half_bits`` bits, of which there are ``size`` or more. It
    is applied until the result is below ``size`` (cycle walking: Black & Rogaway 2002, "Ciphers with arbitrary finite
    domains")."""
    half_bits = max(1, (size - 1).bit_length() + 1) // 2 + 1
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for round_number in range(4):
            left, right = right, left ^ (seed_of(key, round_number, right) & mask)
        index = (left << half_bits) | right
        if index < size:
            return index


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Address:
    """The place of one call of a role in a run. Sums run in the order of addresses."""

    step: int  # training step, or -1 outside of training
    task: int  # position of the task in the step's draw
    member: int  # index among the G episodes of this task
    role: str  # role that spoke
    call: int  # number of earlier calls of this role in the episode
    # The turn in this call's conversation: () is the first one, (2,) the third. A fork adds the number of the turn that
    # it begins in the place of, and its own number among the forks of its conversation: (2, 0, 1) is the second turn of
    # the first fork.
    path: tuple[int, ...] = ()

    def __str__(self) -> str:
        call = ".".join(str(number) for number in (self.call, *self.path))
        return f"{self.step}:{self.task}:{self.member}:{self.role}:{call}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """The inverse of ``str(address)``; raises ValueError on anything else."""
        step, task, member, role, call_and_path = text.split(":")
        call, *path = (int(number) for number in call_and_path.split("."))
        return cls(step=int(step), task=int(task), member=int(member), role=role, call=call, path=tuple(path))

    def later_turn(self, turns: int) -> Address:
        """The address of the turn that comes ``turns`` turns later in the same conversation."""
        *fork, turn = self.path or (0,)
        later = turn + turns
        is_first_turn = not fork and later == 0
        return replace(self, path=() if is_first_turn else (*fork, later))


def make_nonce(seed: int, address: Address | str) -> str:
    """The mark that shows a judge where a text begins and ends (``formats/nonce.py``): 8 hex digits, from the run's
    seed and the address of that text, or of the turn that shows it.

    A resumed run shows the same mark, as the address is the same; each step has other addresses, so that no policy can
    learn a mark.
    """
    return f"{seed_of('nonce', seed, str(address)):016x}"[-NONCE_LENGTH:]
