"""CoVerRL: votes, vetoes and who is paid by whom, every reward by hand, on solutions and reviews that are dictated."""

from dataclasses import replace

import pytest
from cotrain_zoo.coverrl import coverrl, is_vetoed, parse_revision, review_anchors, vote_then_verify

from cotrain.rollout.votes import elected_turn
from tests.recipes.test_label_free import RIGHT, SOLVER, WRONG, asked, noted, paid, play, solved, turns
from tests.sentences import refuses


def reviewed(reviews, gold="7", answers=("7", "5", "7", "7", "5", "4"), **options):
    """Two reviews of either anchor; revisions continue after what was kept."""
    said = {
        "solver": solved(*answers),
        "verifier": reviews,
        "refiner": ["<step>c</step><answer>7</answer>", "no", "<step>c</step><answer>5</answer>", "no"],
    }
    how = {"votes": len(answers), "trained": 4, "reviews": 2, "revisions": 2}
    roles = {"refiner": replace(SOLVER, parse=parse_revision)}
    return play(vote_then_verify, gold, said=said, roles=roles, **how | options)


def test_coverrl_pays_each_role_for_agreeing_with_the_label():
    traces = reviewed([RIGHT, RIGHT, WRONG, RIGHT])
    assert paid(traces["solver"], "agreement") == [1.0, 0.0, 1.0, 1.0, None, None]
    assert paid(traces["solver"], "format") == [1.0] * 4 + [None] * 2
    solver, reviews = [str(t.address) for t in traces["solver"]], traces["verifier"]
    assert [t.parent for t in reviews] == [solver[0], solver[2], solver[5], solver[5]]  # 4 is rarer than 5
    assert [t.group for t in reviews] == ["0:solver/7"] * 2 + ["0:solver/4"] * 2
    assert paid(reviews, "agreement") == [1.0, 1.0, 1.0, 0.0] and paid(reviews, "format") == [1.0] * 4
    assert noted(reviews, "correct") == [True, True, False, False]
    first, second = traces["refiner"]  # after the one verdict "wrong"
    assert {t.group for t in (first, second)} == {str(reviews[2].address)} == {t.parent for t in (first, second)}
    assert asked(first) == "P=<step>a</step>" == asked(second)
    assert first.findings["answer"] == "7" and second.findings["failure"] == "no answer"
    assert paid([first, second], "agreement") == [1.0, 0.0] and paid([first, second], "format") == [1.0, 0.0]
    assert noted([first, second], "correct") == [True, False]
    assert noted(traces["solver"], "vetoed") == [False] * 6
    assert (
        noted(traces["solver"], "kept_label_right") == [True] * 6
        and noted(traces["solver"], "veto_right") == [None] * 6
    )


def test_a_vetoed_problem_teaches_nobody():
    traces = reviewed([RIGHT, WRONG, WRONG, RIGHT])  # one to one on the elected answer
    assert not traces["refiner"] and not any(t.rewards for role in traces.values() for t in role)
    assert noted(traces["solver"], "vetoed") == [True] * 6 and noted(traces["solver"], "veto_right") == [False] * 6
    assert noted(reviewed([WRONG, WRONG, RIGHT, RIGHT], gold="5")["solver"], "veto_right") == [True] * 6
    kept = reviewed([RIGHT, WRONG, WRONG, RIGHT], veto=False)
    assert paid(kept["verifier"], "agreement") == [1.0, 0.0, 1.0, 0.0] and len(kept["refiner"]) == 4
    assert [t.group for t in kept["refiner"]] == [str(kept["verifier"][i].address) for i in (1, 1, 2, 2)]


def test_an_unread_review_is_no_verdict():
    traces = reviewed([RIGHT, "INCORRECT?", "wrong", RIGHT])
    assert noted(traces["solver"], "vetoed") == [False] * 6  # one to none
    assert paid(traces["verifier"], "agreement") == [1.0, 0.0, 0.0, 0.0] and not traces["refiner"]
    assert paid(traces["verifier"], "format") == [1.0, 0.0, 0.0, 1.0]


def test_coverrl_pays_the_same_where_nobody_knows_the_truth():
    for verdicts in ([RIGHT, RIGHT, WRONG, RIGHT], [RIGHT, WRONG, WRONG, RIGHT]):
        known, unknown = reviewed(verdicts), reviewed(verdicts, gold=None)
        for role, traces in unknown.items():
            assert [t.rewards for t in traces] == [t.rewards for t in known[role]]
            assert not any(t.failure for t in traces)
            assert set().union(*(t.metadata for t in traces), ()) <= {"vetoed"}
    assert coverrl(labelled="4").schedule.phases[0].unlabelled == 1.0


def test_without_balance_the_first_solutions_are_reviewed_as_they_come():
    traces = reviewed([RIGHT, RIGHT, RIGHT, RIGHT], balanced=False)
    assert [t.group for t in traces["verifier"]] == [f"0:solver/{a}" for a in "7577"]
    assert paid(traces["verifier"], "agreement") == [1.0, 0.0, 1.0, 1.0]


def test_what_is_reviewed():
    def chosen(*answers, **how):
        spoken = turns(*answers)
        return [(spoken.index(t), copies) for t, copies in review_anchors(spoken, elected_turn(spoken), 2, **how)]

    assert chosen("7", "", "7", "7", "5") == [(0, 1), (2, 1), (4, 2)]
    assert chosen("7", "7", "7") == [] == chosen("7", "", "7")  # no rival that can be read
    assert chosen("7", "5") == []  # one review has no other to be compared with
    assert chosen("5", "7", "", "4", "3", "7", balanced=False) == []  # one 7 among the first four that can be read
    assert chosen("7", "7", "", "7", "7", "5", balanced=False) == [(0, 1), (1, 1), (3, 1), (4, 1)]


def test_a_tie_is_a_veto_and_silence_is_none():
    assert is_vetoed([True, False]) and is_vetoed([False]) and is_vetoed([True, False, False])
    assert not is_vetoed([True, True, False]) and not is_vetoed([True]) and not is_vetoed([])


def test_revisions_are_shown_the_review_or_what_it_left():
    embedded = coverrl().roles["refiner"].prompt
    assert embedded == coverrl().roles["solver"].prompt
    assert "{review}" in coverrl(model="some/chat-model").roles["refiner"].prompt
    assert coverrl(model="some/chat-model", regenerate="prefix").roles["refiner"].prompt != embedded


def test_after_a_shown_review_the_solution_is_written_anew():
    first, second = reviewed([RIGHT, RIGHT, WRONG, RIGHT], regenerate="review")["refiner"]
    assert asked(first) == "P=" and first.findings == {"kept": "", "answer": "7"}
    assert paid([first, second], "agreement") == [1.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"votes": 4}, "E_SETTING_RANGE: votes 4"),
        ({"revisions": 1}, "E_SETTING_RANGE: revisions 1"),
        ({"regenerate": "revise"}, "E_UNKNOWN_CHOICE: regenerate of coverrl | 'revise'"),
        ({"regenerate": "review"}, "E_MODEL_WITHOUT_REVIEW_PROMPT: regenerate='prefix'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, code):
    with refuses(code) as error:
        coverrl(**arguments)
    assert "\n" not in str(error.value)


def test_no_reward_depends_on_the_truth():
    for verdicts in ([RIGHT, RIGHT, WRONG, WRONG], [RIGHT, WRONG, WRONG, RIGHT]):
        played = [reviewed(verdicts, gold=gold) for gold in ("5", "7", "0")]
        signals = [[t.rewards for traces in by_role.values() for t in traces] for by_role in played]
        assert signals[0] == signals[1] == signals[2]
