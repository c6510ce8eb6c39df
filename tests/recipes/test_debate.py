"""Debate: constant sums, drawn sides, and a judge who checks one step."""

import pytest

from cotrain.core.errors import ConfigError
from cotrain.core.types import Sampling
from cotrain.play.common_roles import parse_solution
from cotrain.play.debates import argue, parse_accusation, shares
from cotrain.play.executor import Executor
from cotrain.play.role import Role
from cotrain.recipes.debate import debate
from cotrain.tasks.words.source import study_problems
from cotrain.text.plain import ByteRenderer
from cotrain.text.preferences import write_gram
from tests.helpers import TINY, spoken

TASKS = [study_problems((2, 2)).get("train", i) for i in range(40)]


def wrong_answer(task):
    """The worked solution with its last step wrong, which is the second one."""
    number = int(task.answer)
    begin, _, _ = task.solution.rpartition(f"={number} ")
    noun = task.solution.rpartition(f"={number} ")[2].partition("</step>")[0]
    return f"{begin}={number + 1} {noun}</step><answer>{number + 1}</answer>"


def find_it(fields, rng):
    """Accuses the second step where that is the wrong one, else none that there is."""
    return "<answer>2</answer>" if fields["other"] == WRONG[fields["problem"]] else "<answer>9</answer>"


def always_first(fields, rng):
    return "<answer>1</answer>"


WRONG = {task.prompt: wrong_answer(task) for task in TASKS}


def played(speak, *, vote=None, one_kind=False, **options):
    """Episodes of ``TASKS`` by role; the author writes a right and a wrong solution in turn."""
    solutions = {task.prompt: task.solution for task in TASKS}
    turn: dict[str, int] = {}

    def write(fields, rng):
        problem = fields["problem"]
        turn[problem] = turn.get(problem, 0) + 1
        return WRONG[problem] if turn[problem] % 2 and not one_kind else solutions[problem]

    programs = {"solver": write, "alice": speak, "bob": speak, "teacher": always_first, "judge": vote or always_first}
    at_most = Sampling(max_tokens=9)
    roles = {"solver": Role(policy="solver", prompt="{problem}", parse=parse_solution, sampling=at_most)}
    for name in ("alice", "bob", "teacher"):
        roles[name] = Role(policy=name, prompt="{problem} {mine} {other}", parse=parse_accusation, sampling=at_most)
    roles["judge"] = debate(model=TINY, judge="frozen").roles["judge"]
    executor = Executor(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.play(argue, TASKS, step=0, group_size=1, drafts=2, **options)
    assert all(e.failure is None for e in episodes), episodes
    return [{n: [t for t in e.traces if t.role == n] for n in programs} for e in episodes]


def test_shares_of_a_constant_sum_add_up_to_1():
    for hits in ([True, True], [True, False], [False, True], [False, False], [True, None], [None, True], [None, False]):
        assert sum(shares(hits)) == 1.0
    assert shares([True, False]) == (1.0, 0.0) and shares([True, True]) == (0.5, 0.5)
    assert shares([False, None]) == (0.0, 1.0) and shares([None, True]) == (0.0, 1.0)


@pytest.mark.parametrize("finds", [0.0, 0.3, 1.0])
def test_before_the_judge_with_one_check_a_debate_is_worth_what_a_consultancy_is(finds):
    """The accuser of the wrong solution is right with probability ``finds``, that of the right one never. In both games
    the right solution wins in (1 + finds) / 2 of the cases, so this judge cannot tell them apart (docs/results)."""
    debated = finds * shares([True, False])[0] + (1 - finds) * shares([False, False])[0]
    right_side = finds * shares([True, None])[0] + (1 - finds) * shares([False, None])[0]
    wrong_side = shares([None, False])[0]  # the other one is accused, wrongly, and wins
    assert debated == pytest.approx((1 + finds) / 2) == (right_side + wrong_side) / 2


def test_who_defends_the_right_solution_and_finds_the_wrong_step_wins():
    sides = set()
    for found in played(find_it, samples=3):
        [speaker] = [name for name in ("alice", "bob") if len(found[name]) == 3]
        other = "bob" if speaker == "alice" else "alice"
        assert len(found[other]) == 1 and not found[other][0].signals  # the prefix: heard, not rewarded
        right = found[speaker][0].truth["right_side"]
        assert [t.signals[0].value for t in found[speaker]] == [1.0 if right else 0.0] * 3
        assert all(t.truth["judged_right"] == 1.0 and t.truth["hit"] is right for t in found[speaker])
        sides.add((speaker, right))
    assert len(sides) == 4  # who speaks and what it defends are drawn


def test_accusations_of_right_steps_decide_nothing():
    for found in played(always_first, samples=1):
        said = found["alice"] + found["bob"]
        assert [t.signals[0].value for t in said if t.signals] == [0.5] and not any(t.truth["hit"] for t in said)


def test_a_consultant_is_heard_alone():
    for found in played(find_it, consultancy=True):
        [turn] = found["alice"] + found["bob"]
        right = turn.truth["right_side"]
        assert turn.signals[0].value == float(right) and turn.truth["judged_right"] == 1.0
    turns = [t for found in played(always_first, consultancy=True) for t in found["alice"] + found["bob"]]
    verdicts = {t.truth["right_side"]: t.truth["judged_right"] for t in turns}
    assert verdicts == {True: 0.0, False: 1.0}  # who accuses a right step loses


def test_a_models_votes_are_the_share():
    for found in played(find_it, vote=lambda fields, rng: write_gram(True), jury=4):
        [turn] = [t for t in found["alice"] + found["bob"] if t.signals]
        assert turn.signals[0].value == (1.0 if turn.role == "alice" else 0.0) and len(found["judge"]) == 4
    for found in played(find_it, vote=lambda fields, rng: "hm", jury=4):
        assert [t.signals[0].value for t in found["alice"] + found["bob"] if t.signals] == [0.5]


def test_without_a_wrong_solution_there_is_no_debate():
    assert not any(f["alice"] or f["bob"] for f in played(find_it, one_kind=True))


def test_the_teacher_speaks_for_both_sides():
    for found in played(find_it, rehearsed=True):
        assert len(found["teacher"]) == 2 and not found["alice"] and not found["bob"]


def test_an_accusation_names_a_step():
    def read(text):
        found = parse_accusation(text, {"count": 3})
        return found.step if found.ok else found.reason

    assert [read(f"<answer>{n}</answer>") for n in ("1", "3", "4", "0", "x", "-1")] == [
        *(0, 2),
        *("no such step", "no such step", "no step", "no step"),
    ]
    with pytest.raises(ConfigError, match="cannot accuse"):
        debate(warmup=0)
    with pytest.raises(ConfigError, match="drafts is 1"):
        debate(drafts=1)
