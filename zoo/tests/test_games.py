"""Games by hand: rules, payoffs, and how far a player can be beaten."""

import pytest
from cotrain_zoo.spiral.game import best_response, exploitability, perfect_moves, perfect_value
from cotrain_zoo.spiral.kuhn import KUHN, Kuhn
from cotrain_zoo.spiral.nim import NIM, Nim
from cotrain_zoo.spiral.source import GAMES, Games, game_grader_of
from cotrain_zoo.spiral.tictactoe import TicTacToe

from cotrain.data.sources import from_description, task_source
from tests.helpers import letter_tasks
from tests.sentences import refuses


def kuhn_player(first, second):
    """Behaviour from the chance of the second of two moves (bet, call), by card and by what was said so far."""
    found = {}
    for start in KUHN.starts():
        for state in KUHN.probed(start):
            chance = (first if state.mover == 0 else second)[state.cards[state.mover], " ".join(state.history)]
            found[state.view] = dict(zip(state.moves, (1.0 - chance, chance), strict=True))
    return found


def equilibrium(alpha):
    """Kuhn's: bet J with α, K with 3α, call with Q at α + 1/3; the second player bets J and calls with Q at 1/3."""
    first = {("J", ""): alpha, ("Q", ""): 0.0, ("K", ""): 3 * alpha}
    first |= {("J", "check bet"): 0.0, ("Q", "check bet"): alpha + 1 / 3, ("K", "check bet"): 1.0}
    second = {("J", "check"): 1 / 3, ("Q", "check"): 0.0, ("K", "check"): 1.0}
    return first, second | {("J", "bet"): 0.0, ("Q", "bet"): 1 / 3, ("K", "bet"): 1.0}


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_an_equilibrium_of_kuhn_poker_cannot_be_beaten(alpha):
    player = kuhn_player(*equilibrium(alpha))
    assert best_response(KUHN, player, 0) == pytest.approx(-1 / 18)  # the value of the game
    assert best_response(KUHN, player, 1) == pytest.approx(1 / 18)
    assert exploitability(KUHN, player) == pytest.approx(0.0, abs=1e-12)


def test_a_random_player_of_kuhn_poker_loses_11_24_of_a_chip():
    cards, said = "JQK", ("", "check", "bet", "check bet")
    half = dict.fromkeys([(card, history) for card in cards for history in said], 0.5)
    assert exploitability(KUHN, kuhn_player(half, half)) == pytest.approx(11 / 24)


def test_a_player_who_forfeits_loses_the_stake():
    silent = {view: dict.fromkeys(moves, 0.0) for view, moves in kuhn_player(*equilibrium(0.0)).items()}
    assert exploitability(KUHN, silent) == pytest.approx(2.0)
    with refuses("E_VIEW_NOT_PROBED", names="Card J"):
        exploitability(KUHN, {})


def test_payoffs_of_kuhn_poker():
    def payoff(cards, *moves):
        state = Kuhn(tuple(cards))
        for move in moves:
            assert move in state.moves
            state = state.after_move(move)
        assert state.mover is None
        return state.payoff

    assert payoff("KQ", "check", "check") == 1 and payoff("JQ", "check", "check") == -1
    assert payoff("JQ", "bet", "fold") == 1 and payoff("KJ", "check", "bet", "fold") == -1
    assert payoff("KQ", "bet", "call") == 2 and payoff("QK", "check", "bet", "call") == -2


def test_a_view_holds_what_the_mover_knows_and_no_more():
    views = {}
    for start in KUHN.starts():
        for state in KUHN.probed(start):
            views.setdefault(state.view, set()).add((state.cards[state.mover], state.history))
    assert len(views) == 12 and all(len(known) == 1 for known in views.values())


def test_nim_is_lost_exactly_where_the_exclusive_or_is_0():
    for start in NIM.starts():
        a, b, c = start.piles
        assert perfect_value(start) == (-1.0 if a ^ b ^ c == 0 else 1.0)
    assert perfect_moves(Nim((3, 1, 0))) == ("A2",)
    perfect = {s.view: {perfect_moves(s)[0]: 1.0} for s in NIM.starts()}
    wins = sum(perfect_value(s) for s in NIM.starts()) / len(NIM.starts())
    assert best_response(NIM, perfect, 0) == pytest.approx(wins)
    assert exploitability(NIM, perfect) == pytest.approx(0.0)


def test_tic_tac_toe_is_a_draw_and_the_corner_is_answered_in_the_middle():
    assert perfect_value(TicTacToe()) == 0.0
    assert perfect_moves(TicTacToe().after_move("a1")) == ("b2",)
    won = TicTacToe("XX.OO....").after_move("c1")
    assert won.mover is None and won.payoff == 1.0 and won.moves == ()
    assert TicTacToe("XX.OO....", first=1).after_move("c1").payoff == -1.0


def test_a_source_of_games_has_every_start_and_nothing_to_grade():
    for name in GAMES:
        source = task_source(f"games:{name}")
        assert from_description(source.describe()).describe() == source.describe()
        tasks = [source.get("train", i) for i in range(source.size("train"))]
        assert [game_grader_of(t).start for t in tasks] == list(GAMES[name].starts())
        assert tasks[0].grade("1").value is None and source.get("test", 0).prompt == tasks[0].prompt
    with pytest.raises(IndexError, match="6 starts"):
        Games("kuhn").get("train", 6)
    with refuses("E_UNKNOWN_GAME", names="'kuhn'"):
        Games("khun")
    with refuses("E_TASKS_NOT_GAME", names=("letters/train/0", "--tasks games:NAME")):
        game_grader_of(letter_tasks(1)[0])
