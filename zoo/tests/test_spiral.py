"""SPIRAL: who is paid what by the end of a game, the baseline of each seat, and what is measured of a player."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cotrain_zoo.spiral.game import Game, perfect_moves
from cotrain_zoo.spiral.kuhn import KUHN
from cotrain_zoo.spiral.play import duel, measure_exploitability, parse_move, probe, write_move
from cotrain_zoo.spiral.recipe import spiral
from cotrain_zoo.spiral.source import Games, OwnGame

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.samples import sample_of
from cotrain.cli.main import main
from cotrain.core.types import Sampling
from cotrain.core.user_code import load_object
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses

GAME = Games("kuhn")
ALL = [GAME.get("train", i) for i in range(6)]


def played(protocol, tasks, group_size=1, **says):
    """Episodes of programs, by role; each says the text that its function makes of (view, random number)."""
    programs = {name: lambda fields, rng, say=say: say(fields["view"], rng.random()) for name, say in says.items()}
    roles = {n: Role(policy=n, prompt="{view}", parse=parse_move, sampling=Sampling(max_tokens=9)) for n in says}
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.collect(protocol, tasks, step=0, group_size=group_size)
    assert all(e.failure is None for e in episodes), episodes
    return episodes


def bold(view, draw):
    return write_move("call" if "fold" in view else "bet")


def coin(view, draw):
    return write_move(view.removesuffix("?").split(". ")[-1].split(" or ")[draw < 0.5])


def test_every_move_gets_what_its_side_won_and_the_sides_add_up_to_0():
    for task, episode in zip(ALL, played(duel, ALL, first=coin, second=coin), strict=True):
        worth = {t.role: {s.value for s in t.rewards} for t in episode.traces}
        assert all(len(values) == 1 for values in worth.values())
        first, second = worth["first"].pop(), worth["second"].pop()
        assert first + second == 0.0 and abs(first) in (1.0, 2.0), task.prompt
        assert all(t.metadata["payoff"] == (first if t.role == "first" else second) for t in episode.traces)


@pytest.mark.parametrize("text", ["bet", "<answer>raise</answer>", ""])
def test_what_is_no_legal_move_loses_the_stake(text):
    [episode] = played(duel, ALL[:1], first=lambda view, draw: text, second=bold)
    [trace] = episode.traces  # the other one is not asked
    assert trace.rewards[0].value == -2.0 and trace.findings["failure"] in ("no move", "illegal move")
    [episode] = played(duel, ALL[:1], first=bold, second=lambda view, draw: text)
    assert [(t.role, t.rewards[0].value) for t in episode.traces] == [("first", 2.0), ("second", -2.0)]


def test_the_baseline_is_that_of_the_role_before_the_game():
    """The first player wins 1 in both games, the second loses it: the second game is compared with the first one."""
    learn = spiral(model=TINY).objectives["player"].algorithm
    wins = [task for task in ALL if "K" in task.prompt]
    fold = played(duel, wins, first=bold, second=lambda view, draw: write_move("fold"))
    samples = tuple(sample_of(t) for e in fold for t in e.traces)
    first, state = learn.credit(Batch(samples=samples), {})
    assert [float(s.advantages[0]) for s in first.samples] == pytest.approx([1.0, -1.0, 0.95, -0.95])
    assert state["baselines"] == pytest.approx({"first/payoff": 1.0 - 0.95**2, "second/payoff": 0.95**2 - 1.0})
    later, state = learn.credit(Batch(samples=samples[:2]), {"baselines": {"first/payoff": 0.4, "second/payoff": -1.0}})
    assert [float(s.advantages[0]) for s in later.samples] == pytest.approx([0.6])  # of −1 from −1 nothing is left
    assert state["baselines"]["first/payoff"] == pytest.approx(0.95 * 0.4 + 0.05)
    raw, _ = spiral(model=TINY, baseline=False).objectives["player"].algorithm.credit(Batch(samples=samples), {})
    assert [float(s.advantages[0]) for s in raw.samples] == [1.0, -1.0] * 2


def test_exploitability_is_measured_from_what_was_said():
    """Programs say a move with probability 1, so the bold player is known exactly: it always bets and calls."""
    found = measure_exploitability(KUHN)(played(probe, ALL, first=bold, second=bold, stranger=coin))
    # Against it one folds J (−1) and calls K (+2); Q calls: K half of the time (−2), J the other half (+2).
    # As second: (−1 + 0 + 2) / 3 = 1/3. As first: J checks and folds, Q and K check and call: 1/3 too.
    assert found["player/exploitability"].value == pytest.approx(1 / 3)
    assert found["player/exploitability"].low == found["player/exploitability"].high
    assert found["player/seen"].value == 1.0
    assert measure_exploitability(KUHN)(played(probe, ALL[:1], first=bold, second=bold, stranger=coin)) == {}


def test_silence_is_counted_as_forfeit_at_one_end():
    found = measure_exploitability(KUHN)(played(probe, ALL, first=lambda view, draw: "", second=bold, stranger=coin))
    assert found["player/exploitability"].high > found["player/exploitability"].value and found[
        "player/seen"
    ].value == pytest.approx(0.5)


def test_earlier_selves_sit_in_both_seats():
    made = spiral(model=TINY, pool=3)
    assert [dict(phase.options) for phase in made.schedule.phases] == [{}, {"second": "past"}, {"first": "past"}]
    assert made.policies["past"].keep == 3 and made.roles["past"].policy == "past"
    episode = played(duel, ALL[:1], first=bold, second=bold)[0]
    assert {t.role for t in episode.traces if t.rewards} == {"first", "second"}


def test_what_it_refuses():
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("spiral", "'shipped-checker'")):
        spiral(model="shipped-checker")
    with refuses("E_TASKS_NOT_GAME", names=("words", "--game my_file.py:GAME")):
        spiral(tasks=EASY)


# -- a game of one's own, from a file outside of the package

PAGE = Path(__file__).parents[1] / "docs" / "spiral.md"
TINIEST = ["--threads", "1", "--tasks-per-step", "2", "--group-size", "2", "--evaluation-tasks", "2"]
TINIEST += ["--set", "evaluation.group_size=1", "--set", "evaluation.greedy=false", "--log-level", "warning"]
TINIEST += [word for role in ("first", "second") for word in ("--set", f"roles.{role}.sampling.max_tokens=8")]


@pytest.fixture
def race(tmp_path, monkeypatch):
    """The game of the page."""
    (source,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "race.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return load_object(str(tmp_path / "race.py:RACE"), "a test", Game)


def played_of(game, first, second):
    """The episode of programs who play a game of one's own."""
    [episode] = played(duel, [OwnGame(game).get("train", 0)], first=first, second=second)
    return episode


def lowest(view, draw):
    return write_move("1")


def test_a_game_of_ones_own_is_played_by_its_rules(race):
    assert perfect_moves(race.starts()[0]) == ("2",)  # 2, 6 and 10 are the totals to reach
    episode = played_of(race, lowest, lowest)
    assert [t.role for t in episode.traces] == ["first"] * 5 + ["second"] * 5  # by address; ten moves in turn
    assert {t.role: t.rewards[0].value for t in episode.traces} == {"first": -1.0, "second": 1.0}
    assert [t.metadata["perfect"] for t in episode.traces if t.role == "second"] == [True, False, True, False, True]
    assert "perfect" not in OwnGame(race).notes[0] and "exploitability" in OwnGame(race).notes[0]


def test_every_model_is_told_the_rules_of_a_game_of_ones_own(race):
    for model in (TINY, "shipped"):  # nobody was taught it, so nobody is refused
        made = spiral(model=model, game=race, pool=1)
        assert all("{rules}" in made.roles[seat].prompt for seat in ("first", "second", "past", "stranger"))
    assert "{rules}" not in spiral(model=TINY).roles["first"].prompt
    assert made.origin.arguments["game"] == {"object": f"{Path('race.py').resolve()}:RACE"}


class Broken:
    """A state of a game in which something is wrong from its second move on."""

    def __init__(self, fault, made=0):
        self.fault, self.made = fault, made

    @property
    def mover(self):
        return None if self.fault == "pays" and self.made > 1 else self.made % 2

    @property
    def moves(self):
        return () if self.fault == "stands" and self.made > 1 else ("1",)

    payoff, view = 7.0, "?"

    def after_move(self, move):
        if self.fault == "raises" and self.made:
            raise ValueError("not now")
        if self.fault == "leaves" and self.made:
            raise SystemExit(3)
        return Broken(self.fault, self.made + 1)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raises", r"game: test_spiral.py, line \d+: ValueError"),
        ("leaves", r"game: test_spiral.py, line \d+: SystemExit"),
        ("stands", "game: no moves"),
        ("pays", "game: payoff beyond the stake"),
        ("goes on", "game: no end after 4 moves"),
    ],
)
def test_a_game_without_a_result_is_a_counted_failure(fault, reason):
    game = Game(name="broken", rules="?", stake=1.0, starts=lambda: [Broken(fault)], most_moves=4)
    episode = played_of(game, lowest, lowest)
    assert len(episode.traces) == (4 if fault == "goes on" else 2)
    assert all(re.fullmatch(reason, t.failure) and not t.rewards for t in episode.traces)


def endless(perfect=False, covered=False):
    return Game(
        name="endless", rules="?", stake=1.0, starts=lambda: [Broken("goes on")], perfect=perfect, covered=covered
    )


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda race: {"name": "race"}, "E_NOT_GAME: cotrain_zoo.spiral.Game"),
        (lambda race: replace(race, stake=0.0), "E_GAME_FIELD: 'race' | stake is 0.0"),
        (lambda race: replace(race, rules=" "), "E_GAME_FIELD: 'race' | rules is ' '"),
        (lambda race: replace(race, starts=tuple), "E_GAME_BROKEN: starts()"),
        (lambda race: replace(race, starts=lambda: [3]), "E_GAME_BROKEN: 'race' | AttributeError | 'mover'"),
        (lambda race: replace(race, starts=lambda: [Broken("stands", 2)]), "E_GAME_BROKEN: 'race' | no moves"),
        (
            lambda race: replace(race, starts=lambda: [race.starts()[0].after_move("10")]),
            "E_GAME_BROKEN: a start is the end",
        ),
        (
            lambda race: replace(race, starts=iter((race.starts(), race.starts()[:1])).__next__),
            "E_GAME_BROKEN: other ones",
        ),
        (
            lambda race: replace(race, probed=lambda start: [start.after_move("10")]),
            "E_GAME_BROKEN: a probed state is the end",
        ),
        (lambda race: replace(race, covered=True), "E_GAME_BROKEN: 'The total is "),
        (lambda race: endless(perfect=True), "E_GAME_BROKEN: 100000 positions"),
        (lambda race: endless(covered=True), "E_GAME_BROKEN: 100000 positions"),
    ],
)
def test_what_is_no_game_is_refused_when_the_recipe_is_built(make, code, race):
    with refuses(code) as error:
        spiral(model=TINY, game=make(race))
    assert str(error.value).startswith("spiral: ")


def test_exploitability_of_a_game_of_ones_own_by_hand(race):
    """Who always adds 1 is beaten from each of the ten totals by a first player, and by a second one too, but from 9,
    where adding 1 makes 10: (10/10 + (9 − 1)/10) / 2."""
    game = replace(race, probed=lambda start: [start], covered=True)
    assert not OwnGame(game).notes
    tasks = [OwnGame(game).get("train", i) for i in range(10)]
    found = measure_exploitability(game)(played(probe, tasks, first=lowest, second=lowest, stranger=lowest))
    assert found["player/exploitability"].value == pytest.approx(0.9)


def test_a_game_that_no_file_holds_runs_and_says_what_a_resumed_run_needs(race):
    made = spiral(model=TINY, game=replace(race))
    assert made.origin.arguments["game"] == {"object": "a Game of no file"}
    with refuses("E_CODE_PLACE", names=("game of spiral", "Game")):
        spiral(game=made.origin.arguments["game"]["object"])


def test_a_name_that_is_no_game_and_a_second_game_are_refused(race):
    with refuses("E_NO_SUCH_FUNCTION", names=("game of spiral", "'RACES'", "'RACE'")):
        spiral(game="race.py:RACES")
    with refuses("E_CODE_PLACE", names=("game of spiral", "'race'", "Game")):
        spiral(game="race")
    with refuses("E_GAME_AND_TASKS", names="games:nim"):
        spiral(game=race, tasks=Games("nim"))


def test_a_large_tree_is_not_searched(race):
    """10^40 games, of which nothing was said to be small: neither building nor playing looks at more than is played."""
    game = replace(endless(), most_moves=3)
    assert spiral(model=TINY, game=game).evaluation.protocol is probe
    assert measure_exploitability(game)(()) == {}


@pytest.mark.whole
def test_a_run_of_a_game_of_ones_own_goes_on_bit_for_bit(race, tmp_path, capsys, monkeypatch):
    words = ["run", "spiral", "--game", "race.py:RACE", *TINIEST]
    assert main([*words, "--steps", "2", "--out", "whole"]) == 0
    assert main([*words, "--steps", "1", "--out", "other"]) == 0
    monkeypatch.chdir("/")  # the run names its file by the whole path
    whole, other = tmp_path / "whole", tmp_path / "other"
    assert main(["resume", str(other), "--steps", "2", "--threads", "1"]) == 0
    for name in ("metrics.jsonl", "episodes/episodes.jsonl.gz"):
        assert (whole / name).read_bytes() == (other / name).read_bytes(), name
    ends = [json.loads((folder / "summary.json").read_text())["after"] for folder in (whole, other)]
    assert ends[0] == ends[1]  # by the last weights
    assert main(["eval", str(other), "--problems", "2", "--threads", "1"]) == 0
    assert "first/metadata/payoff" in capsys.readouterr().out
