"""The demo: RL Tango on word problems of three and four steps, sized for five minutes on two cores."""

from __future__ import annotations

from dataclasses import replace

from cotrain.loop.recipe import Recipe, recipe
from cotrain.recipes.tango import tango


@recipe
def demo(seed: int = 0, steps: int = 90, warmup: int = 24) -> Recipe:
    made = tango(seed=seed, steps=steps, warmup=warmup, ratio=(2, 1), lr=8e-5, verifier_lr=5e-4, evaluation_tasks=128)
    return replace(made, name="demo", description="", evaluation=replace(made.evaluation, splits=()))
