"""A method that is measured on fewer answers than the others."""

from __future__ import annotations

from dataclasses import replace

from cotrain.loop.recipe import Recipe, recipe
from cotrain.recipes.grpo import grpo
from tests.helpers import TINY


@recipe
def fewer(seed: int = 0, steps: int = 2, evaluate_every: int = 0) -> Recipe:
    made = grpo(model=TINY, seed=seed, steps=steps, evaluate_every=evaluate_every)
    return replace(made, evaluation=replace(made.evaluation, members=2))
