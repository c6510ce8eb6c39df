"""The demo: RL Tango on word problems of two and three steps, sized for five minutes on two cores."""

from __future__ import annotations

from dataclasses import replace

from cotrain.loop.recipe import Recipe, recipe
from cotrain.recipes.tango import tango
from cotrain.tasks.words.source import study_problems


@recipe
def demo(seed: int = 0, steps: int = 78, warmup: int = 24) -> Recipe:
    how = {"ratio": (2, 1), "lr": 8e-5, "verifier_lr": 5e-4, "evaluation_tasks": 128}
    made = tango(seed=seed, steps=steps, warmup=warmup, tasks=study_problems((2, 3)), **how)
    return replace(made, name="demo", description="", evaluation=replace(made.evaluation, splits=()))
