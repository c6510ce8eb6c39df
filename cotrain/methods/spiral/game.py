"""The interface of a two-player game: states that know who moves, which moves are legal and what each player was paid.

::

    state = kuhn.starts()[0]                   mover 0, moves ("check", "bet")
    state.after("check").after("bet")          mover 0, moves ("fold", "call")
    state.after("bet").after("fold").payoff    +1 for player 0

What player 0 wins, player 1 loses. ``view`` is all that the mover knows, its own earlier moves included, so two states
with one view are one information set. A player who says anything but a legal move loses the most that can be lost,
``Game.stake``.

``exploitability`` (Johanson et al. 2011, "Accelerating best response calculation"): the mean over both seats of what a
best response wins against a player. It is 0 for a player who cannot be beaten in expectation, and exact: chance, both
players' moves and forfeits are enumerated. Left out: games of more than two, simultaneous moves, chance after the
start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from cotrain.core.errors import ConfigError

Behaviour = Mapping[str, Mapping[str, float]]  # view → move → probability; what is missing to 1 is forfeited
FORFEIT = 1e-12  # less than this is rounding


class State(Protocol):
    """One position, hashable."""

    @property
    def mover(self) -> int | None:
        """Who moves, 0 or 1; None when the game is over."""
        ...

    @property
    def moves(self) -> tuple[str, ...]:
        """The legal ones, () when the game is over."""
        ...

    @property
    def payoff(self) -> float:
        """What player 0 wins, when the game is over."""
        ...

    @property
    def view(self) -> str:
        """What the mover knows, in words."""
        ...

    def after_move(self, move: str) -> State: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """A game by name: its rules in words, where it may start, and what a player is asked to measure it."""

    name: str
    rules: str  # for models that have not been taught the game
    stake: float  # the most that can be lost
    starts: Callable[[], Sequence[State]]  # equally likely
    probed: Callable[[State], Sequence[State]]  # of a start: the states in which a player is asked for its move
    covered: bool = True  # are all information sets among those of all starts?
    perfect: bool = True  # does each player see everything?


def exploitability(game: Game, behaviour: Behaviour) -> float:
    """Half of what two best responses, one in each seat, win against ``behaviour`` together.

    Raises ConfigError for a view that ``behaviour`` says nothing of.
    """
    return (best_response(game, behaviour, 0) + best_response(game, behaviour, 1)) / 2


def best_response(game: Game, behaviour: Behaviour, seat: int) -> float:
    """The most that this seat can win against ``behaviour`` in the other one, in expectation over starts."""
    starts = game.starts()
    return _best_from(game, behaviour, seat, [(state, 1.0 / len(starts)) for state in starts])


def _best_from(game: Game, behaviour: Behaviour, seat: int, reached: Sequence[tuple[State, float]]) -> float:
    """``reached``: states with the probability that chance and the opponent lead there; I know nothing that tells them
    apart but the view."""
    expected, states_by_view = 0.0, {}  # type: ignore[var-annotated]
    todo = list(reached)
    while todo:
        state, weight = todo.pop()
        if state.mover is None:
            expected += weight * (state.payoff if seat == 0 else -state.payoff)
        elif state.mover == seat:
            states_by_view.setdefault(state.view, []).append((state, weight))
        else:
            move_chances = _move_probabilities(behaviour, state)
            todo += [(state.after_move(move), weight * p) for move, p in move_chances.items() if p > 0.0]
            forfeited = 1.0 - sum(move_chances.values())
            expected += weight * game.stake * (forfeited if forfeited > FORFEIT else 0.0)
    for states in states_by_view.values():
        moves = states[0][0].moves
        expected += max(
            _best_from(game, behaviour, seat, [(s.after_move(move), w) for s, w in states]) for move in moves
        )
    return expected


def _move_probabilities(behaviour: Behaviour, state: State) -> dict[str, float]:
    if state.view not in behaviour:
        raise ConfigError(f"nothing is known of a player's move at {state.view!r}; ask for one at every start")
    said = behaviour[state.view]
    return {move: said.get(move, 0.0) for move in state.moves}


@lru_cache(maxsize=100_000)
def perfect_value(state: State) -> float:
    """What player 0 wins when both play perfectly, in a game in which everybody sees everything."""
    if state.mover is None:
        return state.payoff
    values = [perfect_value(state.after_move(move)) for move in state.moves]
    return max(values) if state.mover == 0 else min(values)


def perfect_moves(state: State) -> tuple[str, ...]:
    """The moves that give nothing away."""
    best = perfect_value(state)
    return tuple(move for move in state.moves if perfect_value(state.after_move(move)) == best)
