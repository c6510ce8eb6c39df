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
    lines = [_warmup_text(_who_learns(recipe, name), steps) for name, steps in schedule.warmup if steps]
    runs = [(_who_learns(recipe, name), len(list(run))) for name, run in groupby(schedule.cycle)]
    if len(runs) == 1:
        (who, _) = runs[0]
        cycle = f"{' and '.join(who)} {_verb(who)} in every step"
    else:
        parts = [f"{' and '.join(who)} for {count_of(steps, 'step')}" for who, steps in runs]
        cycle = f"in turn: {', '.join(parts)}"
    if not lines:
        return [cycle]
    comma = "," if len(runs) > 1 else ""
    return [*lines, f"then{comma} {cycle}"]


def _warmup_text(who: list[str], steps: int) -> str:
    return f"{' and '.join(who)} {_verb(who)} for {count_of(steps, 'step')}"


def _verb(who: list[str]) -> str:
    return "learns" if len(who) == 1 else "learn"


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
    """How an objective joins what is paid per answer and per step, and the weights in it; none where it pays for no
    step."""
    rewards = getattr(objective.algorithm, "reward_weights", None)
    mix = getattr(objective.algorithm, "advantage_mix", None)
    if not rewards or mix is None:
        return []
    answers = {signal.name: weight for signal, weight in rewards.items() if signal.per == "answer"}
    spans = {signal.name: weight for signal, weight in rewards.items() if signal.per == "span"}
    if not spans:
        return []
    alphas = [_alpha_name(number, len(spans)) for number in range(1, len(spans) + 1)]
    process = "mean" if getattr(objective.algorithm, "step_scale", "1/K") == "1/K" else "sum"
    if mix == "reward":
        paid = " + ".join(_times(weight, name) for name, weight in answers.items())
        steps = " + ".join(f"{alpha} · {process}({name})" for alpha, name in zip(alphas, spans, strict=True))
        formula = f"reward: r = {paid} + {steps}" if paid else f"reward: r = {steps}"
    else:
        share = f"(1 − {' − '.join(alphas)}) · " if mix == "convex" else ""
        paid = " + ".join(_times(weight, f"A({name})") for name, weight in answers.items())
        if share and len(answers) > 1:
            paid = f"({paid})"
        steps = " + ".join(f"{alpha} · A({name})" for alpha, name in zip(alphas, spans, strict=True))
        formula = f"advantage: A = {share}{paid} + {steps}" if paid else f"advantage: A = {steps}"
    weights = [f"{alpha}: {_weight_text(weight)}" for alpha, weight in zip(alphas, spans.values(), strict=True)]
    return [f"{name}'s {formula}", *weights]


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
