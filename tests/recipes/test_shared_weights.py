"""Recipes whose solver and verifier are one policy: what is chosen, what is paid, who learns when."""

from random import Random

import pytest

from cotrain.algorithms.policy_gradient import PPOClip, leave_one_out, z_score
from cotrain.recipes.rise import rise, score_of
from cotrain.recipes.self_verify import choose_to_review, self_verify
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses


@pytest.mark.parametrize("seed", range(20))
def test_as_many_right_as_wrong_are_chosen_and_distinct_answers_first(seed):
    answers = ["7", "3", "7", "3", "4", "3", "7"]
    right = [a == "7" for a in answers]

    def chosen(pairs, **how):
        return [answers[place] for place in choose_to_review(answers, right, pairs, Random(seed), **how)]

    assert sorted(chosen(1)) in (["3", "7"], ["4", "7"])
    assert sorted(chosen(2)) == ["3", "4", "7", "7"]  # two wrong ones: never "3" twice
    assert sorted(chosen(3)) == ["3", "3", "4", "7", "7", "7"]
    assert sorted(chosen(9)) == ["3", "3", "4", "7", "7", "7"]  # there are three right ones only
    assert sorted(chosen(2, balance=False)) in (["3", "3", "4", "7"], ["3", "4", "7", "7"])
    assert len(chosen(9, balance=False)) == 7


def test_where_one_side_is_missing_nothing_is_chosen():
    assert choose_to_review(["1", "2"], [False, False], 1, Random(0)) == []
    assert choose_to_review([], [], 1, Random(0)) == []
    assert choose_to_review([], [], 1, Random(0), balance=False) == []
    assert choose_to_review(["1", "2"], [False, False], 1, Random(0), balance=False) == [0, 1]


def test_chance_decides_between_equals_and_a_seed_decides_chance():
    answers, right = ["7", "7", "3", "3"], [True, True, False, False]
    found = [tuple(choose_to_review(answers, right, 1, Random(seed))) for seed in range(40)]
    assert set(found) == {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert found == [tuple(choose_to_review(answers, right, 1, Random(seed))) for seed in range(40)]


def test_reward_levels_of_rise():
    assert (score_of(True, True), score_of(True, False), score_of(False, False)) == (1.0, -0.5, -1.0)


def names(recipe, steps):
    return [recipe.schedule.phase_at(step).name for step in range(steps)]


def test_who_learns_when():
    assert names(self_verify(), 12) == (["generator"] * 5 + ["verifier"]) * 2
    assert names(self_verify(warmup=2, ratio=(2, 1)), 5) == ["verifier"] * 2 + ["generator"] * 2 + ["verifier"]
    assert names(self_verify(mode="joint"), 2) == ["both"] * 2
    assert names(self_verify(mode="generate", warmup=1), 3) == ["verifier", "generator", "generator"]
    assert names(self_verify(mode="verify"), 2) == ["verifier"] * 2
    due = {mode: set(self_verify(mode=mode).objectives) for mode in ("alternate", "joint", "generate", "verify")}
    both = {"generator", "verifier"}
    assert due == {"alternate": both, "joint": both, "generate": {"generator"}, "verify": {"verifier"}}
    for recipe in (self_verify(), rise()):
        assert {recipe.roles[role].policy for role in ("solver", "verifier")} == {"model"}
    assert set(rise().objectives) == {"generator", "generator_values", "verifier", "verifier_values"}
    assert set(rise(verify_share=0).objectives) == {"generator", "generator_values"}


def test_parameters_of_tango():
    recipe = tango(step_scale="one", estimator="rloo", clip_high=0.28)
    for objective in recipe.objectives.values():
        assert (objective.algorithm.advantage, objective.algorithm.loss) == (leave_one_out, PPOClip(0.2, 0.28))
    assert recipe.objectives["generator"].algorithm.step_scale == "one"
    plain = tango().objectives["generator"].algorithm
    assert (plain.step_scale, plain.advantage, plain.loss) == ("1/K", z_score, PPOClip(0.2, 0.2))


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (lambda: self_verify(mode="both"), "E_UNKNOWN_CHOICE: self_verify"),
        (lambda: self_verify(reviews=1), "E_SETTING_RANGE"),
        (lambda: self_verify(pairs=0), "E_SETTING_RANGE"),
        (lambda: rise(verify_share=1.5), "E_SETTING_RANGE: 1.5"),
        (lambda: tango(estimator="ppo"), "E_UNKNOWN_CHOICE: estimator"),
        (lambda: tango(step_scale="K"), "E_UNKNOWN_CHOICE: step_scale | 'K' | '1/K'"),
        (lambda: tango(steps_judged_by="oracel"), "E_UNKNOWN_CHOICE: 'oracle'"),
        (lambda: tango(reviews=0), "E_SETTING_RANGE"),
        (lambda: tango(clip_high=-0.1), "E_LOSS_RANGE: 0.2 | -0.1"),
    ],
)
def test_refusals(build, code):
    with refuses(code):
        build()


@pytest.mark.whole
def test_a_verification_batch_is_balanced_and_reviews_of_a_solution_are_a_group():
    recipe = self_verify(
        model=TINY, mode="joint", steps=1, tasks=EASY, tasks_per_step=3, group_size=4, reviews=3, pairs=2
    )
    trainer = CoTrainer(recipe)
    result = trainer.step()
    row, traces = result.row, [t for e in result.episodes for t in e.traces]
    judged = [t for t in traces if t.role == "solver" and t.metadata["judged"]]
    assert 0 < len(judged) < 12 and row["solver/metadata/judged"] == len(judged) / 12
    assert sum(t.metadata["correct"] for t in judged) == len(judged) / 2
    assert row["verifier/base_rate"] == 0.5
    reviews = [t for t in traces if t.role == "verifier"]
    assert sorted(t.parent for t in reviews) == sorted(3 * [str(t.address) for t in judged])
    assert all(t.group == t.parent for t in reviews)
    assert -1.0 <= row["model/cosine/generator/verifier"] <= 1.0
    assert row["model/generator/grad_share"] + row["model/verifier/grad_share"] == pytest.approx(1.0)
    assert trainer.policies.update_counts == {"model": 1}  # one optimiser step for both


def test_a_review_of_rise_weighs_as_much_as_a_solution():
    """Each objective is divided by its own tokens; reviews of an eighth of the solutions get an eighth of the weight,
    as if all were one batch."""
    made = rise(verify_share=0.125)
    assert {name: o.weight for name, o in made.objectives.items()} == {
        "generator": 1.0,
        "generator_values": 1.0,
        "verifier": 0.125,
        "verifier_values": 0.125,
    }
