"""SPIRAL: who is paid what by the end of a game, the baseline of each seat, and what is measured of a player."""

import pytest

from cotrain.core.errors import ConfigError
from cotrain.core.types import Sampling
from cotrain.learn.contract import Batch
from cotrain.learn.samples import sample_of
from cotrain.methods.spiral.kuhn import KUHN
from cotrain.methods.spiral.play import duel, exploiting, parse_move, probe, write_move
from cotrain.methods.spiral.recipe import spiral
from cotrain.methods.spiral.source import Games
from cotrain.rollout.executor import Executor
from cotrain.rollout.role import Role
from cotrain.text.plain import ByteRenderer
from tests.helpers import EASY, TINY, spoken

GAME = Games("kuhn")
ALL = [GAME.get("train", i) for i in range(6)]


def played(protocol, tasks, group_size=1, **says):
    """Episodes of programs, by role; each says the text that its function makes of (view, random number)."""
    programs = {name: lambda fields, rng, say=say: say(fields["view"], rng.random()) for name, say in says.items()}
    roles = {n: Role(policy=n, prompt="{view}", parse=parse_move, sampling=Sampling(max_tokens=9)) for n in says}
    executor = Executor(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.play(protocol, tasks, step=0, group_size=group_size)
    assert all(e.failure is None for e in episodes), episodes
    return episodes


def bold(view, draw):
    return write_move("call" if "fold" in view else "bet")


def coin(view, draw):
    return write_move(view.removesuffix("?").split(". ")[-1].split(" or ")[draw < 0.5])


def test_every_move_gets_what_its_side_won_and_the_sides_add_up_to_0():
    for task, episode in zip(ALL, played(duel, ALL, first=coin, second=coin), strict=True):
        worth = {t.role: {s.value for s in t.signals} for t in episode.traces}
        assert all(len(values) == 1 for values in worth.values())
        first, second = worth["first"].pop(), worth["second"].pop()
        assert first + second == 0.0 and abs(first) in (1.0, 2.0), task.prompt
        assert all(t.truth["payoff"] == (first if t.role == "first" else second) for t in episode.traces)


@pytest.mark.parametrize("text", ["bet", "<answer>raise</answer>", ""])
def test_what_is_no_legal_move_loses_the_stake(text):
    [episode] = played(duel, ALL[:1], first=lambda view, draw: text, second=bold)
    [trace] = episode.traces  # the other one is not asked
    assert trace.signals[0].value == -2.0 and trace.parsed["failure"] in ("no move", "illegal move")
    [episode] = played(duel, ALL[:1], first=bold, second=lambda view, draw: text)
    assert [(t.role, t.signals[0].value) for t in episode.traces] == [("first", 2.0), ("second", -2.0)]


def test_the_baseline_is_that_of_the_role_before_the_game():
    """The first player wins 1 in both games, the second loses it: the second game is compared with the first one."""
    learn = spiral(model=TINY).objectives["player"].by
    wins = [task for task in ALL if "K" in task.prompt]
    fold = played(duel, wins, first=bold, second=lambda view, draw: write_move("fold"))
    samples = tuple(sample_of(t) for e in fold for t in e.traces)
    first, state = learn.credit(Batch(samples=samples), {})
    assert [float(s.advantages[0]) for s in first.samples] == pytest.approx([1.0, -1.0, 0.95, -0.95])
    assert state["baselines"] == pytest.approx({"first/payoff": 1.0 - 0.95**2, "second/payoff": 0.95**2 - 1.0})
    later, state = learn.credit(Batch(samples=samples[:2]), {"baselines": {"first/payoff": 0.4, "second/payoff": -1.0}})
    assert [float(s.advantages[0]) for s in later.samples] == pytest.approx([0.6])  # of −1 from −1 nothing is left
    assert state["baselines"]["first/payoff"] == pytest.approx(0.95 * 0.4 + 0.05)
    raw, _ = spiral(model=TINY, baseline=False).objectives["player"].by.credit(Batch(samples=samples), {})
    assert [float(s.advantages[0]) for s in raw.samples] == [1.0, -1.0] * 2


def test_exploitability_is_measured_from_what_was_said():
    """Programs say a move with probability 1, so the bold player is known exactly: it always bets and calls."""
    found = exploiting(KUHN)(played(probe, ALL, first=bold, second=bold, stranger=coin))
    # Against it one folds J (−1) and calls K (+2); Q calls: K half of the time (−2), J the other half (+2).
    # As second: (−1 + 0 + 2) / 3 = 1/3. As first: J checks and folds, Q and K check and call: 1/3 too.
    assert found["player/exploitability"].value == pytest.approx(1 / 3)
    assert found["player/exploitability"].low == found["player/exploitability"].high
    assert found["player/seen"].value == 1.0
    assert exploiting(KUHN)(played(probe, ALL[:1], first=bold, second=bold, stranger=coin)) == {}


def test_silence_is_counted_as_forfeit_at_one_end():
    found = exploiting(KUHN)(played(probe, ALL, first=lambda view, draw: "", second=bold, stranger=coin))
    assert found["player/exploitability"].high > found["player/exploitability"].value and found[
        "player/seen"
    ].value == pytest.approx(0.5)


def test_earlier_selves_sit_in_both_seats():
    made = spiral(model=TINY, pool=3)
    assert [dict(phase.options) for phase in made.schedule.phases] == [{}, {"second": "past"}, {"first": "past"}]
    assert made.policies["past"].keep == 3 and made.roles["past"].policy == "past"
    episode = played(duel, ALL[:1], first=bold, second=bold)[0]
    assert {t.role for t in episode.traces if t.signals} == {"first", "second"}


def test_what_it_refuses():
    with pytest.raises(ConfigError, match="spiral: the model 'embedded-checker' was not taught"):
        spiral(model="embedded-checker")
    with pytest.raises(ConfigError, match="words is no game"):
        spiral(tasks=EASY)
