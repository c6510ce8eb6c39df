"""A solver before a judge, with a critic, a consultant or nobody against it."""

from functools import partial

import pytest
from cotrain_zoo.debate_solve.contests import check_step, contest, parse_review_as_accusation
from cotrain_zoo.debate_solve.prompts import CHECK_STEP, CRITICISE
from cotrain_zoo.debate_solve.recipe import debate_solve

from cotrain.core.types import Sampling
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.role_replies import write_review
from cotrain.metrics.heldout import measure_verifier
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.debate.debates import parse_accusation
from cotrain.rollout import verifier_roles
from cotrain.rollout.common_roles import parse_solution, verifier
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.runs.memory_plan import estimate_run
from tests.helpers import EASY, TINY, spoken
from tests.recipes import test_debate
from tests.sentences import refuses

TASKS = [study_problems((3, 3)).get("train", i) for i in range(40)]


def wrong_answer(task):
    """The worked solution with its last step wrong, which is the third one."""
    begin, _, rest = task.solution.rpartition(f"={task.gold} ")
    noun, number = rest.partition("</step>")[0], int(task.gold) + 1
    return f"{begin}={number} {noun}</step><answer>{number}</answer>"


def names_it(fields, rng):
    """The third step, which is the wrong one where there is one; a right one for who speaks for the solution."""
    return "<answer>1</answer>" if fields["asked"] == "Right step" else "<answer>3</answer>"


def played(speak, *, protocol=contest, right=0.5, votes=None, judge=None, parse=parse_accusation, budget=9, **options):
    """Episodes of ``TASKS`` by role; ``right``: the chance of a right solution."""
    solutions = {task.prompt: (task.solution, wrong_answer(task)) for task in TASKS}

    def write(fields, rng):
        if right is None:
            return "no idea"
        return solutions[fields["problem"]][rng.random() >= right]

    programs = {"solver": write, "before": write, "bob": speak, "teacher": speak, "judge": votes or check_step}
    at_most = Sampling(max_tokens=9)
    roles = {}
    for name in ("solver", "before"):
        roles[name] = Role(policy=name, prompt="{problem}", parse=parse_solution, sampling=at_most)
    for name in ("bob", "teacher"):
        roles[name] = Role(policy=name, prompt=CRITICISE, parse=parse, sampling=Sampling(max_tokens=budget))
    roles["judge"] = judge or (verifier("judge", TINY) if votes else verifier_roles.checker_role("judge", CHECK_STEP))
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    episodes = executor.collect(partial(protocol, **options), TASKS, step=0, group_size=1)
    assert all(e.failure is None for e in episodes), [e.failure for e in episodes]
    return episodes


def by_role(episode):
    return {name: [t for t in episode.traces if t.role == name] for name in ("solver", "bob", "judge", "teacher")}


def values(trace):
    return {one.name: one.value for one in trace.rewards}


def test_one_ply_is_drawn_and_what_is_won_adds_up_to_1():
    plies = set()
    for found in map(by_role, played(names_it, samples=4)):
        paid = {name for name in ("solver", "bob") for t in found[name] if "paid" in values(t)}
        assert len(paid) == 1 and len(found["judge"]) == len(found["bob"]) == 4
        assert len(found["solver"]) == (4 if paid == {"solver"} else 1)
        plies |= paid
        for solution in found["solver"]:
            share, right = values(solution)["won"], solution.metadata["correct"]
            against = [values(t)["won"] for t in found["bob"] if t.parent == str(solution.address)]
            assert share + sum(against) / len(against) == 1.0 and share == float(right)  # bob finds every error
            assert values(solution).get("paid", share) == share
    assert plies == {"solver", "bob"}


def test_before_a_critic_who_finds_all_the_judge_is_never_wrong_and_alone_it_often_is():
    debated = measure_verifier("judge")(played(names_it))
    alone = measure_verifier("judge")(played(names_it, critic="none"))
    assert debated["judge/mcc"].value == 1.0 and debated["gap"].value == 0.0
    # a drawn step of a wrong solution is right in 2 of 3 cases
    assert alone["judge/true_positive_rate"].value == 1.0 and 0.1 < alone["judge/true_negative_rate"].value < 0.6
    assert 0.0 < alone["judge/mcc"].value < 0.8 and alone["gap"].value > 0.1


@pytest.mark.whole
def test_a_critic_who_reviews_accuses_the_first_step_that_it_calls_wrong_and_may_accuse_nobody():
    reviewed = {"parse": parse_review_as_accusation, "budget": 99}

    def finds(fields, rng):
        return write_review(["x"] * 3, [True, True, False], False)

    def trusts(fields, rng):
        return write_review(["x"] * 3, [True] * 3, True)

    assert measure_verifier("judge")(played(finds, **reviewed))["judge/mcc"].value == 1.0
    trusting = played(trusts, **reviewed)
    assert not any(t.metadata["hit"] for episode in trusting for t in by_role(episode)["bob"])
    said = measure_verifier("judge")(trusting)  # the judge checks a drawn step, as if nobody had spoken
    assert said["judge/true_positive_rate"].value == 1.0 and 0.1 < said["judge/true_negative_rate"].value < 0.6


def test_without_an_opponent_the_judge_pays_the_solver_alone():
    for found in map(by_role, played(names_it, critic="none", samples=3)):
        assert len(found["solver"]) == len(found["judge"]) == 3 and not found["bob"]
        said = {t.parent: t.findings["final"] for t in found["judge"]}
        assert all(values(t)["paid"] == values(t)["won"] == float(said[str(t.address)]) for t in found["solver"])


def test_a_consultant_wins_what_its_side_gets():
    sides = set()
    for found in map(by_role, played(names_it, critic="consultant", samples=2)):
        for turn in found["bob"]:
            [solution] = [t for t in found["solver"] if str(t.address) == turn.parent]
            right = solution.metadata["correct"]
            side = turn.metadata["right_side"] == right  # it speaks for the solution
            believed = 1.0 if side else float(right)  # a right first step convinces the judge
            assert values(turn)["won"] == (believed if side else 1.0 - believed)
            assert turn.metadata.get("hit") == (None if side else not right)  # who speaks for it accuses nothing
            sides.add((side, right))
    assert len(sides) == 4


def test_who_cannot_be_read_is_paid_for_it_and_heard_as_nobody():
    for found in map(by_role, played(lambda fields, rng: "hm", samples=2)):
        assert all(values(t).get("paid", -1.0) == -1.0 and not t.metadata["hit"] for t in found["bob"])
        assert len(found["judge"]) == 2
    for found in map(by_role, played(names_it, right=None, samples=2, unread=-0.5)):
        assert not found["bob"] and not found["judge"]
        assert all(values(t).get("paid", -0.5) == -0.5 for t in found["solver"])


@pytest.mark.whole
@pytest.mark.parametrize("final", [True, False])
def test_a_model_that_judges_each_step_is_asked_for_the_one_that_is_named(final):
    """It calls the first two steps right, the third wrong, and all of it ``final``."""

    def vote(fields, rng):
        return write_review(["", "", ""], [True, True, False], final)

    for found in map(by_role, played(names_it, votes=vote, jury=3, samples=2)):
        assert {t.findings["final"] for t in found["judge"]} == {False} and len(found["judge"]) == 6
        assert {values(t)["won"] for t in found["solver"]} == {0.0}
    for found in map(by_role, played(names_it, votes=vote, jury=3, critic="none")):
        assert values(found["solver"][0])["won"] == float(final)


def test_a_model_that_reads_hears_the_critic_within_the_mark():
    heard = []

    def vote(fields, rng):
        heard.append(fields["solution"])
        return "<verdict>No</verdict>"

    judge = verifier_roles.genrm("judge", "some/chat-model")
    for found in map(by_role, played(names_it, votes=vote, judge=judge, jury=2, critic="consultant")):
        assert values(found["solver"][0])["won"] == 0.0 and len(found["judge"]) == 2
    said = {text.strip().splitlines()[-2] for text in heard}
    assert said == {"It is said to be wrong in step 3.", "It is said to be right in step 1."}


def test_a_judge_that_cannot_be_read_decides_nothing():
    for found in map(by_role, played(names_it, votes=lambda fields, rng: "hm", jury=2)):
        assert values(found["solver"][0])["won"] == 0.5


def test_a_review_accuses_the_first_step_that_it_calls_wrong():
    def read(*verdicts):
        blocks = "".join(f"<step>so. {'CORRECT' if ok else 'INCORRECT'}</step>" for ok in verdicts)
        return parse_review_as_accusation(blocks + "<final>INCORRECT</final>", {"count": 3})

    assert [read(*v).step for v in ((1, 0, 0), (0, 1, 1), (1, 1, 1))] == [1, 0, None]
    assert read(1, 0).reason == "step count"
    made = debate_solve(critic="reviewer", model="shipped")
    assert [phase.name for phase in made.schedule.phases] == ["debate"]


def test_controls_and_refusals():
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("debate_solve", "'shipped'")):
        debate_solve(model="shipped")
    assert debate_solve(model="shipped", critic="none").name == "debate-solve-rlaif"
    with refuses("E_SETTING_RANGE", names="-1"):
        debate_solve(words=-1)


def test_a_game_without_a_word_limit_can_be_estimated():
    made = debate_solve(words=0, model=TINY, tasks=EASY, tasks_per_step=2, group_size=2)
    assert estimate_run(made, device="cpu").memory


def test_speeches_of_both_games_have_one_set_of_rules():
    test_debate.test_speeches_are_measured_under_the_rules_that_they_are_learned_under(debate_solve)
    for model in (TINY, "some/chat-model"):
        test_debate.test_speeches_have_room_for_their_words_and_prompts_say_the_limit(debate_solve, model)
