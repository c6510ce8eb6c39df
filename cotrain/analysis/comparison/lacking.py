"""Which arms of a comparison lack a headline figure that another arm has, and why.

GRPO has no verifier, a vote of eight wants eight answers, and a figure may be undefined in all runs of an arm."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cotrain.config.recipe import Recipe
from cotrain.core.verbosity import count_of
from cotrain.reports.compare_table import in_reading_order, is_headline
from cotrain.runs.figures import end_figure_names


def lacking_figures(
    recipes: Mapping[str, Recipe], runs_by_arm: Mapping[str, Sequence[Mapping[str, Any]]], further: Collection[str]
) -> list[dict[str, Any]]:
    """``{"recipe": label, "metrics": [figure, …], "why": words}`` for each arm and each reason.

    Args:
        runs_by_arm: the runs of each arm, by its label, as ``collect_run`` returns them.
        further: figures beside the headlines, such as the measure of a study.
    """
    measured_by_arm = {}
    for label, runs in runs_by_arm.items():
        measured_by_arm[label] = [set(run["after"]) for run in runs]
    wanted: set[str] = set(further)
    for measured in measured_by_arm.values():
        for figures in measured:
            wanted.update(filter(is_headline, figures))

    rows = []
    for label, measured in measured_by_arm.items():
        metrics_by_reason: dict[str, list[str]] = {}
        for metric in in_reading_order(wanted):
            reason = _why_lacking(recipes[label], metric, measured)
            if reason:
                metrics_by_reason.setdefault(reason, []).append(metric)
        rows += [{"recipe": label, "metrics": names, "why": why} for why, names in metrics_by_reason.items()]
    return rows


def _why_lacking(recipe: Recipe, figure: str, measured: Sequence[Collection[str]]) -> str:
    """Why runs of a recipe lack a figure; "" where all have it. ``measured``: the figures of each run."""
    lacking = [figures for figures in measured if figure not in figures]
    if not lacking:
        return ""
    if len(lacking) < len(measured):
        return f"it is undefined in {len(lacking)} of {count_of(len(measured), 'run')}"

    known = end_figure_names(recipe)
    is_measured = known is not None and figure in known
    if not is_measured:
        reason = _why_not_measured(recipe, figure)
        if reason:
            return reason
        if known is not None:
            return "no measure of it gives that"
    _, _, answers = figure.partition("@")
    group_size = recipe.evaluation.group_size
    if answers.isdigit() and int(answers) > group_size:
        return f"evaluation.group_size is {group_size}, and it takes {answers} answers to a problem"
    return "it is undefined in all of its runs, as where nothing could be read"


def _why_not_measured(recipe: Recipe, figure: str) -> str:
    """Why no measure of a recipe gives a figure; "" where neither its roles nor its settings say. Figures such as "gap"
    are of no role, and some are of a policy."""
    owner, slash, _ = figure.partition("/")
    if slash and owner not in recipe.roles and owner not in recipe.policies:
        return f"it has no role {owner!r}; its roles are {', '.join(recipe.roles)}"
    _, _, name = figure.rpartition("/")
    if name.startswith("greedy") and not recipe.evaluation.greedy:
        return "evaluation.greedy is false"
    return ""
