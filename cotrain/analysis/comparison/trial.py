"""``cotrain compare --smoke``: a comparison that only shows that every arm works, from its start to the report.

Each arm reaches every phase of its schedule, warm-ups take one step, and little is measured. The figures of a trial say
nothing of the methods.
"""

from __future__ import annotations

import json
from dataclasses import replace

from cotrain.analysis.comparison.compare import ComparisonPlan
from cotrain.config.recipe import Recipe
from cotrain.core.verbosity import count_of

MEMBERS = 4  # answers to a problem, at most
SHORT = ("tasks_per_step=2", "evaluation.tasks=2", "evaluation.group_size=2", "evaluation.splits=[]")


def short_plan(plan: ComparisonPlan, *, batches: int | None) -> ComparisonPlan:
    """The plan as a trial; settings that the user gave count more. ``batches``: as the user gave them, or None."""
    recipes = plan.make_recipes(plan.arms)
    arms = [replace(arm, overrides=(*_short_settings(recipes[arm.label]), *arm.overrides)) for arm in plan.arms]
    steps = batches or max(_steps_of_all_phases(recipe) for recipe in recipes.values())
    return replace(plan, arms=tuple(arms), batches=steps, overrides=(*SHORT, *plan.overrides))


def trial_note(plan: ComparisonPlan) -> str:
    """The note that is printed before a trial begins."""
    return (
        f"note: --smoke: {count_of(plan.seeds, 'seed')}, {count_of(plan.batches, 'step')} of 2 problems, and 2 "
        "held-out problems; the figures of so short a comparison say nothing of the methods. "
        "Flags that you give count more"
    )


def _short_settings(recipe: Recipe) -> tuple[str, ...]:
    warmup = [(phase, 1) for phase, _ in recipe.schedule.warmup]
    return (f"group_size={min(MEMBERS, recipe.group_size)}", f"schedule.warmup={json.dumps(warmup)}")


def _steps_of_all_phases(recipe: Recipe) -> int:
    return max(2, len(recipe.schedule.warmup) + len(recipe.schedule.cycle))
