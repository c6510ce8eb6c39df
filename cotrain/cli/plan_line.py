"""The first lines of a run in which several policies learn, or in which steps are paid: who learns when, and from what.

::

    plan: verifier learns for 40 steps
          then, in turn: generator for 3 steps, verifier for 1 step
          updates in 160 steps: generator 90, verifier 70
          generator's reward: r = outcome + α · mean(step)
          α: 0.1 → 0.001 (decay)

A recipe of one policy and one kind of step, which pays for nothing but answers, has no such lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from cotrain.core.verbosity import count_of

if TYPE_CHECKING:
    from cotrain.config.recipe import Objective, Recipe

TITLE = "plan: "


def plan_lines(recipe: Recipe) -> list[str]:
    """The lines, or none where there is nothing to say."""
    formulas = [line for name, objective in recipe.objectives.items() for line in formula_lines(name, objective)]
    trained = {objective.policy for objective in recipe.objectives.values()}
    has_one_kind_of_step = len(trained) < 2 and len(recipe.schedule.phases) < 2
    if has_one_kind_of_step and not formulas:
        return []
    lines = [*schedule_lines(recipe), updates_text(recipe), *formulas]
    margin = " " * len(TITLE)
    return [f"{TITLE}{lines[0]}", *(f"{margin}{line}" for line in lines[1:])]


def schedule_lines(recipe: Recipe) -> list[str]:
    """A line for each warm-up, and one for the cycle behind them."""
    schedule = recipe.schedule
    lines = [f"{_learners(recipe, name)} for {count_of(steps, 'step')}" for name, steps in schedule.warmup if steps]
    phases = [(name, len(list(same))) for name, same in groupby(schedule.cycle)]  # (phase, its consecutive steps)
    takes_turns = len(phases) > 1
    if takes_turns:
        turns = [f"{_names(recipe, name)} for {count_of(steps, 'step')}" for name, steps in phases]
        cycle = f"in turn: {', '.join(turns)}"
    else:
        cycle = f"{_learners(recipe, phases[0][0])} in every step"
    if not lines:
        return [cycle]
    comma = "," if takes_turns else ""
    return [*lines, f"then{comma} {cycle}"]


def _learners(recipe: Recipe, phase_name: str) -> str:
    """As "generator learns", or "generator and verifier learn"."""
    verb = "learns" if len(_who_learns(recipe, phase_name)) == 1 else "learn"
    return f"{_names(recipe, phase_name)} {verb}"


def _names(recipe: Recipe, phase_name: str) -> str:
    """The policies that learn in a phase, and the phase itself where they also learn in another one."""
    policies = _who_learns(recipe, phase_name)
    other_phases = [phase.name for phase in recipe.schedule.phases if phase.name != phase_name]
    names = " and ".join(policies)
    if policies in [_who_learns(recipe, name) for name in other_phases]:
        return f"{names} ({phase_name})"
    return names


def _who_learns(recipe: Recipe, phase_name: str) -> list[str]:
    """The policies that learn in a phase."""
    phase = next(phase for phase in recipe.schedule.phases if phase.name == phase_name)
    return list(dict.fromkeys(recipe.objectives[name].policy for name in phase.objectives))


def updates_text(recipe: Recipe) -> str:
    """From how many batches each policy learns."""
    policies = dict.fromkeys(objective.policy for objective in recipe.objectives.values())
    counts = [f"{policy} {recipe.planned_updates(policy, recipe.steps)}" for policy in policies]
    return f"updates in {count_of(recipe.steps, 'step')}: {', '.join(counts)}"


def formula_lines(name: str, objective: Objective) -> list[str]:
    """The formula by which an objective adds rewards of answers and of steps, then the weights in it. [] if it pays for
    no step. ``policy_gradient.py`` has the equations."""
    rewards = getattr(objective.algorithm, "reward_weights", None)
    mix = getattr(objective.algorithm, "advantage_mix", None)
    if not rewards or mix is None:
        return []
    answer_weights = {signal.name: weight for signal, weight in rewards.items() if signal.per == "answer"}
    step_weights = {signal.name: weight for signal, weight in rewards.items() if signal.per == "span"}
    if not step_weights:
        return []
    alphas = {  # signal → name of its weight in the formula
        signal: _alpha_name(number, len(step_weights)) for number, signal in enumerate(step_weights, start=1)
    }
    if mix == "reward":
        over_steps = "mean" if getattr(objective.algorithm, "step_scale", "1/K") == "1/K" else "sum"
        formula = _reward_formula(answer_weights, alphas, over_steps)
    else:
        formula = _advantage_formula(answer_weights, alphas, is_convex=mix == "convex")
    weights = [f"{alphas[signal]}: {_weight_text(weight)}" for signal, weight in step_weights.items()]
    return [f"{name}'s {formula}", *weights]


def _reward_formula(answer_weights: Mapping[str, Any], alphas: Mapping[str, str], over_steps: str) -> str:
    terms = [_times(weight, signal) for signal, weight in answer_weights.items()]
    terms += [f"{alpha} · {over_steps}({signal})" for signal, alpha in alphas.items()]
    return f"reward: r = {' + '.join(terms)}"


def _advantage_formula(answer_weights: Mapping[str, Any], alphas: Mapping[str, str], *, is_convex: bool) -> str:
    """``is_convex``: answers have the weight that the steps leave, 1 − Σ α."""
    answers = " + ".join(_times(weight, f"A({signal})") for signal, weight in answer_weights.items())
    if is_convex and len(answer_weights) > 1:
        answers = f"({answers})"
    if is_convex and answers:
        answers = f"(1 − {' − '.join(alphas.values())}) · {answers}"
    steps = [f"{alpha} · A({signal})" for signal, alpha in alphas.items()]
    terms = [answers, *steps] if answers else steps
    return f"advantage: A = {' + '.join(terms)}"


def _alpha_name(number: int, total: int) -> str:
    return "α" if total == 1 else f"α{number}"


def _times(weight: Any, what: str) -> str:
    return what if weight == 1.0 else f"{_weight_text(weight)} · {what}"


def _weight_text(weight: Any) -> str:
    """A weight that stays, or how it changes: "0.1 → 0.001 (decay)"."""
    if isinstance(weight, (int, float)):
        return f"{weight:g}"
    if weight.start == weight.end:
        return f"{weight.start:g}"
    return f"{weight.start:g} → {weight.end:g} ({weight.shape})"
