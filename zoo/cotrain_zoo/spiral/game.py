"""The interface of a two-player game: states that know who moves, which moves are legal and what each player was paid.

::

    state = kuhn.starts()[0]                   mover 0, moves ("check", "bet")
    state.after_move("check").after_move("bet")          mover 0, moves ("fold", "call")
    state.after_move("bet").after_move("fold").payoff    +1 for player 0

What player 0 wins, player 1 loses. ``view`` is all that the mover knows, its own earlier moves included, so states with
the same view are one information set. A player who says anything but a legal move loses ``Game.stake``, the most that
can be lost. A game of your own is a ``Game`` in a file, ``--game my_file.py:GAME``. Where a state raises or has no
moves, and where a game never ends, the game fails with a reason (``GameFault``).

``exploitability`` (Johanson et al. 2011, "Accelerating best response calculation") is what a best response wins against
a player, as the mean over both seats. It is 0 for a player who cannot be beaten in expectation. It is exact: chance,
both players' moves and forfeits are enumerated.

Left out: games of more than two, simultaneous moves, and chance after the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

from cotrain.core.errors import ConfigError
from cotrain.core.user_code import INTERRUPTS, failure_of, failure_reason
from cotrain.rollout.role import LARGEST

T = TypeVar("T")
MOST_POSITIONS = 100_000  # positions of a game whose tree may be searched
Behaviour = Mapping[str, Mapping[str, float]]  # view → move → probability; what is missing to 1 is forfeited
ROUNDING = 1e-12  # a smaller share is no forfeit


class State(Protocol):
    """One position, hashable."""

    @property
    def mover(self) -> int | None:
        """Who moves, 0 or 1; None when the game is over."""
        ...

    @property
    def moves(self) -> tuple[str, ...]:
        """The legal moves, () when the game is over."""
        ...

    @property
    def payoff(self) -> float:
        """The payoff of player 0, when the game is over."""
        ...

    @property
    def view(self) -> str:
        """The information that the mover has, in words."""
        ...

    def after_move(self, move: str) -> State: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """A game: its name, its rules in words, where it may start, and what can be measured of a player."""

    name: str
    rules: str  # for models that have not been taught the game
    stake: float  # the most that can be lost
    starts: Callable[[], Sequence[State]]  # equally likely; the same at each call
    # Given a start, the states in which an evaluation asks a player for one move.
    probed: Callable[[State], Sequence[State]] = lambda start: ()
    covered: bool = False  # all information sets are probed and the tree is small: measure exploitability
    perfect: bool = False  # each player sees everything and the positions are few: measure perfect moves
    most_moves: int = 200  # a game that goes on for longer has no result


class GameFault(Exception):
    """Why a game has no result: a short phrase, which is also a metric's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The properties of a ``State``, read once and checked."""

    mover: int | None
    moves: tuple[str, ...] = ()
    view: str = ""
    payoff: float = 0.0


def ask_game(question: Callable[[], T]) -> T:
    """Call into a user's own game. Raises GameFault in the place of whatever it raises."""
    try:
        return question()
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise GameFault(failure_reason("game", error)) from error


def read_position(game: Game, state: State) -> Position:
    """Read a state: who moves and how, or the end and its payoff. Raises GameFault for one that breaks the rules of
    ``State``."""
    mover = ask_game(lambda: state.mover)
    if mover is None:
        payoff = ask_game(lambda: float(state.payoff))
        if not abs(payoff) <= game.stake:
            raise GameFault("game: payoff beyond the stake")
        return Position(mover=None, payoff=payoff)
    moves = ask_game(lambda: tuple(state.moves))
    view = ask_game(lambda: state.view)
    if not isinstance(view, str):
        raise GameFault("game: view is no text")
    if mover not in (0, 1):
        raise GameFault("game: mover is not 0, 1 or None")
    if not moves:
        raise GameFault("game: no moves")
    if not all(isinstance(move, str) and move and move == move.strip() and ", " not in move for move in moves):
        raise GameFault("game: a move is no plain text")
    return Position(mover=mover, moves=moves, view=view)


def check_game(game: object) -> Game:
    """Raise ConfigError for what cannot be played: no ``Game``, a start that is no position, or a tree that is too
    large to be searched for what it wants measured."""
    if not isinstance(game, Game):
        raise ConfigError(
            f"spiral: game is {game!r}; expected a cotrain_zoo.spiral.Game, as my_file.py:NAME", code="E_NOT_GAME"
        )
    where = f"spiral: game {game.name!r}"
    for name, is_valid, expected in (
        ("name", isinstance(game.name, str) and game.name.isidentifier(), "a word"),
        ("rules", isinstance(game.rules, str) and game.rules.strip() != "", "the rules in words"),
        ("stake", isinstance(game.stake, int | float) and 0 < game.stake <= LARGEST, f"above 0 and up to {LARGEST:g}"),
        ("starts", callable(game.starts), "a function that returns states"),
        ("probed", callable(game.probed), "a function of a start that returns states"),
        ("most_moves", isinstance(game.most_moves, int) and game.most_moves > 0, "a whole number above 0"),
    ):
        if not is_valid:
            raise ConfigError(f"{where}: {name} is {getattr(game, name)!r}; expected {expected}", code="E_GAME_FIELD")
    try:
        _try_game(game)
    except Exception as error:  # a user's code
        is_our_finding = isinstance(error, GameFault) and error.__cause__ is None
        why = str(error).removeprefix("game: ") if is_our_finding else failure_of(error.__cause__ or error)
        raise ConfigError(f"{where}: {why}", code="E_GAME_BROKEN") from error
    return game


def _try_game(game: Game) -> None:
    """Make one move from every start, read every probed state, and measure what the game wants measured. Raises
    GameFault for what breaks the rules of ``Game``, and whatever a user's code raises."""
    starts = tuple(game.starts())
    starts_again = tuple(game.starts())
    positions = [read_position(game, start) for start in starts]
    for start, position in zip(starts, positions, strict=True):
        if position.mover is None:
            raise GameFault(f"a start is the end of a game, {start!r}")
        hash(start)
        read_position(game, start.after_move(position.moves[0]))

    uniform_play: dict[str, dict[str, float]] = {}  # view → move → probability
    for start in starts:
        for state in game.probed(start):
            position = read_position(game, state)
            if position.mover is None:
                raise GameFault(f"a probed state is the end of a game, {state!r}")
            uniform_play[position.view] = dict.fromkeys(position.moves, 1.0 / len(position.moves))

    if not starts or [start.view for start in starts_again] != [position.view for position in positions]:
        raise GameFault("starts() gives no start, or other ones when it is called again")
    for is_wanted, distinct in ((game.covered, False), (game.perfect, True)):
        if is_wanted and _count_positions(starts, distinct=distinct) > MOST_POSITIONS:
            raise GameFault(
                f"more than {MOST_POSITIONS} positions, too many to search for exploitability (covered=True) or "
                "perfect moves (perfect=True); leave them out"
            )
    if game.perfect:
        for start in starts:
            perfect_value(start)
    if game.covered:
        exploitability(game, uniform_play)


def _count_positions(starts: Sequence[State], *, distinct: bool) -> int:
    """The number of positions; one above ``MOST_POSITIONS`` stands for any larger number.

    ``distinct``: a position that is reached in several ways counts once, else each time.
    """
    known_states = set()
    todo = list(starts)
    count = 0
    while todo and count <= MOST_POSITIONS:
        state = todo.pop()
        if distinct:
            if state in known_states:
                continue
            known_states.add(state)
        count += 1
        if state.mover is not None:
            todo += [state.after_move(move) for move in state.moves]
    return count


def exploitability(game: Game, behaviour: Behaviour) -> float:
    """Half of what two best responses, one in each seat, win against ``behaviour`` together.

    Raises ConfigError for a view that ``behaviour`` says nothing of.
    """
    return (best_response(game, behaviour, 0) + best_response(game, behaviour, 1)) / 2


def best_response(game: Game, behaviour: Behaviour, seat: int) -> float:
    """The most that this seat can win against ``behaviour`` in the other one, in expectation over starts."""
    starts = game.starts()
    return _best_from(game, behaviour, seat, [(state, 1.0 / len(starts)) for state in starts])


def _best_from(game: Game, behaviour: Behaviour, seat: int, states: Sequence[tuple[State, float]]) -> float:
    """The most that a seat can win from here on, in expectation.

    ``states``: those that the player of this seat knows to be among, with the probability that chance and the
    opponent lead to each. The player tells them apart by their views alone.
    """
    expectation = 0.0
    states_by_view: dict[str, list[tuple[State, float]]] = {}  # states in which the player moves next
    todo = list(states)
    while todo:
        state, weight = todo.pop()
        if state.mover is None:
            expectation += weight * (state.payoff if seat == 0 else -state.payoff)
        elif state.mover == seat:
            states_by_view.setdefault(state.view, []).append((state, weight))
        else:
            probabilities = _move_probabilities(behaviour, state)
            todo += [(state.after_move(move), weight * p) for move, p in probabilities.items() if p > 0.0]
            forfeit_probability = 1.0 - sum(probabilities.values())
            if forfeit_probability > ROUNDING:
                expectation += weight * game.stake * forfeit_probability

    # At each information set the player chooses one move for all of its states.
    for states_of_view in states_by_view.values():
        first_state, _ = states_of_view[0]
        values = []
        for move in first_state.moves:
            after_move = [(state.after_move(move), weight) for state, weight in states_of_view]
            values.append(_best_from(game, behaviour, seat, after_move))
        expectation += max(values)
    return expectation


def _move_probabilities(behaviour: Behaviour, state: State) -> dict[str, float]:
    """Move → probability, for all legal moves. Raises ConfigError for a view that ``behaviour`` does not have."""
    if state.view not in behaviour:
        raise ConfigError(
            f"nothing is known of a player's move at {state.view!r}; let a probed state have this view",
            code="E_VIEW_NOT_PROBED",
        )
    probabilities = behaviour[state.view]
    return {move: probabilities.get(move, 0.0) for move in state.moves}


@lru_cache(maxsize=100_000)
def perfect_value(state: State) -> float:
    """The payoff of player 0 when both play perfectly, in a game in which everybody sees everything."""
    if state.mover is None:
        return state.payoff
    values = [perfect_value(state.after_move(move)) for move in state.moves]
    return max(values) if state.mover == 0 else min(values)


def perfect_moves(state: State) -> tuple[str, ...]:
    """The moves after which the mover can still win as much as before."""
    best = perfect_value(state)
    return tuple(move for move in state.moves if perfect_value(state.after_move(move)) == best)
