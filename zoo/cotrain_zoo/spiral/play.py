"""Two roles play a game against each other, to learn from it, or make single moves that are measured.

A move is one call of a role, which is shown all that it knows (``State.view``), and says its move between answer tags.
What is no legal move is a forfeit: it loses ``Game.stake``, the other side wins it, and the reason is counted. Every
move of a player has the reward ``payoff``, what its side won, so that payoffs of the two sides add up to 0. In a game
that has no result (``game.GameFault``) all moves fail with its reason.
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
from cotrain.rollout.common_roles import is_terse
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import Roles
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
    said = final_answer(text)
    if said is None:
        return ParseFailure(reason="no move")
    if said not in fields["moves"].split(", "):
        return ParseFailure(reason="illegal move", format_score=0.5)
    return ParsedMove(move=said)


def write_move(move: str) -> str:
    return f"<answer>{move}</answer>"


def player_role(policy: str, model: str, *, own: bool = False) -> Role:
    """Makes moves: fields ``view``, ``moves`` and ``rules``. ``own``: of a game that no model was taught."""
    short = is_terse(model) and not own
    sampling = Sampling(max_tokens=8 if short else 512)
    return Role(policy=policy, prompt=MOVE if short else MOVE_FULL, parse=parse_move, sampling=sampling)


def random_mover(fields: Mapping[str, Any], rng: random.Random) -> str:
    """A program that draws uniformly among the legal moves."""
    return write_move(rng.choice(fields["moves"].split(", ")))


async def ask_move(roles: Roles, seat: str, game: Game, state: State, position: Position) -> Turn:
    """What the role ``seat`` does in a state, shown for ledger and measures."""
    turn: Turn = await getattr(roles, seat)(view=position.view, moves=", ".join(position.moves), rules=game.rules)
    turn.add_finding(PROBLEM, position.view)
    if not turn.parsed.ok:
        turn.add_finding(FAILURE, turn.parsed.reason)
        return turn
    turn.add_finding(ANSWER, turn.parsed.move)
    if turn.text == write_move(turn.parsed.move):
        turn.add_finding(CHANCE, math.exp(math.fsum(turn.completion.logprobs)))
    if game.perfect:
        turn.add_metadata(PERFECT, turn.parsed.move in ask_game(lambda: perfect_moves(state)))
    return turn


async def play_game(task: Task, roles: Roles, first: str, second: str) -> list[tuple[str, Turn, float]]:
    """One game from the task's start between the roles of two seats: who said what, and what its side won by the
    end; nothing of a game without a result. Raises GameFault for one without a move."""
    moves_made: list[tuple[int, Turn]] = []
    seats = (first, second)
    try:
        payoff = await _play_to_end(game_grader_of(task), roles, seats, moves_made)
    except GameFault as fault:
        if not moves_made:
            raise
        for _, turn in moves_made:
            turn.fail(str(fault))
        return []
    results = [(seats[mover], turn, payoff if mover == 0 else -payoff) for mover, turn in moves_made]
    first_moves: dict[int, Turn] = {}
    for (mover, turn), (_, _, own_payoff) in zip(moves_made, results, strict=True):
        turn.add_metadata(WON, own_payoff)
        turn.chat.join(first_moves.setdefault(mover, turn).chat)  # a game is one trajectory of each player
    return results


async def _play_to_end(
    judge: GameGrader, roles: Roles, seats: tuple[str, str], moves_made: list[tuple[int, Turn]]
) -> float:
    """What player 0 wins, by the end or by a forfeit. Raises GameFault, also where a player could not be asked."""
    game = judge.game
    state = judge.start
    while (position := read_position(game, state)).mover is not None:
        if len(moves_made) == game.most_moves:
            raise GameFault(f"game: no end after {game.most_moves} moves")
        turn = await ask_move(roles, seats[position.mover], game, state, position)
        moves_made.append((position.mover, turn))
        if turn.completion.failure is not None:
            raise GameFault(turn.completion.failure)
        if not turn.parsed.ok:
            return game.stake * (-1.0 if position.mover == 0 else 1.0)
        state = ask_game(partial(state.after_move, turn.parsed.move))
    return position.payoff


@gives(PAYOFF.to("first"), PAYOFF.to("second"))
async def duel(task: Task, roles: Roles, *, first: str = "first", second: str = "second") -> None:
    """A game to be learned from. Roles of other names than ``SEATS`` are opponents without a reward."""
    for seat, turn, won in await play_game(task, roles, first, second):
        if seat in SEATS:
            turn.chat.reward(PAYOFF, won)


async def probe(task: Task, roles: Roles) -> None:
    """To measure, without any reward: both seats are asked for one move in every state at which the game is measured,
    and each plays a game against the role ``stranger``."""
    judge = game_grader_of(task)
    for state in ask_game(lambda: judge.game.probed(judge.start)):
        position = read_position(judge.game, state)
        await ask_move(roles, SEATS[position.mover or 0], judge.game, state, position)
    await play_game(task, roles, "first", "stranger")
    await play_game(task, roles, "stranger", "second")


def measure_exploitability(game: Game) -> Callable[[Sequence[Episode]], dict[str, Estimate]]:
    """Measure ``exploitability`` of what both seats were seen to do, and ``seen``, the share of the policy's
    probability that stands behind it.

    A move that was all of an answer has its exact probability, so a state is known exactly when all its moves were seen
    once. What is missing is counted as the moves that were not seen (value), or as forfeits (one end of the interval).
    Answers with thoughts in front are counted instead.
    """

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        traces = [t for e in episodes for t in e.traces if t.role in SEATS and PROBLEM.of(t) is not None]
        move_chances: dict[str, dict[str, list[float | None]]] = {}
        times_asked: dict[str, int] = {}
        for trace in traces:
            view = str(PROBLEM.of(trace))
            times_asked[view] = times_asked.get(view, 0) + 1
            moves = move_chances.setdefault(view, {})
            if (answer := ANSWER.of(trace)) is not None:
                moves.setdefault(answer, []).append(CHANCE.of(trace))
        if not game.covered:
            return {}
        states = {state.view: state for start in game.starts() for state in game.probed(start)}
        if not set(states) <= set(move_chances):
            return {}
        strict = {}
        filled = {}
        mass = []
        for view, state in states.items():
            move_probabilities = {
                m: _move_probability(move_chances[view].get(m, []), times_asked[view]) for m in state.moves
            }
            total = sum(move_probabilities.values())
            # several spellings of a move add up to more
            move_probabilities = {m: p / max(total, 1.0) for m, p in move_probabilities.items()}
            missing = [m for m, p in move_probabilities.items() if p == 0.0]
            unseen_mass = max(0.0, 1.0 - total)
            strict[view] = move_probabilities
            filled[view] = {m: unseen_mass / len(missing) if m in missing else p for m, p in move_probabilities.items()}
            mass.append(min(total, 1.0))
        ends = [exploitability(game, behaviour) for behaviour in (filled, strict)]
        estimate = Estimate(value=ends[0], low=min(ends), high=max(ends), n=len(traces))
        share = math.fsum(mass) / len(mass)
        return {
            "player/exploitability": estimate,
            "player/seen": Estimate(value=share, low=share, high=share, n=len(mass)),
        }

    return measure


def _move_probability(given: Sequence[float | None], asked: int) -> float:
    known = [p for p in given if p is not None]
    return max(known) if known and len(known) == len(given) else len(given) / asked
