"""A method that is measured on fewer answers than the others."""

from __future__ import annotations

from dataclasses import replace

from cotrain import Recipe, RunConfig, recipe
from cotrain.recipes.grpo import grpo
from tests.helpers import TINY


@recipe(steps=2)
def fewer(run: RunConfig) -> Recipe:
    made = grpo(**run.values() | {"model": TINY})
    return replace(made, evaluation=replace(made.evaluation, group_size=2))
