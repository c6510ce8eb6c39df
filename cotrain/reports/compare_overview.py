"""A comparison at one glance, as tables of text: what each recipe reached, what that cost, and how it was run.

::

    headlines   greedy, pass@1, pass@k and the vote of k next to each other, at the start and at the end, and the
                verifier's verdicts
    costs       batches, tokens, operations and seconds; updates of the leading policy, and the parts of the operations
    settings    learning rates, warm-up, temperature, batch, and the problems of the test
    alarms      which fired in how many runs of each recipe (``metrics/alarms.py``)
    rates       what each arm had on validation problems at each learning rate, and which was taken

Headlines are of the role ``solver`` where there is one; verdicts are balanced accuracy, of ``verifier``, else of the
first role that judges what the present generator writes. Costs are means over seeds. Seconds are of one thread of
whatever machine made them, with whatever ran beside them: they compare recipes of one comparison and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.statistics import FEW_TESTED, LEAST, Estimate
from cotrain.core.verbosity import count_of
from cotrain.metrics.table import labelled_metric
from cotrain.reports.compare_reach import find_levels
from cotrain.reports.compare_table import VERDICTS, Runs, verdict_table
from cotrain.reports.compare_words import AXES, UNITS, amount_text, seeds_that_ran
from cotrain.reports.guide import interval_text, number_text

MOST_LACKING = 4  # figures that a sentence names of those that a recipe lacks
TextTable = tuple[list[str], list[list[str]]]  # head, rows of as many cells; the first names the recipe
SOLVER_TITLES = (  # (name of a figure, or its beginning before any k; title of its column)
    ("greedy", "greedy"),
    ("pass@1", "pass@1"),
    ("pass@", "pass@{}"),
    ("majority@", "maj@{}"),
)


def headline_cells(compare: Mapping[str, Any]) -> TextTable:
    """``start → end (interval)`` of each recipe, or a dash without the figure. No rows if no recipe has any of them."""
    rows = {(row["metric"], row["recipe"]): row for row in compare.get("table", ()) if row["at"] == "end"}
    metrics = sorted({metric for metric, _ in rows})
    columns = [*_solver_columns(metrics), *_verifier_columns(metrics)]
    head = ["recipe", *(title for title, _ in columns)]
    if not columns:
        return head, []
    lines = []
    for name in _recipes_by_name(compare):
        cells = [_start_to_end(rows.get((metric, name))) for _, metric in columns]
        lines.append([name, *cells])
    return head, lines


def _recipes_by_name(compare: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The recipes of compare.json; what is no recipe is left out."""
    recipes = compare.get("recipes")
    entries = recipes.items() if isinstance(recipes, Mapping) else ()
    return {str(name): recipe for name, recipe in entries if isinstance(recipe, Mapping)}


def _runs_of_recipe(recipe_json: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [run for run in recipe_json.get("seeds", ()) if isinstance(run, Mapping)]


def _solver_columns(metrics: Sequence[str]) -> list[tuple[str, str]]:
    """(title, metric) of the solver's headlines."""
    of_usual_split = [metric for metric in metrics if metric.count("/") == 1]
    roles = [metric.split("/")[0] for metric in of_usual_split if metric.endswith("/pass@1")]
    if not roles:
        return []
    solver = min(roles, key=lambda role: role != "solver")  # "solver", or else the first one
    names = [metric.split("/")[1] for metric in of_usual_split if metric.startswith(f"{solver}/")]
    columns = []
    for beginning, title in SOLVER_TITLES:
        for name in names:
            is_of_any_k = beginning.endswith("@") and name.startswith(beginning) and name != "pass@1"
            if name == beginning or is_of_any_k:
                _, _, k = name.partition("@")
                columns.append((title.format(k), f"{solver}/{name}"))
    return columns


def _verifier_columns(metrics: Sequence[str]) -> list[tuple[str, str]]:
    """(title, metric) of the verifier's headlines."""
    verifiers = [m.split("/")[0] for m in metrics if m.count("/") == 1 and m.endswith("/balanced_accuracy")]
    if not verifiers:
        return []
    verifier = min(verifiers, key=lambda role: role != "verifier")  # "verifier", or else the first one
    columns = [(f"{verifier}: verdicts", f"{verifier}/balanced_accuracy")]
    columns += [(f"{verifier}: on steps", f"{verifier}/step_balanced_accuracy"), ("called right minus right", "gap")]
    return [(title, metric) for title, metric in columns if metric in metrics]


def _start_to_end(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    before, after = Estimate.from_json(row["before"]), Estimate.from_json(row["after"])
    if not (math.isfinite(before.value) and math.isfinite(after.value)):
        return estimate_text(after)
    return f"{number_text(before.value, share=True)} → {estimate_text(after)}"


def estimate_text(estimate: Estimate, share: bool = True) -> str:
    """A figure with its interval; a dash where there is none."""
    if math.isnan(estimate.value):
        return "–"
    spread = f" ({interval_text(estimate, share=share)})" if math.isfinite(estimate.low) else ""
    return f"{number_text(estimate.value, share=share)}{spread}"


def cost_cells(compare: Mapping[str, Any]) -> TextTable:
    """Four costs, and what the operations went to."""
    parts: set[str] = set()
    for recipe in _recipes_by_name(compare).values():
        for run in _runs_of_recipe(recipe):
            parts.update(run.get("flops", ()))
    order = [part for part in ("prefill", "sampling", "scoring", "learning") if part in parts]
    head = ["recipe", "batches", "updates", "tokens", "FLOPs", *(f"of them {part}" for part in order), "seconds"]
    rows = []
    for name, recipe in _recipes_by_name(compare).items():
        runs = _runs_of_recipe(recipe)

        amounts = {}
        for axis in UNITS:
            mean = _known_mean([run.get("spent", {}).get(axis) for run in runs])
            amounts[axis] = _amount_or_dash(mean, axis)
        updates = _known_mean([run.get("updates") for run in runs])

        flops_by_part = []
        for part in order:
            flops_by_part.append(_known_mean([run.get("flops", {}).get(part) for run in runs]))
        total_flops = sum(value for value in flops_by_part if math.isfinite(value))
        shares = ["–"] * len(order)
        if total_flops:
            shares = [number_text(value / total_flops, share=True) for value in flops_by_part]

        rows.append(
            [
                name,
                amounts["batches"],
                _amount_or_dash(updates, "batches"),
                amounts["tokens"],
                amounts["flops"],
                *shares,
                amounts["seconds"],
            ]
        )
    return head, rows


def _amount_or_dash(value: float, axis: str) -> str:
    return "–" if math.isnan(value) else amount_text(value, axis)


def _known_mean(values: Sequence[object]) -> float:
    """The mean of those values that are numbers; NaN without any."""
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def alarm_cells(compare: Mapping[str, Any]) -> TextTable:
    """Recipe by recipe, what fired in most runs first; no rows where nothing did."""
    rows = []
    for name, recipe in _recipes_by_name(compare).items():
        runs = _runs_of_recipe(recipe)
        first_batches: dict[tuple[str, str], list[int]] = {}  # (alarm, figure) → batch, of each run in which it fired
        for run in runs:
            for alarm in run.get("alarms", ()):
                key = (str(alarm["band"]), str(alarm["key"]))
                first_batches.setdefault(key, []).append(int(alarm["step"]) + 1)
        for (band, figure), batches in sorted(first_batches.items(), key=lambda item: -len(item[1])):
            when = f"{min(batches)} to {max(batches)}" if min(batches) < max(batches) else f"{batches[0]}"
            rows.append([name, band, figure, f"{len(batches)} of {len(runs)}", when])
    return ["recipe", "alarm", "figure", "runs", "first after batch"], rows


def setting_cells(compare: Mapping[str, Any]) -> TextTable:
    """How each recipe was run."""
    head = [
        "recipe",
        "learning rate",
        "warm-up, updates",
        "temperature",
        "problems × answers a batch",
        "test problems a seed",
    ]
    rows = []
    for name, recipe in _recipes_by_name(compare).items():
        values = recipe.get("settings")
        if values:
            batch = f"{values['problems']} × {values['group_size']}"
            test_text = f"{values['test_problems']}, {_count_in_file(values['evaluation_group_size'], 'answer')} each"
            texts = [_values_text(values[key]) for key in ("learning_rate", "lr_warmup", "temperature")]
            rows.append([name, *texts, batch, test_text])
    return head, rows


def _values_text(values: Mapping[str, float]) -> str:
    """The value if all policies have the same, else the value of each."""
    if len(set(values.values())) == 1:
        return f"{next(iter(values.values())):g}"
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def rate_cells(compare: Mapping[str, Any]) -> TextTable:
    """The table of each recipe's score on validation problems at each learning rate; no rows where none was chosen."""
    rates_json = compare.get("rates") or {}
    grid = sorted(rates_json.get("grid", ()))
    head = ["recipe", "figure", *(f"{rate:g}" for rate in grid), "taken"]
    rows = []
    for name, arm_rates in rates_json.get("arms", {}).items():
        scores = {}
        for rate, score in arm_rates["scores"]:
            scores[rate] = number_text(math.nan if score is None else score, share=True)
        chosen_rate = f"{arm_rates['chosen']:g}"
        if arm_rates["edge"]:
            chosen_rate += " (edge of the grid: a wider one may hold a better)"
        rows.append([name, arm_rates["measure"], *(scores.get(rate, "–") for rate in grid), chosen_rate])
    return head, rows


def needed_cells(runs: Runs, budgets: Mapping[str, float]) -> TextTable:
    """When the mean curve of each recipe first passes a level. No rows without a level, or with too few seeds to say
    anything about their spread."""
    rows: list[list[str]] = []
    head = ["level", "recipe", "needed", "against the reference"]
    if any(len(seeds) < LEAST for seeds in runs.values()):
        return head, rows
    for axis in AXES:
        for level in find_levels(runs, axis, budgets.get(axis, math.nan)):
            level_text = f"{UNITS[axis]} to {number_text(level.value, share=True)}"
            if level.name:
                level_text += f", {level.name}"
            for crossing in level.reached:
                rows.append([level_text, crossing.recipe, crossing.in_words(), crossing.difference_in_words()])
    return head, rows


def verdict_cells(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, TextTable]]:
    """(whose verdicts, their figures at the end) of each verifier."""
    tables: list[tuple[str, TextTable]] = []
    for title, recipes in verdict_table(rows).items():
        measured = set().union(*recipes.values())
        metrics = [metric for metric in VERDICTS if metric in measured]
        head = ["recipe", *(labelled_metric(metric).label for metric in metrics)]
        lines = []
        for name, figures in recipes.items():
            cells = [estimate_text(figures[metric]) if metric in figures else "–" for metric in metrics]
            lines.append([name, *cells])
        tables.append((title, (head, lines)))
    return tables


def _count_in_file(number: Any, thing: str) -> str:
    """As ``count_of``; with a question mark where the file, which may be anybody's, holds no whole number."""
    return count_of(number, thing) if isinstance(number, int) else f"? {count_of(0, thing).removeprefix('0 ')}"


def few_tested_words(compare: Mapping[str, Any]) -> str:
    """A warning if its seeds are tested on too few problems to conclude anything, else ""."""
    counts = []
    for recipe in _recipes_by_name(compare).values():
        settings = recipe.get("settings")
        count = settings.get("test_problems") if isinstance(settings, Mapping) else None
        if isinstance(count, int):
            counts.append(count)
    fewest = min(counts, default=FEW_TESTED)
    return f"{count_of(fewest, 'test problem')} a seed: nothing can be concluded" if fewest < FEW_TESTED else ""


def early_end_words(compare: Mapping[str, Any]) -> str:
    """How many of the planned seeds ran, where a study was ended at fewer, else ""."""
    seeds = compare.get("seeds")
    planned = compare.get("planned_seeds")
    if not isinstance(seeds, int) or not isinstance(planned, int):  # the file may be anybody's
        return ""
    return f"Ended early: {seeds_that_ran(seeds, planned)}"


def lacking_sentences(compare: Mapping[str, Any]) -> list[str]:
    """Which recipe lacks a headline figure that another one has, and why; comparisons of earlier versions do not
    say."""
    lacking = compare.get("lacking")
    rows = lacking if isinstance(lacking, list) else ()  # the file may be anybody's
    sentences = []
    for row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("metrics"), list):
            continue
        metrics = list(map(str, row["metrics"]))
        shown = ", ".join(metrics[:MOST_LACKING])
        if len(metrics) > MOST_LACKING:
            shown += f" and {len(metrics) - MOST_LACKING} more"
        sentences.append(f"{row.get('recipe')} lacks {shown}: {row.get('why')}.")
    return sentences


def about_sentences(compare: Mapping[str, Any]) -> list[str]:
    """The sentences of a page about the whole comparison."""
    equal = compare.get("equal")
    budget = compare.get("budget")
    batches = _count_in_file(compare.get("batches"), "batch")
    few = few_tested_words(compare)
    early = early_end_words(compare)
    sentences = [f"{warning}." for warning in (early, few) if warning]
    if equal == "updates":
        sentences.append(f"Every run lasts until its generator has had {batches} to learn from.")
    elif equal == "batches":
        sentences.append(f"Every run lasts {batches}.")
    elif equal in UNITS and isinstance(budget, int | float):
        whose = f", what {compare['dearest']} spends in {batches}" if compare.get("dearest") else ""
        sentences.append(f"Every run ends when it has spent {amount_text(budget, equal)} {UNITS[equal]}{whose}.")
    sentences.append("Each seed is tested on problems of its own, the same ones in every recipe.")
    return sentences + lacking_sentences(compare)
