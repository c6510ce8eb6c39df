from __future__ import annotations

import json
import sys

import pytest

from cotrain.core.errors import UnknownName
from cotrain.core.types import Grade
from cotrain.data.files import split_of
from cotrain.envs.reasoning_gym import BLOCK, GymTasks
from tests.sentences import refuses


def test_without_reasoning_gym_the_error_says_what_to_install(monkeypatch):
    for module in ("reasoning_gym", "reasoning_gym.dataset", "reasoning_gym.factory"):
        monkeypatch.setitem(sys.modules, module, None)
    with refuses("E_GYM_NOT_INSTALLED", names=".[gym]"):
        GymTasks("chain_sum")


@pytest.fixture(scope="module")
def sums() -> GymTasks:
    pytest.importorskip("reasoning_gym")
    return GymTasks("chain_sum", settings={"min_terms": 3, "max_terms": 4})


def test_tasks_are_addressable_and_splits_do_not_overlap(sums):
    seen = {split: [sums.get(split, i) for i in range(60)] for split in ("train", "validation", "test")}
    for split, tasks in seen.items():
        assert all(split_of(task.prompt) == split for task in tasks)
        assert len({task.prompt for task in tasks}) > 55
        assert [sums.get(split, i) for i in reversed(range(60))] == tasks[::-1]
    far = sums.get("train", 7 * BLOCK + 3)
    assert far.id == f"gym:chain_sum/train/{7 * BLOCK + 3}" and far not in seen["train"]
    assert sums.size("train") is None


def test_grades(sums):
    task = sums.get("train", 0)
    assert task.grade(f"<answer>{task.gold}</answer>") == Grade(value=True)
    assert task.grade(f"\\boxed{{{task.gold}.0}}") == Grade(value=True)
    assert task.grade(f"<answer>{int(task.gold) + 1}</answer>") == Grade(value=False)
    assert task.grade(f"<answer>{task.gold} or 3</answer>") == Grade(value=False)
    assert task.grade(task.gold) == Grade(value=False)
    assert task.grade_steps(("a",)) is None


def test_a_description_builds_the_same_source(sums):
    description = json.loads(json.dumps(sums.describe()))
    again = GymTasks(**description["settings"])
    assert again.describe() == description and again.get("test", 5) == sums.get("test", 5)


def test_what_is_refused(sums):
    with refuses("E_UNKNOWN_REASONING_GYM_DATA_SET", names=("'chainsum'", "'chain_sum'")):
        GymTasks("chainsum")
    with refuses("E_GYM_OWN_SCORER", names="'countdown'"):
        GymTasks("countdown")
    with refuses("E_GYM_SETTINGS", names="{'min_trems': 3}"):
        GymTasks("chain_sum", settings={"min_trems": 3})
    with refuses("E_GYM_SETTINGS", names="{'min_terms': -3}"):
        GymTasks("chain_sum", settings={"min_terms": -3})
    with refuses("E_TASKS_SIZE", names="0"):
        GymTasks("chain_sum", size=0)
    with pytest.raises(IndexError):
        GymTasks("chain_sum", size=5).get("train", 5)
    with pytest.raises(UnknownName):
        sums.get("dev", 0)
