"""The demo: RL Tango on word problems of two and three steps, sized for five minutes on two cores."""

from __future__ import annotations

from dataclasses import replace

from cotrain import Recipe, Settings, recipe, study_problems
from cotrain.recipes.tango import tango


@recipe(steps=78, lr=8e-5, evaluation_tasks=128, without=("tasks",))
def demo(
    run: Settings,
    *,
    warmup: int = 24,  # steps in which the verifier alone learns
) -> Recipe:
    values = run.values() | {"tasks": study_problems((2, 3))}
    made = tango(**values, warmup=warmup, ratio=(2, 1), verifier_lr=5e-4)
    return replace(made, name="demo", description="", evaluation=replace(made.evaluation, splits=()))
