"""The demo: RL Tango on word problems of two and three steps, sized for three minutes on two cores.

The generator begins with two wrong habits, the verifier with other weights: it does not share the generator's blind
spots, but its verdicts are noisy. So judging is easier than solving, and stays so while the generator learns. How this
was chosen, with the settings in which it fails: ``docs/demo.md``.
"""

from __future__ import annotations

from dataclasses import replace

from cotrain import Recipe, Settings, recipe, study_problems
from cotrain.recipes.tango import tango


@recipe(steps=40, lr=4e-4, model="embedded-habits", evaluation_tasks=64, without=("tasks",))
def demo(
    run: Settings,
    *,
    verifier_model: str = "embedded",  # begins the verifier
    warmup: int = 16,  # steps in which the verifier alone learns
) -> Recipe:
    values = run.values() | {"tasks": study_problems((2, 3))}
    made = tango(**values, verifier_model=verifier_model, warmup=warmup, ratio=(1, 1), verifier_lr=5e-4)
    return replace(made, name="demo", description="", evaluation=replace(made.evaluation, splits=()))
