"""A student that is pulled to its teacher, token by token; with and without the graded answer."""

import pytest
import torch

from cotrain.recipes.distill import distill
from cotrain.recipes.grpo import grpo
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "evaluation_tasks": 1, "lr": 1e-2}


def play(recipe, steps):
    torch.set_num_threads(1)
    trainer = CoTrainer(recipe)
    rows = [trainer.step().row for _ in range(steps)]
    weights = trainer.policies.tensors()["generator"]
    trainer.close()
    return rows, weights


@pytest.mark.whole
def test_the_student_nears_its_teacher_without_a_group_or_a_grade():
    bases = {"model": "shipped-habits", "teacher": "shipped-checker", "lr": 4e-4}
    rows, _ = play(distill(**{**SMALL, **bases, "tasks_per_step": 12, "group_size": 1, "steps": 16}), 16)
    assert all(row["generator/credit/samples"] == 12 and "generator/zero_spread_groups" not in row for row in rows)
    distances = [row["generator/generator/kl"] for row in rows]
    assert distances[0] > 1.0 and sum(distances[-4:]) < 0.5 * sum(distances[:4]), distances


@pytest.mark.whole
def test_without_the_kl_it_is_grpo():
    arguments = {"group_size": 4, "steps": 2, **SMALL}
    _, alone = play(distill(teacher=TINY, teacher_kl=0.0, outcome=1.0, **arguments), 2)
    _, usual = play(grpo(kl=0.0, **arguments), 2)
    assert alone.keys() == usual.keys() and all(torch.equal(alone[name], usual[name]) for name in alone)


@pytest.mark.parametrize(
    ("teacher_kl", "outcome", "code"),
    [(0.0, 0.0, "E_WEIGHTS_ALL_ZERO"), (-1.0, 1.0, "E_ARGUMENT_TYPE: teacher_kl of distill")],
)
def test_weights_that_teach_nothing_are_refused(teacher_kl, outcome, code):
    with refuses(code):
        distill(teacher=TINY, teacher_kl=teacher_kl, outcome=outcome, **SMALL)
