"""Who corrupts: what the reward model learns from in each form of ``negatives``."""

import pytest

from cotrain.algorithms.reward_model import Pairwise
from cotrain.recipes.cooper import cooper
from tests.helpers import EASY, TINY


@pytest.mark.parametrize(
    "settings, learned",
    [
        ({}, "pair"),
        ({"negatives": "model"}, "pair"),
        ({"negatives": "own"}, "all"),  # every accepted answer of a group with every rejected one
        ({"negatives": "own", "rm": "frozen"}, ""),
    ],
)
def test_what_the_reward_model_learns_from(settings, learned):
    recipe = cooper(model=TINY, tasks=EASY, warmup=0, **settings)
    [phase] = recipe.schedule.phases
    assert phase.options["learn"] == learned
    assert isinstance(recipe.objectives["rm"].algorithm, Pairwise) if learned else "rm" not in recipe.objectives
