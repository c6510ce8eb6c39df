"""Debate: constant sums, drawn sides, and a judge who checks one step."""

from functools import partial

import numpy as np
import pytest

from cotrain.core.types import Sampling
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.preferences import write_gram
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.prompts.templates import fields_of
from cotrain.recipes.debate.debates import PAID, argue, debate_shares, parse_accusation, speech_pay
from cotrain.recipes.debate.recipe import debate
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import TINY, spoken
from tests.sentences import refuses

TASKS = [study_problems((2, 2)).get("train", i) for i in range(40)]


def wrong_answer(task):
    """The worked solution with its last step wrong, which is the second one."""
    number = int(task.gold)
    begin, _, _ = task.solution.rpartition(f"={number} ")
    noun = task.solution.rpartition(f"={number} ")[2].partition("</step>")[0]
    return f"{begin}={number + 1} {noun}</step><answer>{number + 1}</answer>"


def find_it(fields, rng):
    """Accuses the second step where that is the wrong one, else none that there is."""
    return "<answer>2</answer>" if fields["other"] == WRONG[fields["problem"]] else "<answer>9</answer>"


def always_first(fields, rng):
    return "<answer>1</answer>"


WRONG = {task.prompt: wrong_answer(task) for task in TASKS}


def played(speak, *, vote=None, one_kind=False, budget=9, **options):
    """Episodes of ``TASKS`` by role; the author writes a right and a wrong solution in turn."""
    solutions = {task.prompt: task.solution for task in TASKS}
    turn: dict[str, int] = {}

    def write(fields, rng):
        problem = fields["problem"]
        turn[problem] = turn.get(problem, 0) + 1
        return WRONG[problem] if turn[problem] % 2 and not one_kind else solutions[problem]

    programs = {"solver": write, "alice": speak, "bob": speak, "teacher": always_first, "judge": vote or always_first}
    at_most = Sampling(max_tokens=budget)
    roles = {"solver": Role(policy="solver", prompt="{problem}", parse=parse_solution, sampling=at_most)}
    for name in ("alice", "bob", "teacher"):
        roles[name] = Role(policy=name, prompt="{problem} {mine} {other}", parse=parse_accusation, sampling=at_most)
    roles["judge"] = debate(model=TINY, judge="frozen").roles["judge"]
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.collect(partial(argue, drafts=2, **options), TASKS, step=0, group_size=1)
    assert all(e.failure is None for e in episodes), episodes
    return [{n: [t for t in e.traces if t.role == n] for n in programs} for e in episodes]


def values(trace):
    return {one.name: one.value for one in trace.rewards}


def test_shares_of_a_constant_sum_add_up_to_1():
    for hits in ([True, True], [True, False], [False, True], [False, False], [True, None], [None, True], [None, False]):
        assert sum(debate_shares(hits)) == 1.0
    assert debate_shares([True, False]) == (1.0, 0.0) and debate_shares([True, True]) == (0.5, 0.5)
    assert debate_shares([False, None]) == (0.0, 1.0) and debate_shares([None, True]) == (0.0, 1.0)


@pytest.mark.parametrize("finds", [0.0, 0.3, 1.0])
def test_before_the_judge_with_one_check_a_debate_is_worth_what_a_consultancy_is(finds):
    """The accuser of the wrong solution is right with probability ``finds``, that of the right one never. In both games
    the right solution wins in (1 + finds) / 2 of the cases, so this judge cannot tell them apart (docs/results)."""
    debated = finds * debate_shares([True, False])[0] + (1 - finds) * debate_shares([False, False])[0]
    right_side = finds * debate_shares([True, None])[0] + (1 - finds) * debate_shares([False, None])[0]
    wrong_side = debate_shares([None, False])[0]  # the other one is accused, wrongly, and wins
    assert debated == pytest.approx((1 + finds) / 2) == (right_side + wrong_side) / 2


def test_who_defends_the_right_solution_and_finds_the_wrong_step_wins():
    sides = set()
    for found in played(find_it, samples=3):
        [speaker] = [name for name in ("alice", "bob") if len(found[name]) == 3]
        other = "bob" if speaker == "alice" else "alice"
        assert len(found[other]) == 1 and "paid" not in values(found[other][0])  # the prefix: heard, not paid
        right = found[speaker][0].metadata["right_side"]
        share = 1.0 if right else 0.0
        assert [values(t)["won"] for t in found[speaker]] == [share] * 3
        assert [values(t)["paid"] for t in found[speaker]] == ([1.0] if right else [-1.0]) * 3  # "9" is no step
        assert values(found[other][0]) == {"won": 1.0 - share}
        assert all(t.metadata["judged_right"] == 1.0 and t.metadata["hit"] is right for t in found[speaker])
        sides.add((speaker, right))
    assert len(sides) == 4  # who speaks and what it defends are drawn


def test_accusations_of_right_steps_decide_nothing():
    for found in played(always_first, samples=1):
        said = found["alice"] + found["bob"]
        assert [values(t)["won"] for t in said] == [0.5, 0.5] and not any(t.metadata["hit"] for t in said)


def test_a_consultant_is_heard_alone():
    for found in played(find_it, consultancy=True):
        [turn] = found["alice"] + found["bob"]
        right = turn.metadata["right_side"]
        assert values(turn)["won"] == float(right) and turn.metadata["judged_right"] == 1.0
    turns = [t for found in played(always_first, consultancy=True) for t in found["alice"] + found["bob"]]
    verdicts = {t.metadata["right_side"]: t.metadata["judged_right"] for t in turns}
    assert verdicts == {True: 0.0, False: 1.0}  # who accuses a right step loses


@pytest.mark.whole
def test_a_models_votes_are_the_share():
    for found in played(find_it, vote=lambda fields, rng: write_gram(True), jury=4):
        assert [values(found[side][0])["won"] for side in ("alice", "bob")] == [1.0, 0.0]
        assert len(found["judge"]) == 4 and {t.findings["final"] for t in found["judge"]} == {True}
        assert {t.metadata["correct"] for t in found["judge"]} == {found["alice"][0].metadata["right_side"]}
    for found in played(find_it, vote=lambda fields, rng: "hm", jury=4):
        assert [values(t)["won"] for t in found["alice"] + found["bob"]] == [0.5, 0.5]


def test_without_a_wrong_solution_there_is_no_debate():
    assert not any(f["alice"] or f["bob"] for f in played(find_it, one_kind=True))


def test_an_accusation_names_a_step():
    def read(text):
        found = parse_accusation(text, {"count": 3})
        return found.step if found.ok else found.reason

    assert [read(f"<answer>{n}</answer>") for n in ("1", "3", "4", "0", "x", "-1")] == [
        *(0, 2),
        *("no such step", "no such step", "no step", "no step"),
    ]
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("debate", "'shipped'")):
        debate(model="shipped")
    with refuses("E_OPTION_RANGE", names="drafts"):
        debate(drafts=1)
    with refuses("E_SETTING_RANGE", names="-1"):
        debate(words=-1)
    with refuses("E_SETTING_RANGE"):
        debate(algorithm="dpo", group_size=1)
    with refuses("E_KL_WITH_DPO", names="0.1"):
        debate(algorithm="dpo", kl=0.1)


@pytest.mark.parametrize("game", [debate])
def test_speeches_are_measured_under_the_rules_that_they_are_learned_under(game):
    made = game(words=7, overlong_penalty=0.5, unread=-2.0, model=TINY)
    for options in (made.evaluation.options, made.schedule.phases[0].options):
        expected = {"words": 7, "overlong_penalty": 0.5, "unread": -2.0}
        assert {key: options[key] for key in expected} == expected


def test_an_accusation_holds_its_argument_and_its_words():
    found = parse_accusation("<think>three or so\n</think>It adds twice. <answer>2</answer>", {"count": 3})
    assert (found.step, found.argument, found.words) == (1, "It adds twice.", 4)


def test_the_word_limit_costs_by_hand():
    # 10 words beyond a limit of 20 are half of the penalty; from 20 on it is all of it
    assert [speech_pay(1.0, words, 20, 0.5) for words in (0, 20, 30, 40, 400)] == [1.0, 1.0, 0.75, 0.5, 0.5]
    assert speech_pay(0.25, 999, 0, 0.5) == 0.25  # no limit
    words = np.arange(60)
    expected = 0.7 - 0.4 * np.clip((words - 12) / 12, 0.0, 1.0)
    assert [speech_pay(0.7, int(n), 12, 0.4) for n in words] == pytest.approx(expected.tolist())


def test_verbose_debaters_are_paid_less_and_their_judge_does_not_care():
    def talk(fields, rng):
        return "well " * 5 + find_it(fields, rng)

    for found in played(talk, samples=2, words=4, overlong_penalty=0.5, budget=99):
        turns = [t for t in found["alice"] + found["bob"] if "paid" in values(t)]
        assert {values(t)["paid"] for t in turns if t.metadata["right_side"]} <= {0.75}  # 6 words, 2 beyond 4: half of
        # 0.5
        assert all(values(t)["won"] == t.metadata["right_side"] for t in turns)


@pytest.mark.whole
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_what_is_won_adds_up_to_1_at_every_ply(turns):
    """One ply is drawn; there one side speaks three times, and before and behind it everybody once a line."""
    plies = set()
    for found in played(find_sometimes, samples=3, turns=turns, leaves=2):
        won = {side: [values(t)["won"] for t in found[side] if t.rewards] for side in ("alice", "bob")}
        [speaker] = [side for side in won if any("paid" in values(t) for t in found[side])]
        other = "bob" if speaker == "alice" else "alice"
        assert len(won[speaker]) == 3 and len(won[other]) == 1
        assert sum(won[speaker]) / 3 + won[other][0] == pytest.approx(1.0)
        at = len([t for t in found[speaker] if not t.rewards and t.address < first_paid(found[speaker]).address])
        behind = 0 if at + 1 == turns else 3 * 2 * (turns - at - 1)
        assert len(found[speaker]) == at + 3 + behind and len(found[other]) == at + 1 + behind
        plies.add((speaker, at))
    assert len(plies) == 2 * turns


def first_paid(traces):
    return next(t for t in traces if "paid" in values(t))


def find_sometimes(fields, rng):
    return find_it(fields, rng) if rng.random() < 0.5 else "<answer>1</answer>"


def test_a_speech_is_worth_the_mean_of_its_continuations():
    """A speech of the first of two turns is worth what follows from it: here the last accusations, by a coin."""
    seen = set()
    for found in played(find_sometimes, samples=2, turns=2, leaves=2):
        spoken = [t for t in found["alice"] + found["bob"] if "paid" in values(t)]
        early = len(found["alice"]) + len(found["bob"]) == 3 + 2 * 2 * 2
        seen |= {values(t)["won"] for t in spoken} if early else set()
    assert seen & {0.25, 0.75}  # a half and a whole, or a half and nothing


@pytest.mark.whole
def test_in_later_turns_debaters_hear_what_was_accused():
    heard = set()

    def listen(fields, rng):
        heard.add(fields["said"])
        return "<answer>1</answer>"

    played(listen, turns=3)
    assert heard == {"nothing", "Mine 1 Other 1", "Mine 1 Other 1 Mine 1 Other 1"}


@pytest.mark.parametrize("game", [debate])
@pytest.mark.parametrize("model", [TINY, "some/chat-model"])
def test_speeches_have_room_for_their_words_and_prompts_say_the_limit(game, model):
    def debater(**options):
        return game(model=model, **options).roles["bob"]

    chat = model != TINY
    assert debater().sampling.max_tokens == (400 if chat else 16) and debater(words=50).sampling.max_tokens == 200
    assert debater(words=0).sampling.max_tokens == (256 if chat else 64)
    assert ("words" in fields_of(debater().prompt)) is chat
    made = game(model=model)
    assert made.schedule.phases[0].options["words"] == (100 if chat else 4)


def test_dpo_plus_has_the_constants_of_the_paper():
    for consultancy, gamma in ((False, 7.0), (True, 10.0)):
        made = debate(algorithm="dpo", consultancy=consultancy)
        by = made.objectives["debater"].algorithm
        assert (by.soft, by.betas, by.sft, by.better) == (gamma, (0.5,), 0.005, PAID)
        assert made.policies["before"].every == 20
