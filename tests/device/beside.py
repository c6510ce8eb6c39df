"""A run on the pretended device beside the same run on the CPU.

``COTRAIN_TEST_DEVICE=cuda:0 pytest -m whole tests/device/test_methods.py tests/device/test_runs.py`` takes a GPU in
its place.
"""

import os

import pytest

from cotrain.config.registry import find_recipe
from cotrain.distributed.local import LocalBackend
from cotrain.trainer.trainer import CoTrainer
from tests.device.pretended import NAME
from tests.helpers import EASY
from tests.recipes.test_recipes import CASES, SMALL, built

DEVICE = os.environ.get("COTRAIN_TEST_DEVICE", f"{NAME}:0")
KIND = DEVICE.partition(":")[0]


def small(case, **more):
    """A recipe at its smallest."""
    if case in CASES:
        return built(case)
    taken = {**SMALL, "tasks": EASY, **more}
    if case == "demo":  # has problems of its own
        del taken["tasks"]
    return find_recipe(case)(**taken)


def rows_on(device, recipe, steps=2):
    trainer = CoTrainer(recipe, backend=LocalBackend(device))
    rows = [trainer.step().row for _ in range(min(steps, recipe.steps))]
    trainer.close()
    return rows


def assert_near(mine, theirs, rel=1e-3, near=1e-5):
    """Rows of figures that are equal, up to rounding."""
    assert len(mine) == len(theirs)
    for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert a.keys() == b.keys()
        for key, value in b.items():
            wanted = pytest.approx(value, rel=rel, abs=near, nan_ok=True) if isinstance(value, float) else value
            assert a[key] == wanted, f"step {step}: {key}"
