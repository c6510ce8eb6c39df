"""``grpo`` paid by a judge whose word is the truth, flipped with a known chance."""

from dataclasses import replace
from functools import partial

import pytest

from cotrain.core.types import Grade, Sampling
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.grpo import grpo, solve_and_be_told
from cotrain.recipes.judged import solve_to_be_believed
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import EASY, spoken
from tests.sentences import refuses


def judge_solutions(noise: float | tuple[float, float], count: int = 100) -> list[tuple[bool, float]]:
    """(is the answer right, what the judge said) of gold solutions, every second one with another answer."""
    tasks = [EASY.get("train", i) for i in range(count)]
    gold = {task.prompt: task.solution for task in tasks}
    wrong = {task.prompt for task in tasks[::2]}

    def say(fields, rng):
        text = gold[fields["problem"]]
        return text.replace("<answer>", "<answer>9") if fields["problem"] in wrong else text

    role = Role(policy="solver", prompt="{problem}", sampling=Sampling(max_tokens=999), parse=parse_solution)
    player = RolloutRunner(spoken({"solver": say}), {"solver": ByteRenderer()}, {"solver": role}, seed=0)
    played = player.collect(partial(solve_and_be_told, noise=noise), tasks, step=0, group_size=2)
    assert not any(e.failure for e in played)
    return [(t.metadata["correct"], s.value) for e in played for t in e.traces for s in t.rewards if s.name == "word"]


@pytest.mark.whole
def test_without_noise_it_is_the_truth_and_with_all_noise_the_opposite():
    assert {right for right, _ in judge_solutions(0.0)} == {True, False}
    assert all(said == right for right, said in judge_solutions(0.0))
    assert all(said != right for right, said in judge_solutions(1.0))


@pytest.mark.whole
def test_false_positives_are_errors_at_wrong_answers_alone_and_false_negatives_at_right_ones():
    assert all(said for _, said in judge_solutions((1.0, 0.0)))
    assert not any(said for _, said in judge_solutions((0.0, 1.0)))
    both, wrong_alone = judge_solutions(0.3), judge_solutions((0.3, 0.0))
    assert [said for right, said in both if not right] == [said for right, said in wrong_alone if not right]
    assert all(said for right, said in wrong_alone if right)


@pytest.mark.whole
def test_the_share_that_is_wrong_is_the_noise_and_flips_are_nested():
    fifth, third = ([said != right for right, said in judge_solutions(noise)] for noise in (0.2, 0.3))
    assert 0.1 < sum(fifth) / len(fifth) < 0.3
    assert all(more for less, more in zip(fifth, third, strict=True) if less)


def test_a_chance_may_be_a_whole_number():
    assert judge_solutions(1, count=4) == judge_solutions(1.0, count=4)


def test_an_unreadable_solution_earns_nothing_however_the_judge_errs():
    role = Role(policy="solver", prompt="{problem}", sampling=Sampling(max_tokens=99), parse=parse_solution)
    player = RolloutRunner(
        spoken({"solver": lambda fields, rng: "nothing"}), {"solver": ByteRenderer()}, {"solver": role}, 0
    )
    [episode] = player.collect(partial(solve_and_be_told, noise=1.0), [EASY.get("train", 0)], step=0, group_size=1)
    assert [s.value for s in episode.traces[0].rewards if s.name == "word"] == [0.0]


def test_a_solution_that_could_not_be_graded_earns_nothing_and_is_no_zero():
    class Silent:
        def grade(self, task, text):
            return Grade(value=None, reason="the grader died")

        def grade_steps(self, task, steps):
            return None

    task = replace(EASY.get("train", 0), grader=Silent())
    role = Role(policy="solver", prompt="{problem}", sampling=Sampling(max_tokens=999), parse=parse_solution)
    judge = Role(policy="judge", prompt="{problem}", sampling=Sampling(max_tokens=9))
    for protocol, options in ((solve_and_be_told, {"noise": 0.0}), (solve_to_be_believed, {"reviews": 2})):
        says = {"solver": lambda fields, rng: task.solution, "judge": lambda fields, rng: ""}
        roles = {"solver": role, "verifier": judge}
        player = RolloutRunner(spoken(says), dict.fromkeys(says, ByteRenderer()), roles, 0)
        [episode] = player.collect(partial(protocol, **options), [task], step=0, group_size=1)
        [trace] = episode.traces
        assert episode.failure is None and trace.failure == "the grader died" and not trace.rewards


def test_it_is_what_the_generator_learns_from():
    [phase] = grpo(tasks=EASY, outcome_noise=0.2).schedule.phases
    assert phase.protocol.func is solve_and_be_told and phase.options["noise"] == 0.2
    [phase] = grpo(tasks=EASY, false_positives=0.1, false_negatives=0.3).schedule.phases
    assert phase.options["noise"] == (0.1, 0.3)
    with refuses("E_SETTING_RANGE", names=("outcome_noise", "1.2")):
        grpo(outcome_noise=1.2)
    with refuses("E_SETTING_RANGE", names=("false_positives", "-0.1")):
        grpo(false_positives=-0.1)
    with refuses("E_NOISE_TWICE", names="0.2"):
        grpo(outcome_noise=0.2, false_negatives=0.1)
