"""Figures counted by hand on small invented episodes."""

import json
from dataclasses import replace

import pytest

from cotrain.core.notes import Metadata
from cotrain.core.seeding import Address
from cotrain.core.statistics import independent_difference
from cotrain.core.types import BROKEN_OFF, Episode, Reward, Trace, TurnRange
from cotrain.metrics.clusters import counts_json, paired_changes
from cotrain.metrics.heldout import (
    measure_metadata,
    measure_pass_at_k,
    measure_selection,
    measure_solver,
    measure_verifier,
    trajectories_in,
)
from cotrain.metrics.steps import role_metrics, verdict_rates
from cotrain.trainer.evaluation import failed_shares


def trace(role, task, member, *, parsed, truth, call=0, parent=None):
    address = Address(step=-1, task=task, member=member, role=role, call=call)
    return Trace(
        address=address,
        role=role,
        policy=role,
        version=0,
        group="g",
        prompt_ids=(1,),
        token_ids=(2,),
        logprobs=(-1.0,),
        text="",
        finish="stop",
        rewards=(),
        findings=parsed,
        metadata=truth,
        parent=parent,
    )


def episode(task, member, answer, correct, step_ok, said, score=None, steps_said=None):
    """One solution and its review; ``said`` None is an unparsed review."""
    solution = trace("solver", task, member, parsed={"answer": answer}, truth={"correct": correct, "step_ok": step_ok})
    view = {} if said is None else {"final": said, "steps": steps_said or [said] * len(step_ok)}
    if score is not None:
        view["score"] = score
    review = trace(
        "verifier",
        task,
        member,
        parsed=view,
        truth={"correct": correct, "step_ok": step_ok},
        parent=str(solution.address),
    )
    return Episode(step=-1, task=task, member=member, task_id=f"t{task}", traces=(solution, review))


FOUR = [
    episode(0, 0, "4", True, [True, True], True, 0.9),
    episode(0, 1, "5", False, [True, False], False, 0.2, [True, False]),
    episode(1, 0, "7", False, [False, True], True, 0.6),  # fooled
    episode(1, 1, "9", True, [True, True], None),  # not parsed
]


def test_pass_at_powers_of_two_is_estimated_from_all_samples():
    """Of six samples 2 and 0 are right: pass@k is the mean of 1 − C(4, k) / C(6, k) and 0. Two have no pass@4."""
    played = [episode(0, i, "4", i < 2, [True], None) for i in range(6)]
    played += [episode(1, i, "5", False, [True], None) for i in range(6)]
    found = measure_pass_at_k("solver", 6)(played)
    assert {key: value.value for key, value in found.items()} == {
        "solver/pass@1": pytest.approx(1 / 6),
        "solver/pass@2": pytest.approx((1 - 6 / 15) / 2),
        "solver/pass@4": pytest.approx((1 - 1 / 15) / 2),
        "solver/pass@6": pytest.approx(0.5),
    }
    assert found["solver/pass@6"].n == 2 and list(measure_pass_at_k("solver", 256)([]).values()) == []
    short = measure_pass_at_k("solver", 6)([*played, *(episode(2, i, "6", True, [True], None) for i in range(2))])
    assert short["solver/pass@4"].value == found["solver/pass@4"].value
    assert short["solver/pass@2"].value == pytest.approx((0.6 + 0 + 1) / 3)
    assert [short[f"solver/pass@{k}"].n for k in (1, 2, 4, 6)] == [3, 3, 2, 2]  # the third has two samples


def test_a_figure_of_k_samples_is_out_of_the_tasks_that_have_them():
    """Two samples of one task and eight of another: pass@8 and majority@8 are out of one task."""
    played = [episode(0, i, "4", True, [True], None) for i in range(2)]
    played += [episode(1, i, "5", True, [True], None) for i in range(8)]
    found = measure_pass_at_k("solver", 8)(played) | measure_solver("solver", 8)(played)
    assert found["solver/pass@8"].n == found["solver/majority@8"].n == 1
    assert measure_pass_at_k("solver", 8)(played)["solver/pass@8"].n == 1 and found["solver/pass@2"].n == 2


def test_a_solver_is_measured_over_all_its_samples():
    figures = measure_solver("solver", 2)(FOUR)
    assert figures["solver/pass@1"].value == 0.5 and figures["solver/pass@1"].n == 4
    assert figures["solver/pass@2"].value == 1.0
    assert figures["solver/step_accuracy"].value == pytest.approx(6 / 8)
    # both tasks: a tie of two answers, the first one wins; it is right in task 0 and wrong in task 1
    assert figures["solver/majority@2"].value == 0.5


def test_an_unparsed_review_counts_as_a_wrong_judgement():
    figures = measure_verifier("verifier")(FOUR)
    # right solutions: one recognised, one unparsed; wrong ones: one recognised, one missed
    assert figures["verifier/true_positive_rate"].value == 0.5
    assert figures["verifier/true_negative_rate"].value == 0.5
    assert figures["verifier/balanced_accuracy"].value == 0.5
    assert figures["verifier/parsed"].value == 0.75
    # wrong solutions found: 1 hit, 1 false alarm (the unparsed one), 1 miss
    assert figures["verifier/error_f1"].value == pytest.approx(2 / (2 + 1 + 1))
    # of three parsed ones, two said CORRECT and one is
    assert figures["gap"].value == pytest.approx(2 / 3 - 1 / 3)


def test_steps_are_judged_one_by_one():
    figures = measure_verifier("verifier")(FOUR)
    # true steps: 2 + 1 + 1 said right, 2 of the unparsed review said wrong; wrong steps: 1 found, 1 missed
    assert figures["verifier/step_balanced_accuracy"].value == pytest.approx((4 / 6 + 1 / 2) / 2)
    assert figures["verifier/first_error_accuracy"].value == 0.5
    # wrong ones located 1 of 2, right ones left alone 1 of 2
    assert figures["verifier/processbench_f1"].value == pytest.approx(0.5)
    assert figures["verifier/right_verdict_wrong_step"].value == 0.0


def test_calibration_is_the_mean_distance_of_score_and_truth():
    figures = measure_verifier("verifier")(FOUR)
    # bins 0.9 → 1, 0.2 → 0, 0.6 → 0, one review each
    assert figures["verifier/calibration_error"].value == pytest.approx((0.1 + 0.2 + 0.6) / 3)


def test_the_judge_chooses_among_solutions():
    figures = measure_selection("solver", "verifier", 2)(FOUR)
    # task 0: 0.9 against 0.2, right; task 1: 0.6 (wrong) against 0.5 for the unparsed one
    assert figures["solver/best@2"].value == 0.5
    assert figures["solver/weighted@2"].value == 0.5


def test_an_unreadable_review_scores_one_half():
    pair = [episode(0, 0, "4", True, [True], None), episode(0, 1, "5", False, [False], True, 0.4)]
    assert measure_selection("solver", "verifier", 2)(pair)["solver/best@2"].value == 1.0
    pair = [episode(0, 0, "4", True, [True], None), episode(0, 1, "5", False, [False], True, 0.6)]
    assert measure_selection("solver", "verifier", 2)(pair)["solver/best@2"].value == 0.0


def test_a_wrong_step_is_blamed_only_where_a_wrong_solution_is_rejected():
    played = [
        episode(0, 0, "5", False, [True, False], False, steps_said=[False, True]),  # rejected for another step
        episode(1, 0, "5", False, [True, False], False, steps_said=[True, False]),  # for the right one
        episode(2, 0, "5", False, [True, False], True, steps_said=[False, True]),  # accepted
        episode(3, 0, "4", True, [True, False], False, steps_said=[False, True]),  # the answer is right all the same
    ]
    found = measure_verifier("verifier")(played)["verifier/right_verdict_wrong_step"]
    assert (found.value, found.n) == (0.5, 2)


def test_precision_and_recall_are_about_wrong_solutions():
    # wrong: 3 rejected, 1 accepted; right: 2 rejected, 1 accepted, 1 not readable
    said = [(False, False)] * 3 + [(False, True)] + [(True, False)] * 2 + [(True, True), (True, None)]
    figures = measure_verifier("verifier")(
        [episode(t, 0, "1", ok, [True], verdict) for t, (ok, verdict) in enumerate(said)]
    )
    assert figures["verifier/error_recall"].value == 3 / 4 and figures["verifier/error_recall"].n == 4
    assert figures["verifier/error_precision"].value == 3 / 6 and figures["verifier/error_precision"].n == 6
    assert figures["verifier/error_f1"].value == 6 / (6 + 3 + 1) and figures["verifier/error_f1"].n == 8
    assert figures["verifier/predicted_positive"].value == 2 / 7 and figures["verifier/base_rate"].value == 4 / 8


def test_rates_of_one_step_leave_out_what_is_undefined():
    only_right = [e.traces[1] for e in FOUR if e.traces[0].metadata["correct"]]
    rates = verdict_rates(only_right)
    assert rates["true_positive_rate"] == 0.5
    assert "balanced_accuracy" not in rates and "true_negative_rate" not in rates


def test_intervals_hold_the_value_and_shrink_with_more_tasks():
    many = [episode(t, 0, "1", t % 2 == 0, [True], True) for t in range(200)]
    few = many[:10]
    wide, narrow = measure_solver("solver", 1)(few)["solver/pass@1"], measure_solver("solver", 1)(many)["solver/pass@1"]
    assert wide.low <= wide.value <= wide.high and narrow.low <= narrow.value <= narrow.high
    assert narrow.high - narrow.low < wide.high - wide.low


def paired(before, after, measure):
    """The changes as a run makes them: the first side goes through its JSON file."""
    saved = json.loads(json.dumps(counts_json(measure(before)), allow_nan=False))
    return paired_changes(measure(after), saved)


def test_a_change_is_paired_by_problem():
    # 200 problems, every second one right before; afterwards 20 more are right and none is lost. The differences are 20
    # ones and 180 zeros: mean 0.1, standard error sqrt(0.1 * 0.9 / 200) = 0.0212, so about 0.058 to 0.142
    before = [episode(t, 0, "1", t % 2 == 0, [True], True) for t in range(200)]
    after = [episode(t, 0, "1", t % 2 == 0 or t < 40, [True], True) for t in range(200)]
    change = paired(before, after, measure_solver("solver", 1))["solver/pass@1"]
    assert change.value == pytest.approx(0.1) and change.n == 200
    assert change.low == pytest.approx(0.058, abs=0.008) and change.high == pytest.approx(0.142, abs=0.008)
    apart = independent_difference(
        measure_solver("solver", 1)(after)["solver/pass@1"], measure_solver("solver", 1)(before)["solver/pass@1"]
    )
    assert apart.high - apart.low > 2 * (change.high - change.low)


def test_where_nothing_changed_something_might_have():
    # of 2 tasks none changed, so by Wilson's bound on 0 of 2 up to 3.8415 / (2 + 3.8415) = 0.658 of them might have
    for measure in (
        measure_solver("solver", 2),
        measure_verifier("verifier"),
        measure_selection("solver", "verifier", 2),
    ):
        changes = paired(FOUR, FOUR, measure)
        assert set(changes) == set(measure(FOUR))
        for key, change in changes.items():
            width = 2.0 if key in ("gap", "verifier/mcc") else 1.0
            assert change.value == 0.0 and -width <= change.low < 0.0 < change.high <= width, key
    assert paired(FOUR, FOUR, measure_solver("solver", 2))["solver/pass@1"].high == pytest.approx(0.6576, abs=1e-4)


def test_a_problem_that_one_side_lost_keeps_its_counts_on_the_other():
    change = paired(FOUR, FOUR[:2], measure_solver("solver", 2))["solver/step_accuracy"]
    assert change.value == pytest.approx(3 / 4 - 6 / 8)
    none_wrong = [e for e in FOUR if e.traces[0].metadata["correct"]]
    assert "verifier/balanced_accuracy" not in paired(FOUR, none_wrong, measure_verifier("verifier"))


EARNED = Metadata[float]("earned", float, "what a rollout earned")


def rollouts():
    """Four rollouts of one task: one earned 1 in five sequences, the others 0 in one."""
    found = []
    for member, (count, earned) in enumerate([(5, 1.0), (1, 0.0), (1, 0.0), (1, 0.0)]):
        parts = [trace("solver", 0, member, parsed={}, truth={"earned": earned}, call=call) for call in range(count)]
        name = str(parts[0].address) if count > 1 else ""
        signals = (Reward(name="paid", value=earned),)
        parts = [replace(part, trajectory=name, rewards=signals) for part in parts]
        found.append(Episode(step=-1, task=0, member=member, task_id="t", traces=tuple(parts)))
    return found


def test_a_rollout_counts_once_in_every_figure():
    row = role_metrics(rollouts(), ["solver"])
    assert row["solver/metadata/earned"] == row["solver/reward/paid"] == row["solver/reward/paid/at_max"] == 0.25
    assert row["solver/traces"] == 8, "that many sequences"
    measured = measure_metadata("solver", EARNED)(rollouts())["solver/metadata/earned"]
    assert measured.value == 0.25 and measured.n == 4


def test_a_solution_in_two_sequences_is_one_sample_and_is_judged_as_one():
    """What its template cut in two: the answer stands in the second part, and the review names that."""
    whole = episode(0, 0, "4", True, [True, True], True, 0.9)
    first = replace(trace("solver", 0, 1, parsed={"problem": "p"}, truth={}), finish="length")
    last = trace("solver", 0, 1, parsed={"answer": "5"}, truth={"correct": False, "step_ok": [True, False]}, call=1)
    first, last = (replace(part, trajectory=str(first.address)) for part in (first, last))
    review = trace("verifier", 0, 1, parsed={"final": False, "score": 0.1}, truth={"correct": False}, parent=None)
    review = replace(review, parent=str(last.address))
    cut = Episode(step=-1, task=0, member=1, task_id="t0", traces=(first, last, review))
    played = [whole, cut]
    assert measure_solver("solver", 2)(played)["solver/pass@1"].value == 0.5
    assert measure_selection("solver", "verifier", 2)(played)["solver/best@2"].value == 1.0
    joined, judged = trajectories_in(cut)
    assert joined.findings == {"problem": "p", "answer": "5"} and joined.finish == "stop"
    assert joined.turns == (TurnRange(start=0, end=1, finish="length"), TurnRange(start=1, end=2, finish="stop"))
    assert joined.sampled_count == 2 and judged.parent == str(first.address)
    assert role_metrics(played, ["solver"])["solver/accuracy"] == 0.5


def test_the_mean_of_a_note_is_that_of_a_games_moves_before_it_is_that_of_games():
    """Moves right in one of three, and in one of one."""
    moves = [trace("solver", 0, 0, parsed={}, truth={"right": value}, call=i) for i, value in enumerate([1, 0, 0])]
    moves = [replace(move, trajectory=str(moves[0].address)) for move in moves]
    short = trace("solver", 0, 1, parsed={}, truth={"right": 1})
    played = [Episode(step=-1, task=0, member=i, task_id="t", traces=tuple(t)) for i, t in enumerate([moves, [short]])]
    found = measure_metadata("solver", Metadata[int]("right", int, "was the move right"))(played)
    assert found["solver/metadata/right"].value == pytest.approx((1 / 3 + 1) / 2)


def test_the_share_that_failed_stands_beside_the_figures():
    """Of four rollouts two failed, one of them in two sequences; an episode that broke off is told elsewhere."""
    played = rollouts()
    for place, reason in ((0, "agent: ValueError"), (1, "agent: timeout"), (2, BROKEN_OFF)):
        parts = tuple(replace(part, failure=reason) for part in played[place].traces)
        played[place] = replace(played[place], traces=parts, failure="it raised" if reason == BROKEN_OFF else None)
    share = failed_shares(played)["solver/failed"]
    assert share.value == 0.5 and share.n == 4
    assert role_metrics(played, ["solver"])["solver/failed"] == 0.5
    assert failed_shares(rollouts()) == {} and "solver/failed" not in role_metrics(rollouts(), ["solver"])
