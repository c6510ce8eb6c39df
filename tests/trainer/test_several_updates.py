"""Several updates from one batch: the same samples, each update with the ratio to the policy that sampled them."""

import json
from dataclasses import replace

import pytest
import torch

from cotrain import api
from cotrain.algorithms.policy_loss import ScoreFunction
from cotrain.config.override import override
from cotrain.config.recipe import check_due
from cotrain.core.errors import ConfigError
from cotrain.learner.learner import TorchLearner
from cotrain.recipes.critique import critique
from cotrain.recipes.grpo import grpo
from cotrain.recipes.magrpo import magrpo
from cotrain.recipes.spin import spin
from tests.helpers import EASY, TINY
from tests.sentences import refuses


def shorter(task, answer, correct):
    """Nearly every answer of a group earns something else, so there is something to learn from."""
    return 1 / (1 + len(answer.text))


def small(count, steps=2, **settings):
    sizes = {"tasks_per_step": 4, "group_size": 4, "evaluation_tasks": 1, "lr_warmup": 0}
    made = grpo(
        model=TINY, steps=steps, tasks=EASY, lr=1e-3, updates_per_batch=count, reward=shorter, **sizes, **settings
    )
    return override(made, ["evaluation.group_size=1", "evaluation.greedy=false", "evaluation.splits=[]"])


def rows_of(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row.get("kind") != "evaluation" and "generator/updates" in row]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("several") / "run"
    api.run(small(3), folder)
    return rows_of(folder)


@pytest.mark.whole
def test_every_batch_gives_so_many_updates(learned):
    assert [row["generator/updates"] for row in learned] == [3, 6]


@pytest.mark.whole
def test_the_ratio_is_to_the_policy_that_sampled(learned):
    for row in learned:  # the first update has the policy that sampled, the last one has left it
        assert row["generator/generator/sampler_trainer_diff"] < 1e-4 < abs(row["generator/generator/ratio"] - 1)


@pytest.mark.whole
def test_all_of_the_work_is_counted(learned, tmp_path):
    api.run(small(1, steps=1), tmp_path / "one")
    one, three = rows_of(tmp_path / "one")[0], learned[0]
    assert one["generator/learned_tokens"] == three["generator/learned_tokens"]
    assert three["generator/flops/learning"] == 3 * one["generator/flops/learning"]


@pytest.mark.whole
def test_the_updates_are_made_from_the_same_samples(monkeypatch, tmp_path):
    seen, update = [], TorchLearner.update

    def record(self, terms):
        seen.append([sample for term in terms for sample in term.samples])
        return update(self, terms)

    monkeypatch.setattr(TorchLearner, "update", record)
    api.run(small(2), tmp_path / "run")
    first, second, third, fourth = seen
    assert first == second and third == fourth and [s.key for s in first] != [s.key for s in third]


@pytest.mark.whole
def test_rates_fall_over_all_updates(tmp_path):
    api.run(small(2, lr_decay="linear"), tmp_path / "falls")
    rates = [row["generator/lr"] for row in rows_of(tmp_path / "falls")]  # of the second and the fourth update of four
    assert rates == pytest.approx([0.75e-3, 0.25e-3])


def test_a_loss_whose_slope_is_known_before_is_refused(tmp_path):
    with refuses("E_LOSS_WITHOUT_RATIO"):
        check_due(spin(updates_per_batch=3))


def test_a_loss_without_a_ratio_is_refused():
    made = magrpo(updates_per_batch=2)
    with refuses("E_LOSS_WITHOUT_RATIO"):
        check_due(made)
    check_due(override(made, [f"objectives.{name}.algorithm.loss.cap=2" for name in made.objectives]))
    check_due(magrpo())


def test_a_loss_without_a_ratio_that_learns_second_in_turn_is_refused():
    made = grpo(kl=0.0)
    first, phase = made.objectives["generator"], made.schedule.phases[0]
    both = {"generator": first, "again": replace(first, algorithm=replace(first.algorithm, loss=ScoreFunction()))}
    phase = replace(phase, objectives=tuple(both), in_turn=tuple(both))
    made = replace(made, objectives=both, schedule=replace(made.schedule, phases=(phase,)))
    with refuses("E_LOSS_WITHOUT_RATIO", names=("'again'", "'generator'")):
        check_due(made)
    check_due(override(made, ["objectives.again.algorithm.loss.cap=2"]))
    phase = replace(phase, in_turn=("again", "generator"))  # the one with a ratio comes second
    check_due(replace(made, schedule=replace(made.schedule, phases=(phase,))))


def test_the_setting_that_is_advised_is_one():
    """Of two losses the one for a policy's own samples."""
    made = critique(updates_per_batch=2)
    with pytest.raises(ConfigError) as caught:
        check_due(made)
    check_due(override(made, [str(caught.value).rpartition("--set ")[2]]))


@pytest.mark.parametrize("count", [0, -1])
def test_less_than_one_update_is_refused(count):
    with refuses("E_POLICY_SETTING_RANGE", names=f"updates_per_batch is {count}"):
        grpo(updates_per_batch=count)
