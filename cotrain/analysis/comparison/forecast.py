"""``cotrain study --dry-run``: the runs that a study will make, and what can be known of their cost.

Each arm is made as its runs make it, so that whatever is wrong with it is said now: an unknown parameter, a split
without problems, an objective that is due in none of the batches. What can be known of its cost is counted: batches by
phase, episodes of a run, and episodes on the problems of the test. Left out: tokens, FLOPs and seconds, which depend on
how much the models say, and how far arms go on until they have spent what the dearest one has.
"""

from __future__ import annotations

from dataclasses import replace

from cotrain.analysis.comparison.plan import ComparisonPlan
from cotrain.analysis.comparison.study import recipes_of_parts, run_count_lines
from cotrain.analysis.comparison.study_file import Study
from cotrain.config.recipe import Recipe
from cotrain.core.verbosity import count_of


def forecast(study: Study) -> list[str]:
    """The lines of a dry run: how many runs, and what each arm does in one. Raises UserError for an arm that could not
    run."""
    arms = []
    for name, recipes in recipes_of_parts(study).items():
        plan = study.parts[name]
        arms += [f"{name}, {label}: {_forecast_words(plan, recipe)}" for label, recipe in recipes.items()]
    return [*run_count_lines(study), *arms]


def run_length(plan: ComparisonPlan, recipe: Recipe) -> int:
    """Batches of one run of the plan, of whatever phase."""
    if plan.equal != "updates":
        return plan.batches
    return replace(recipe, updates=plan.batches).max_steps


def phase_counts(plan: ComparisonPlan, recipe: Recipe) -> dict[str, int]:
    """How many of a run's batches are of each phase."""
    return dict(recipe.schedule.steps_by_phase(run_length(plan, recipe)))


def _forecast_words(plan: ComparisonPlan, recipe: Recipe) -> str:
    episodes_by_phase = {
        phase.name: (phase.tasks or recipe.tasks_per_step) * (phase.group_size or recipe.group_size)
        for phase in recipe.schedule.phases
    }
    counts = phase_counts(plan, recipe)
    evaluation = recipe.evaluation
    length = run_length(plan, recipe)
    each = ", ".join(f"{count} {name} × {episodes_by_phase[name]} episodes" for name, count in counts.items())
    ends = ""
    if plan.budget is not None and plan.equal not in ("batches", "updates"):
        ends = f", or until {plan.budget:g} {plan.equal} are spent"

    learners = sorted({objective.policy for objective in recipe.objectives.values()})
    learn = ", ".join(f"{policy} {recipe.planned_updates(policy, length)}" for policy in learners)
    points = ""
    if plan.evaluate_every:
        points = f", {count_of(plan.batches // plan.evaluate_every + 1, 'point')} of its curve"
    return (
        f"{length} batches ({each}){ends}; updates at most: {learn}; {evaluation.tasks} test problems × "
        f"{evaluation.group_size} before and after{points}"
    )
