"""A comparison at one glance, as tables of text: what each recipe reached, what that cost, and how it was run.

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
from cotrain.reports.compare_words import AXES, UNITS, amount_text
from cotrain.reports.guide import interval_text, number_text

TextTable = tuple[list[str], list[list[str]]]  # head, rows of as many cells; the first names the recipe
KINDS = (("greedy", "greedy"), ("pass@1", "pass@1"), ("pass@", "pass@{}"), ("majority@", "maj@{}"))  # ending, title


def headline_cells(compare: Mapping[str, Any]) -> TextTable:
    """``start → end (interval)`` of each recipe; a dash where it has nothing; no rows where no recipe has one of
    these figures."""
    rows = {(row["metric"], row["recipe"]): row for row in compare.get("table", ()) if row["at"] == "end"}
    metrics = sorted({metric for metric, _ in rows})
    columns = [(title, metric) for metric, title in _solver_columns(metrics)]
    columns += [(title, metric) for title, metric in _verifier_columns(metrics)]
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
    """(figure, title) of the solver's headlines."""
    plain = [m for m in metrics if m.count("/") == 1]
    whose = sorted({m.split("/")[0] for m in plain if m.endswith("/pass@1")}, key=lambda role: role != "solver")
    if not whose:
        return []
    metrics_by_name = {m.split("/")[1]: m for m in plain if m.startswith(f"{whose[0]}/")}
    columns = []
    for ending, title in KINDS:
        names = [
            n
            for n in metrics_by_name
            if n == ending or (ending.endswith("@") and n.startswith(ending) and n != "pass@1")
        ]
        columns += [(metrics_by_name[name], title.format(name.partition("@")[2])) for name in names]
    return columns


def _verifier_columns(metrics: Sequence[str]) -> list[tuple[str, str]]:
    verifiers = [m.split("/")[0] for m in metrics if m.count("/") == 1 and m.endswith("/balanced_accuracy")]
    if not verifiers:
        return []
    verifier = min(verifiers, key=lambda role: role != "verifier")
    columns = [(f"{verifier}: verdicts", f"{verifier}/balanced_accuracy")]
    columns += [(f"{verifier}: on steps", f"{verifier}/step_balanced_accuracy"), ("called right minus right", "gap")]
    return [(title, metric) for title, metric in columns if metric in metrics]


def _start_to_end(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    before, after = Estimate.from_json(row["before"]), Estimate.from_json(row["after"])
    is_finite = math.isfinite(before.value) and math.isfinite(after.value)
    return (f"{number_text(before.value, share=True)} → " if is_finite else "") + estimate_text(after)


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
        seeds = _runs_of_recipe(recipe)

        spent = [run.get("spent", {}) for run in seeds]
        amounts = {}
        for axis in UNITS:
            mean = _known_mean([amounts_of_run.get(axis) for amounts_of_run in spent])
            amounts[axis] = _amount_or_dash(mean, axis)
        updates = _known_mean([run.get("updates") for run in seeds])

        flops = [run.get("flops", {}) for run in seeds]
        flops_by_part = []
        for part in order:
            flops_by_part.append(_known_mean([flops_of_run.get(part) for flops_of_run in flops]))
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
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def alarm_cells(compare: Mapping[str, Any]) -> TextTable:
    """Recipe by recipe, what fired in most runs first; no rows where nothing did."""
    rows = []
    for name, recipe in _recipes_by_name(compare).items():
        seeds = _runs_of_recipe(recipe)
        steps: dict[tuple[str, str], list[int]] = {}
        for run in seeds:
            for alarm in run.get("alarms", ()):
                steps.setdefault((str(alarm["band"]), str(alarm["key"])), []).append(int(alarm["step"]) + 1)
        for (band, key), batches in sorted(steps.items(), key=lambda item: -len(item[1])):
            when = f"{min(batches)} to {max(batches)}" if min(batches) < max(batches) else f"{batches[0]}"
            rows.append([name, band, key, f"{len(batches)} of {len(seeds)}", when])
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
    """One value where all have the same, else each with its name."""
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
        scores = {rate: number_text(score, share=True) for rate, score in arm_rates["scores"]}
        chosen_rate = f"{arm_rates['chosen']:g}"
        if arm_rates["edge"]:
            chosen_rate += " (edge of the grid: a wider one may hold a better)"
        rows.append([name, arm_rates["measure"], *(scores.get(rate, "–") for rate in grid), chosen_rate])
    return head, rows


def needed_cells(runs: Runs, budgets: Mapping[str, float]) -> TextTable:
    """When the mean curve of each recipe first passes a level; no rows where there is none, and of too few seeds to
    say anything of their spread."""
    rows: list[list[str]] = []
    head = ["level", "recipe", "needed", "against the reference"]
    if any(len(seeds) < LEAST for seeds in runs.values()):
        return head, rows
    for axis in AXES:
        for level in find_levels(runs, axis, budgets.get(axis, math.nan)):
            name = f", {level.name}" if level.name else ""
            level_text = f"{UNITS[axis]} to {number_text(level.value, share=True)}{name}"
            rows += [[level_text, r.recipe, r.in_words(), r.difference_in_words()] for r in level.reached]
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
    """That its seeds are tested on next to nothing, where they are; else ""."""
    settings = [recipe.get("settings") for recipe in _recipes_by_name(compare).values()]
    counts = [one.get("test_problems") for one in settings if isinstance(one, Mapping)]
    fewest = min((count for count in counts if isinstance(count, int)), default=FEW_TESTED)
    return f"{count_of(fewest, 'test problem')} a seed: nothing can be concluded" if fewest < FEW_TESTED else ""


def about_sentences(compare: Mapping[str, Any]) -> list[str]:
    """The sentences of a page about the whole comparison."""
    equal = compare.get("equal")
    budget = compare.get("budget")
    batches = _count_in_file(compare.get("batches"), "batch")
    few = few_tested_words(compare)
    sentences = [f"{few}."] if few else []
    if equal == "updates":
        sentences.append(f"Every run lasts until its generator has had {batches} to learn from.")
    elif equal == "batches":
        sentences.append(f"Every run lasts {batches}.")
    elif equal in UNITS and isinstance(budget, int | float):
        whose = f", what {compare['dearest']} spends in {batches}" if compare.get("dearest") else ""
        sentences.append(f"Every run ends when it has spent {amount_text(budget, equal)} {UNITS[equal]}{whose}.")
    sentences.append("Each seed is tested on problems of its own, the same ones in every recipe.")
    return sentences
