"""The demo: RL Tango on word problems of two and three steps, sized for three minutes on two cores.

The verifier begins with other weights than the generator, so that the two do not share their blind spots: judging is
easier than solving, and stays so while the generator learns. At the start it believes too much; it is told the truth of
answers alone. How this was chosen, with the settings in which it fails: ``docs/demo.md``.
"""

from __future__ import annotations

from dataclasses import replace

from cotrain import Recipe, Settings, recipe, study_problems
from cotrain.recipes.tango import tango

SPREAD = 1.5  # temperature of the verifier, so that its reviews of one solution differ


@recipe(steps=36, lr=3e-4, evaluation_tasks=48, without=("tasks",))
def demo(
    run: Settings,
    *,
    verifier_model: str = "embedded-habits",  # begins the verifier
    warmup: int = 16,  # steps in which the verifier alone learns
) -> Recipe:
    values = run.values() | {"tasks": study_problems((2, 3))}
    made = tango(**values, verifier_model=verifier_model, warmup=warmup, ratio=(1, 1), verifier_lr=5e-4)
    verifier = made.roles["verifier"]
    temperature = SPREAD if run.temperature is None else run.temperature
    spread = replace(verifier, sampling=replace(verifier.sampling, temperature=temperature))
    return replace(
        made,
        name="demo",
        description="",
        roles={**made.roles, "verifier": spread},
        evaluation=replace(made.evaluation, splits=()),
    )
