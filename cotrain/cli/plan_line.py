"""The first lines of a run in which several policies learn, or in which steps are paid: who learns when, and from what.

::

    plan: 40 × verifier, then in turn 3 × generator (Ng), 1 × verifier (Nv)
      updates in 160 steps: generator 90, verifier 70
      generator: r = outcome + α · mean(step), α 0.1 → 0.001 (decay)

A recipe of one policy and one kind of step, which pays for nothing but answers, has no such lines.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotrain.config.recipe import Objective, Recipe


def plan_lines(recipe: Recipe) -> list[str]:
    """The lines, or none where there is nothing to say."""
    formulas: list[str] = []
    for name, objective in recipe.objectives.items():
        formula = formula_of(objective)
        if formula is not None:
            formulas.append(f"{name}: {formula}")

    trained = {objective.policy for objective in recipe.objectives.values()}
    has_one_kind_of_step = len(trained) < 2 and len(recipe.schedule.phases) < 2
    if has_one_kind_of_step and not formulas:
        return []
    details = [updates_text(recipe), *formulas]
    return [f"plan: {schedule_text(recipe)}", *(f"  {line}" for line in details)]


def schedule_text(recipe: Recipe) -> str:
    """The warm-ups and the cycle, with the numbers of steps that are known as Ng and Nv."""
    schedule = recipe.schedule
    warmups = [f"{steps} × {_who_learns(recipe, name)}" for name, steps in schedule.warmup if steps]
    runs = [(name, len(list(run))) for name, run in groupby(schedule.cycle)]
    if len(runs) == 1:
        cycle = f"every step {_who_learns(recipe, runs[0][0])}"
    else:
        parts = [f"{steps} × {_who_learns(recipe, name)} (N{name[:1]})" for name, steps in runs]
        cycle = f"in turn {', '.join(parts)}"
    return ", then ".join([*warmups, cycle])


def _who_learns(recipe: Recipe, phase_name: str) -> str:
    """The policies that learn in a phase: "generator and verifier"."""
    phase = next(phase for phase in recipe.schedule.phases if phase.name == phase_name)
    policies = dict.fromkeys(recipe.objectives[name].policy for name in phase.objectives)
    return " and ".join(policies)


def updates_text(recipe: Recipe) -> str:
    """From how many batches each policy learns."""
    policies = dict.fromkeys(objective.policy for objective in recipe.objectives.values())
    counts = [f"{policy} {recipe.planned_updates(policy, recipe.steps)}" for policy in policies]
    return f"updates in {recipe.steps} steps: {', '.join(counts)}"


def formula_of(objective: Objective) -> str | None:
    """How an objective joins what is paid per answer and per step; None where it pays for no step."""
    rewards = getattr(objective.algorithm, "reward_weights", None)
    mix = getattr(objective.algorithm, "advantage_mix", None)
    if not rewards or mix is None:
        return None
    answers = {signal.name: weight for signal, weight in rewards.items() if signal.per == "answer"}
    spans = {signal.name: weight for signal, weight in rewards.items() if signal.per == "span"}
    if not spans:
        return None
    alphas = [_alpha_name(number, len(spans)) for number in range(1, len(spans) + 1)]
    process = "mean" if getattr(objective.algorithm, "step_scale", "1/K") == "1/K" else "sum"
    if mix == "reward":
        paid = " + ".join(_times(weight, name) for name, weight in answers.items())
        steps = " + ".join(f"{alpha} · {process}({name})" for alpha, name in zip(alphas, spans, strict=True))
        formula = f"r = {paid} + {steps}" if paid else f"r = {steps}"
    else:
        share = f"(1 − {' − '.join(alphas)}) · " if mix == "convex" else ""
        paid = " + ".join(_times(weight, f"A({name})") for name, weight in answers.items())
        if share and len(answers) > 1:
            paid = f"({paid})"
        steps = " + ".join(f"{alpha} · A({name})" for alpha, name in zip(alphas, spans, strict=True))
        formula = f"A = {share}{paid} + {steps}" if paid else f"A = {steps}"

    weights = [f"{alpha} {_weight_text(weight)}" for alpha, weight in zip(alphas, spans.values(), strict=True)]
    return ", ".join([formula, *weights])


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
