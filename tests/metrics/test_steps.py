"""Telemetry of one step, counted by hand on small invented traces."""

from dataclasses import replace

import pytest

from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Reward, Trace, TurnRange
from cotrain.metrics.steps import (
    accuracy_figures,
    answer_figures,
    comments_on_traces,
    credit_row,
    entropy_figures,
    gives_verdicts,
    learner_row,
    length_figures,
    metadata_figures,
    review_figures,
    reward_figures,
    reward_gap,
    role_metrics,
    score_figures,
    text_figures,
)


def trace(
    role="solver", task=0, member=0, *, call=0, tokens=1, parent=None, score=None, signals=(), parsed=None, **truth
):
    return Trace(
        address=Address(step=0, task=task, member=member, role=role, call=call), role=role, policy=role, version=0,
        group="g", prompt_ids=(1,), token_ids=(2,) * tokens, logprobs=(-1.0,) * tokens, text="", finish="stop",
        rewards=tuple(Reward(name=s[0], value=s[1], tokens=s[2] if len(s) > 2 else None) for s in signals),
        findings=parsed or {}, metadata=truth, parent=parent, score=score,
    )  # fmt: skip


def test_notes_of_the_protocol_are_averaged_and_known_ones_are_left_out():
    known = {"correct": True, "step_ok": [True], "step_reasons": [""], "first_wrong": 0, "gold": 12}
    traces = [
        trace(label_right=True, pressure=0.25, why="text", **known),
        trace(label_right=False, parts=[1]),
        trace(label_right=None, pressure=0.75),
    ]
    assert metadata_figures(traces) == {"metadata/label_right": 0.5, "metadata/pressure": 0.5}


def test_an_answer_that_failed_after_its_grade_is_graded():
    """A reward that was not a number made half of the answers "ungraded", with an alarm about the grader."""
    failed_by_reward = replace(trace(correct=True), failure="reward reward out of range")
    failed_by_grader = replace(trace(), failure="timeout")
    assert accuracy_figures([trace(correct=False), failed_by_reward]) == {"ungraded": 0.0, "accuracy": 0.5}
    row = accuracy_figures([trace(correct=False), failed_by_reward, failed_by_grader])
    assert row == {"ungraded": pytest.approx(1 / 3), "accuracy": 0.5}


def test_the_entropy_of_a_role_is_that_of_its_sampled_tokens():
    """Levels 22 and 44 are 1 and 4 nats; what was given in between has level 0 and is no token of its own."""
    short = replace(trace(tokens=2), entropies=bytes([22, 44]))
    long = replace(
        trace(tokens=4),
        entropies=bytes([22, 0, 0, 22]),
        turns=(TurnRange(start=0, end=1, finish="stop"), TurnRange(start=3, end=4, finish="stop")),
    )
    assert entropy_figures([short, long, trace(tokens=9)]) == {"entropy": pytest.approx((1 + 4 + 1 + 1) / 4)}
    assert entropy_figures([trace()]) == {} and "entropy" not in text_figures([trace()])
    row = role_metrics([Episode(step=0, task=0, member=0, task_id="t", traces=(short,))], ["solver"])
    assert row["solver/entropy"] == pytest.approx(2.5)


def test_rewards_of_whole_traces_are_split_by_the_truth():
    traces = [
        trace(correct=True, signals=[("proxy", 1.0), ("step", -1.0, (0, 1))]),
        trace(correct=False, signals=[("proxy", 0.9995)]),  # within a thousandth of the maximum
        trace(correct=False, signals=[("proxy", 0.25)]),
        trace(signals=[("proxy", 0.5), ("other", 2.0)]),  # nobody knows whether it is right
    ]
    assert reward_figures(traces) == {
        "reward/other": 2.0,
        "reward/proxy": pytest.approx(0.687375),
        "reward/step": -1.0,
        "reward/other/at_max": 1.0,
        "reward/proxy/at_max": 0.5,
        "reward/proxy/right": 1.0,
        "reward/proxy/wrong": pytest.approx(0.62475),
    }


def test_lengths_have_quantiles_and_sides():
    traces = [trace(tokens=n, correct=n <= 3) for n in range(1, 12)]
    assert length_figures(traces) == {
        "length/p10": 2.0,
        "length/p50": 6.0,
        "length/p90": 10.0,
        "length/right": 2.0,
        "length/wrong": 7.5,
    }


def review(parent, final=None, *, steps=None, failure=None):
    parsed = {"failure": failure} if failure else {"final": final} | ({"steps": steps} if steps else {})
    return trace("verifier", parent=parent, parsed=parsed, correct=True)


def test_reviews_align_with_the_steps_and_agree_with_each_other():
    traces = [
        *(review("a", said, steps=[said]) for said in (True, True, True)),
        review("b", True),
        review("b", False),
        review("b", failure="stray text"),  # its steps were in order
        review("c", failure="step count"),
        review("c", True),  # one readable review agrees with nobody
    ]
    assert review_figures(traces) == {"aligned": 0.875, "unanimous": 0.5}
    assert review_figures([review("a", True)]) == {}  # a verdict without steps, and alone


def said(answer, *, n_steps):
    return {"answer": answer, "steps": [(place, place + 1, "x") for place in range(n_steps)]}


def test_steps_are_counted_where_nobody_knows_which_are_right():
    """Runs on ``--data`` had no figure of them."""
    traces = [trace(correct=True, parsed=said("7", n_steps=3)), trace(parsed=said("8", n_steps=2)), trace()]
    assert accuracy_figures(traces)["steps"] == 2.5


def test_accuracy_of_answers_and_of_steps():
    traces = [
        trace(correct=True, step_ok=[True, True, False], parsed=said("7", n_steps=3)),
        trace(correct=True, step_ok=[True], parsed=said("7", n_steps=1)),
        trace(correct=False, step_ok=[True, False], parsed=said("8", n_steps=2)),
        trace(correct=False),
        trace(),  # nobody knows
    ]
    assert accuracy_figures(traces) == {
        "ungraded": 0.0,
        "accuracy": 0.5,
        "step_accuracy": 4 / 6,
        "steps": 2.0,
        "sound_when_correct": 0.5,
    }
    assert accuracy_figures([trace()]) == {}


def test_what_was_said_is_counted():
    traces = [
        trace(tokens=3),
        trace(tokens=5, parsed={"failure": "no answer"}),
        trace(tokens=4, parsed={"calls": ["timeout"]}),
    ]
    assert text_figures([replace(traces[0], finish="length"), *traces[1:]]) == {
        "traces": 3,
        "tokens": 12,
        "length": 4.0,
        "truncated": pytest.approx(1 / 3),
        "parse_failures": pytest.approx(1 / 3),
        "parse_failure/no answer": 1,
        "call/timeout": 1,
    }


def test_the_gap_counts_readable_reviews_alone():
    told = [review("a", True), review("b", True), review("c", False), review("d", failure="no steps")]
    wrong = trace("verifier", parent="e", parsed={"final": True}, correct=False)
    episode = Episode(step=0, task=0, member=0, task_id="t", traces=(trace(correct=True), *told, wrong))
    assert reward_gap([episode]) == (3 - 3) / 4  # CORRECT three times, right three of four times
    assert reward_gap([replace(episode, traces=(*told[:1], wrong))]) == 0.5
    assert reward_gap([replace(episode, traces=(trace(correct=True),))]) is None


def test_verdicts_on_reviews_and_on_questions_are_not_in_the_gap():
    solution = trace(correct=False)
    said = trace("verifier", parent=str(solution.address), parsed={"final": True}, correct=False)
    on_review = trace("meta", parent=str(said.address), parsed={"final": False}, correct=True)
    question = trace("proposer")
    on_question = trace("rater", parent=str(question.address), parsed={"final": False}, correct=True)
    episode = Episode(step=0, task=0, member=0, task_id="t", traces=(solution, said, on_review, question, on_question))
    assert reward_gap([episode]) == 1.0
    assert reward_gap([replace(episode, traces=(question, on_question))]) is None


def test_keys_of_credit_and_learning_do_not_meet_those_of_a_role():
    assert credit_row("verifier", {"traces": 2.0, "reward/x": 0.5, "groups": 1.0}, {"zero_spread": 3}, 2) == {
        "verifier/credit/samples": 2,
        "verifier/credit/traces": 2.0,
        "verifier/credit/reward/x": 0.5,
        "verifier/groups": 1.0,
        "verifier/dropped/zero_spread": 3,
    }
    assert learner_row("verifier", {"tokens": 9.0, "lr": 0.1, "forward_seconds": 2.0}) == {
        "verifier/learned_tokens": 9.0,
        "verifier/lr": 0.1,
    }


def test_answers_are_counted_by_problem():
    said = {0: ("4", "4", "5"), 1: ("7", "8", "7", "7"), 2: ("1",), 3: (None, None)}
    right = {0: "4", 1: "8"}
    traces = [
        trace(task=task, member=i, parsed={} if a is None else {"answer": a}, correct=a == right.get(task))
        for task, all_of in said.items()
        for i, a in enumerate(all_of)
    ]
    assert answer_figures(traces) == {
        "distinct_answers": 2.0,
        "majority_share": pytest.approx((2 / 3 + 3 / 4) / 2),
        "majority_share/right": pytest.approx(2 / 3),
        "majority_share/wrong": 0.75,
        "majority_accuracy": 0.5,
    }
    assert answer_figures(traces[-3:]) == {}


def test_an_answer_of_unknown_truth_has_a_majority_all_the_same():
    traces = [trace(member=i, parsed={"answer": "3"}) for i in range(2)]
    assert answer_figures(traces) == {"distinct_answers": 1.0, "majority_share": 1.0}


def test_scores_are_split_by_the_truth():
    traces = [trace("rater", score=2.0, correct=True), trace("rater", score=-1.0, correct=False)]
    assert score_figures(traces) == {"score": 0.5, "score/right": 2.0, "score/wrong": -1.0}
    assert score_figures([trace()]) == {}


def test_who_judges():
    verdict, critique = review("a", True), trace("critic", parent="a")
    refinement = trace("refiner", parent="a", parsed={"answer": "3"}, correct=True)
    assert gives_verdicts([verdict]) and gives_verdicts([review("a", failure="no steps")])
    assert comments_on_traces([critique]) and not gives_verdicts([critique])
    assert not comments_on_traces([refinement, trace("refiner", parent="a", parsed={"failure": "no answer"})])
    assert not comments_on_traces([trace()]) and comments_on_traces([trace(score=1.0)])


def test_a_refiner_none_of_whose_answers_can_be_read_is_no_verifier():
    """It was: its accuracy was missing, and an alarm advised another --verdict."""
    unread = {"problem": "1 + 1?", "failure": "stray tag"}
    refinements = [trace("refiner", parent="a", parsed=unread, correct=False)]
    row = role_metrics([Episode(step=0, task=0, member=0, task_id="t", traces=tuple(refinements))], ["refiner"])
    assert row["refiner/accuracy"] == 0.0
    assert row["refiner/parse_failures"] == 1.0
    assert "refiner/base_rate" not in row


def test_a_row_has_truth_for_solvers_and_verdict_rates_for_judges():
    played = (
        trace(parsed={"answer": "3"}, correct=True),
        review("a", True, steps=[True]),
        trace("critic", parent="a", correct=True),
        trace("refiner", parent="a", parsed={"answer": "3"}, correct=True),
    )
    row = role_metrics(
        [Episode(step=0, task=0, member=0, task_id="t", traces=played)], ["solver", "verifier", "critic", "refiner"]
    )
    assert row["solver/accuracy"] == row["refiner/accuracy"] == row["verifier/true_positive_rate"] == 1.0
    assert row["verifier/mcc_undefined"] == 1.0 and "verifier/mcc" not in row  # nothing wrong was judged
    assert not {"verifier/accuracy", "critic/accuracy", "critic/base_rate", "refiner/base_rate"} & set(row)
    assert row["critic/length/p50"] == 1.0
