"""The demo: RL Tango on word problems of two and three steps, sized for five minutes on two cores."""

from __future__ import annotations

from dataclasses import replace

from cotrain import Recipe, Settings
from cotrain import recipe, study_problems
from cotrain.recipes.tango import tango


@recipe(steps=78, tasks=study_problems((2, 3)), lr=8e-5, evaluation_tasks=128)
def demo(run: Settings, *, warmup: int = 24) -> Recipe:
    made = tango(**run.values(), warmup=warmup, ratio=(2, 1), verifier_lr=5e-4)
    return replace(made, name="demo", description="", evaluation=replace(made.evaluation, splits=()))
