"""Kuhn poker (Kuhn 1950): three cards, one bet, and bluffing.

Each player antes 1 chip and is dealt one of J, Q, K. A bet is 1 chip. Player 0 checks or bets; after a check player 1
may check, which shows the cards, or bet. Who faces a bet folds or calls. With perfect play player 0 loses 1/18 of a
chip a game.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from cotrain_zoo.spiral.game import Game, State

CARDS = "JQK"  # from the lowest
WITHOUT_BET = ("check", "bet")  # moves as long as nobody has bet
AFTER_BET = ("fold", "call")


@dataclass(frozen=True, slots=True)
class Kuhn:
    """A deal and the moves so far."""

    cards: tuple[str, str]
    history: tuple[str, ...] = ()  # moves so far

    @property
    def mover(self) -> int | None:
        return len(self.history) % 2 if self.moves else None

    @property
    def moves(self) -> tuple[str, ...]:
        if self.history in ((), ("check",)):
            return WITHOUT_BET
        return AFTER_BET if self.history[-1] == "bet" else ()

    @property
    def payoff(self) -> float:
        if self.history[-1] == "fold":
            return 1.0 if len(self.history) == 2 else -1.0  # a player who folds has put in the ante alone
        chips = 2.0 if self.history[-1] == "call" else 1.0
        return chips if CARDS.index(self.cards[0]) > CARDS.index(self.cards[1]) else -chips

    @property
    def view(self) -> str:
        mover = len(self.history) % 2
        return f"Card {self.cards[mover]}. {', '.join(self.history) or 'nothing'} so far. {' or '.join(self.moves)}?"

    def after_move(self, move: str) -> Kuhn:
        return Kuhn(self.cards, (*self.history, move))


def start_states() -> tuple[State, ...]:
    return tuple(Kuhn((a, b)) for a, b in permutations(CARDS, 2))


def decision_states(start: State) -> tuple[State, ...]:
    """All four states of a deal in which a player decides."""
    decisions: list[State] = [start]
    for state in decisions:  # grows as it is walked through
        for move in state.moves:
            later = state.after_move(move)
            if later.moves:
                decisions.append(later)
    return tuple(decisions)


KUHN = Game(
    name="kuhn",
    rules=(
        "Kuhn poker. Each of two players has put 1 chip into the pot and holds one card: J, Q or K, of which K is the "
        "highest. A bet is 1 chip. The first player checks or bets. After a check the second player may check, which "
        "shows the cards, or bet. Who faces a bet folds, which gives the pot away, or calls, which shows the cards. "
        "The higher card wins the pot."
    ),
    stake=2.0,
    starts=start_states,
    probed=decision_states,
    covered=True,
)
