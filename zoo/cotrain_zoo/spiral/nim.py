"""Nim (Bouton 1901): who takes the last stone wins.

A move takes any number of stones from one pile: "B2" takes two from the second. The player to move loses against
perfect play exactly when the exclusive or of the piles is 0. Games start at every position of three piles of up to
``LARGEST``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from cotrain_zoo.spiral.game import Game, State

PILES, LARGEST = "ABC", 3


@dataclass(frozen=True, slots=True)
class Nim:
    """Piles, and who moves."""

    piles: tuple[int, ...]
    turn: int = 0

    @property
    def mover(self) -> int | None:
        return self.turn if any(self.piles) else None

    @property
    def moves(self) -> tuple[str, ...]:
        return tuple(f"{name}{n}" for name, pile in zip(PILES, self.piles, strict=True) for n in range(1, pile + 1))

    @property
    def payoff(self) -> float:
        return -1.0 if self.turn == 0 else 1.0  # the other one took the last stone

    @property
    def view(self) -> str:
        return f"Piles {', '.join(f'{name} {pile}' for name, pile in zip(PILES, self.piles, strict=True))}."

    def after_move(self, move: str) -> Nim:
        place = PILES.index(move[0])
        n_stones = int(move[1:])
        piles = tuple(pile - n_stones if i == place else pile for i, pile in enumerate(self.piles))
        return Nim(piles, 1 - self.turn)


def start_states() -> tuple[State, ...]:
    return tuple(Nim(piles) for piles in product(range(LARGEST + 1), repeat=len(PILES)) if any(piles))


NIM = Game(
    name="nim",
    rules=(
        "Nim. There are three piles of stones, A, B and C. Two players move in turn. A move takes one or more stones "
        "from one pile: A2 takes two stones from pile A. Who takes the last stone wins."
    ),
    stake=1.0,
    starts=start_states,
    probed=lambda start: (start,),
    covered=True,
    perfect=True,
)
