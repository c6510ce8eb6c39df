"""The rollouts and rewards of SPIRAL: two roles play a game against each other, or make single moves that are measured.

A move is one call of a role, which is shown what its side knows (``State.view``) and says its move between answer tags.
Anything but a legal move is a forfeit: that side loses ``Game.stake``, the other one wins it, and the reason is
counted. The reward ``payoff`` of every move is what its side won by the end, so the rewards of the two sides add up to
0. In a game without a result (``game.GameFault``) all moves fail with the reason.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from cotrain.core.notes import ANSWER, FAILURE, PROBLEM, Finding, Metadata
from cotrain.core.signals import Signal, gives
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, ParseFailure, Sampling, Task
from cotrain.formats.answers import final_answer
from cotrain.metrics.heldout import with_names
from cotrain.rollout.common_roles import is_terse
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain_zoo.spiral.game import (
    Game,
    GameFault,
    Position,
    State,
    ask_game,
    exploitability,
    perfect_moves,
    read_position,
)
from cotrain_zoo.spiral.source import GameGrader, game_grader_of

SEATS = ("first", "second")
PAYOFF = Signal("payoff", meaning="what the mover's side wins")
WON = Metadata[float]("payoff", float, "what the mover's side wins")
PERFECT = Metadata[bool]("perfect", bool, "does the move give nothing away")
CHANCE = Finding[float]("chance", float, "the probability of a move that was all of the answer")
MovesByView = dict[str, list[tuple[str, float | None]]]  # view → each legal move that was said, with its CHANCE

MOVE = "{view}\nMove:"
MOVE_FULL = """{rules}

{view}
Legal moves: {moves}.
Choose your move. Write it once, alone, in one pair of tags at the end: <answer> ... </answer>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMove:
    """A legal move that could be read."""

    move: str
    format_score: float = 1.0
    ok: ClassVar[bool] = True


def parse_move(text: str, fields: Mapping[str, Any]) -> ParsedMove | ParseFailure:
    """The move in the last answer tags of a text. The field ``moves`` has the legal ones."""
    move = final_answer(text)
    if move is None:
        return ParseFailure(reason="no move")
    if move not in fields["moves"].split(", "):
        return ParseFailure(reason="illegal move", format_score=0.5)
    return ParsedMove(move=move)


def write_move(move: str) -> str:
    """The reply that ``parse_move`` reads as this move."""
    return f"<answer>{move}</answer>"


def player_role(policy: str, model: str, *, own: bool = False) -> Role:
    """Makes moves: fields ``view``, ``moves`` and ``rules``. ``own``: in a game of the user's, which no model was
    taught."""
    knows_game = is_terse(model) and not own
    if knows_game:
        return Role(policy=policy, prompt=MOVE, parse=parse_move, sampling=Sampling(max_tokens=8))
    return Role(policy=policy, prompt=MOVE_FULL, parse=parse_move, sampling=Sampling(max_tokens=512))


def random_mover(fields: Mapping[str, Any], rng: random.Random) -> str:
    """A program that draws uniformly among the legal moves."""
    return write_move(rng.choice(fields["moves"].split(", ")))


async def ask_move(roles: Roles, seat: str, game: Game, state: State, position: Position) -> Turn:
    """The move of the role ``seat`` in a state, with findings for the ledger and the measures."""
    player: RoleHandle = getattr(roles, seat)
    turn = await player(view=position.view, moves=", ".join(position.moves), rules=game.rules)
    turn.add_finding(PROBLEM, position.view)
    if not turn.parsed.ok:
        turn.add_finding(FAILURE, turn.parsed.reason)
        return turn
    turn.add_finding(ANSWER, turn.parsed.move)
    is_move_alone = turn.text == write_move(turn.parsed.move)
    if is_move_alone:
        turn.add_finding(CHANCE, math.exp(math.fsum(turn.completion.logprobs)))
    if game.perfect:
        turn.add_metadata(PERFECT, turn.parsed.move in ask_game(lambda: perfect_moves(state)))
    return turn


async def play_game(task: Task, roles: Roles, first: str, second: str) -> list[tuple[str, Turn, float]]:
    """One game from the task's start between the roles ``first`` and ``second``.

    Returns each move in order, as its role, its turn, and what its side won by the end; [] for a game without a result.
    Raises GameFault for one that ends before the first move.
    """
    moves_made: list[tuple[int, Turn]] = []  # (mover, its turn)
    seats = (first, second)
    try:
        payoff = await _play_to_end(game_grader_of(task), roles, seats, moves_made)
    except GameFault as fault:
        if not moves_made:
            raise
        for _, turn in moves_made:
            turn.fail(str(fault))
        return []

    results: list[tuple[str, Turn, float]] = []
    first_moves: dict[int, Turn] = {}
    for mover, turn in moves_made:
        payoff_of_mover = payoff if mover == 0 else -payoff
        turn.add_metadata(WON, payoff_of_mover)
        first_move = first_moves.setdefault(mover, turn)
        turn.chat.join(first_move.chat)  # all moves of one player are one trajectory
        results.append((seats[mover], turn, payoff_of_mover))
    return results


async def _play_to_end(
    grader: GameGrader, roles: Roles, seats: tuple[str, str], moves_made: list[tuple[int, Turn]]
) -> float:
    """The payoff of player 0, by the end or by a forfeit. Moves are added to ``moves_made``. Raises GameFault, also
    where a player could not be asked."""
    game = grader.game
    state = grader.start
    while True:
        position = read_position(game, state)
        if position.mover is None:
            return position.payoff
        if len(moves_made) == game.most_moves:
            raise GameFault(f"game: no end after {game.most_moves} moves")

        turn = await ask_move(roles, seats[position.mover], game, state, position)
        moves_made.append((position.mover, turn))
        if turn.completion.failure is not None:
            raise GameFault(turn.completion.failure)
        if not turn.parsed.ok:
            return -game.stake if position.mover == 0 else game.stake
        state = ask_game(partial(state.after_move, turn.parsed.move))


@gives(PAYOFF.to("first"), PAYOFF.to("second"))
async def duel(task: Task, roles: Roles, *, first: str = "first", second: str = "second") -> None:
    """A game to be learned from. Roles of other names than ``SEATS`` are opponents without a reward."""
    for seat, turn, seat_payoff in await play_game(task, roles, first, second):
        if seat in SEATS:
            turn.chat.reward(PAYOFF, seat_payoff)


async def probe(task: Task, roles: Roles) -> None:
    """The evaluation, without any reward: single moves in all states at which the game is measured, by the seat whose
    move it is, and a game of each seat against the role ``stranger``."""
    grader = game_grader_of(task)
    for state in ask_game(lambda: grader.game.probed(grader.start)):
        position = read_position(grader.game, state)
        await ask_move(roles, SEATS[position.mover or 0], grader.game, state, position)
    await play_game(task, roles, "first", "stranger")
    await play_game(task, roles, "stranger", "second")


def measure_exploitability(game: Game) -> Callable[[Sequence[Episode]], dict[str, Estimate]]:
    """Measure ``exploitability`` of the policy as it was seen to move, and ``seen``, the share of its probability that
    was seen.

    A move that was all of an answer has its exact probability, so a state is known exactly once each of its moves was
    seen. Moves after a thought have a frequency instead. For the value, probability that was not seen is spread over
    the moves that were not seen; one end of the interval counts it as forfeits.
    """

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        traces = []
        for episode in episodes:
            traces += [trace for trace in episode.traces if trace.role in SEATS and PROBLEM.of(trace) is not None]
        if not game.covered:
            return {}

        moves_by_view: MovesByView = {}
        times_asked: dict[str, int] = {}  # view → answers to it, forfeits included
        for trace in traces:
            view = str(PROBLEM.of(trace))
            times_asked[view] = times_asked.get(view, 0) + 1
            moves_said = moves_by_view.setdefault(view, [])
            move = ANSWER.of(trace)
            if move is not None:
                moves_said.append((move, CHANCE.of(trace)))

        states = {state.view: state for start in game.starts() for state in game.probed(start)}
        if not set(states) <= set(moves_by_view):
            return {}  # some state was never asked for

        with_forfeits = {}  # view → move → probability: what was not seen is missing
        with_unseen_moves = {}  # the same: what was not seen belongs to the moves that were not seen
        seen_shares = []
        for view, state in states.items():
            probabilities = {}
            for move in state.moves:
                chances = [chance for seen_move, chance in moves_by_view[view] if seen_move == move]
                probabilities[move] = _move_probability(chances, times_asked[view])
            total = sum(probabilities.values())
            # Exact probabilities and frequencies together may add up to more than 1.
            probabilities = {move: p / max(total, 1.0) for move, p in probabilities.items()}
            with_forfeits[view] = probabilities

            unseen_moves = [move for move, p in probabilities.items() if p == 0.0]
            unseen_share = max(0.0, 1.0 - total)
            with_unseen_moves[view] = probabilities | {move: unseen_share / len(unseen_moves) for move in unseen_moves}
            seen_shares.append(min(total, 1.0))

        value = exploitability(game, with_unseen_moves)
        other_end = exploitability(game, with_forfeits)
        mean_seen = math.fsum(seen_shares) / len(seen_shares)
        return {
            "player/exploitability": Estimate(
                value=value, low=min(value, other_end), high=max(value, other_end), n=len(traces)
            ),
            "player/seen": Estimate(value=mean_seen, low=mean_seen, high=mean_seen, n=len(seen_shares)),
        }

    return with_names(measure, roles=(), figures=("player/exploitability", "player/seen"))


def _move_probability(chances: Sequence[float | None], times_asked: int) -> float:
    """The probability of a move that was seen with these chances: the exact one if each time the move was all of the
    answer, else its frequency."""
    known_chances = [chance for chance in chances if chance is not None]
    if known_chances and len(known_chances) == len(chances):
        return max(known_chances)
    return len(chances) / times_asked
