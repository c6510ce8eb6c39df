"""A comparison at one glance, as tables of text: what each recipe reached, what that cost, and how it was run.

    headlines   greedy, pass@1, pass@k and the vote of k beside each other, at the start and at the end, and the judge's
                verdicts
    costs       batches, tokens, operations and seconds; updates of the leading policy, and the parts of the operations
    settings    learning rates, warm-up, temperature, batch, and the problems of the test
    alarms      which fired in how many runs of each recipe (``metrics/alarms.py``)
    rates       what each arm had on validation problems at each learning rate, and which was taken

Headlines are of the role ``solver`` where there is one; verdicts are balanced accuracy, of ``verifier``, else of the
first role that judges what the present generator writes. Costs are means over seeds. Seconds are of one thread of
whatever machine made them, with whatever ran beside: they compare recipes of one comparison and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.statistics import Estimate
from cotrain.pages.compare_words import UNITS, amount
from cotrain.pages.guide import interval, number

Cells = tuple[list[str], list[list[str]]]  # head, rows of as many cells; the first names the recipe
KINDS = (("greedy", "greedy"), ("pass@1", "pass@1"), ("pass@", "pass@{}"), ("majority@", "maj@{}"))  # ending, title


def headlines(compare: Mapping[str, Any]) -> Cells:
    """``start → end (interval)`` of each recipe; a dash where it has nothing; no rows where no recipe has one of
    these figures."""
    rows = {(row["metric"], row["recipe"]): row for row in compare.get("table", ()) if row["at"] == "end"}
    metrics = sorted({metric for metric, _ in rows})
    columns = [(title, metric) for metric, title in _solver(metrics)]
    columns += [(title, metric) for title, metric in _judge(metrics)]
    head = ["recipe", *(title for title, _ in columns)]
    if not columns:
        return head, []
    return head, [[name, *(_moved(rows.get((metric, name))) for _, metric in columns)] for name in _arms(compare)]


def _arms(compare: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The recipes of compare.json; what is no recipe is left out."""
    held = compare.get("recipes")
    named = held.items() if isinstance(held, Mapping) else ()
    return {str(name): found for name, found in named if isinstance(found, Mapping)}


def _runs(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [run for run in found.get("seeds", ()) if isinstance(run, Mapping)]


def _solver(metrics: Sequence[str]) -> list[tuple[str, str]]:
    """(figure, title) of the solver's headlines."""
    plain = [m for m in metrics if m.count("/") == 1]
    whose = sorted({m.split("/")[0] for m in plain if m.endswith("/pass@1")}, key=lambda role: role != "solver")
    if not whose:
        return []
    own = {m.split("/")[1]: m for m in plain if m.startswith(f"{whose[0]}/")}
    found = []
    for ending, title in KINDS:
        named = [n for n in own if n == ending or (ending.endswith("@") and n.startswith(ending) and n != "pass@1")]
        found += [(own[name], title.format(name.partition("@")[2])) for name in named]
    return found


def _judge(metrics: Sequence[str]) -> list[tuple[str, str]]:
    judges = [m.split("/")[0] for m in metrics if m.count("/") == 1 and m.endswith("/balanced_accuracy")]
    if not judges:
        return []
    judge = min(judges, key=lambda role: role != "verifier")
    wanted = [(f"{judge}: verdicts", f"{judge}/balanced_accuracy")]
    wanted += [(f"{judge}: on steps", f"{judge}/step_balanced_accuracy"), ("called right minus right", "gap")]
    return [(title, metric) for title, metric in wanted if metric in metrics]


def _moved(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    before, after = Estimate.of_json(row["before"]), Estimate.of_json(row["after"])
    if math.isnan(after.value):
        return "–"
    start = "" if math.isnan(before.value) else f"{number(before.value, share=True)} → "
    spread = f" ({interval(after, share=True)})" if math.isfinite(after.low) else ""
    return f"{start}{number(after.value, share=True)}{spread}"


def costs(compare: Mapping[str, Any]) -> Cells:
    """Four costs, and what the operations went to."""
    parts = sorted({part for r in _arms(compare).values() for run in _runs(r) for part in run.get("flops", ())})
    order = [part for part in ("prefill", "sampling", "scoring", "learning") if part in parts]
    head = ["recipe", "batches", "updates", "tokens", "FLOPs", *(f"of them {part}" for part in order), "seconds"]
    rows = []
    for name, found in _arms(compare).items():
        seeds = _runs(found)
        spent = {axis: _mean([run.get("spent", {}).get(axis) for run in seeds]) for axis in UNITS}
        each = {part: _mean([run.get("flops", {}).get(part) for run in seeds]) for part in order}
        whole = sum(value for value in each.values() if math.isfinite(value))
        shares = [number(value / whole, share=True) if whole else "–" for value in each.values()]
        updates = _mean([run.get("updates") for run in seeds])
        told = {axis: "–" if math.isnan(value) else amount(value, axis) for axis, value in spent.items()}
        counted = "–" if math.isnan(updates) else amount(updates, "batches")
        rows.append([name, told["batches"], counted, told["tokens"], told["flops"], *shares, told["seconds"]])
    return head, rows


def _mean(values: Sequence[object]) -> float:
    held = [float(value) for value in values if isinstance(value, int | float)]
    return sum(held) / len(held) if held else math.nan


def alarms(compare: Mapping[str, Any]) -> Cells:
    """Recipe by recipe, what fired in most runs first; no rows where nothing did."""
    rows = []
    for name, found in _arms(compare).items():
        seeds = _runs(found)
        steps: dict[tuple[str, str], list[int]] = {}
        for run in seeds:
            for alarm in run.get("alarms", ()):
                steps.setdefault((str(alarm["band"]), str(alarm["key"])), []).append(int(alarm["step"]) + 1)
        for (band, key), first in sorted(steps.items(), key=lambda item: -len(item[1])):
            when = f"{min(first)} to {max(first)}" if min(first) < max(first) else f"{first[0]}"
            rows.append([name, band, key, f"{len(first)} of {len(seeds)}", when])
    return ["recipe", "alarm", "figure", "runs", "first after batch"], rows


def settings(compare: Mapping[str, Any]) -> Cells:
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
    for name, found in _arms(compare).items():
        held = found.get("settings")
        if held:
            batch = f"{held['problems']} × {held['group_size']}"
            tested = f"{held['test_problems']}, {held['evaluation_group_size']} answers each"
            each = [_each(held[key]) for key in ("learning_rate", "lr_warmup", "temperature")]
            rows.append([name, *each, batch, tested])
    return head, rows


def _each(values: Mapping[str, float]) -> str:
    """One value where all have the same, else each with its name."""
    if len(set(values.values())) == 1:
        return f"{next(iter(values.values())):g}"
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def rates(compare: Mapping[str, Any]) -> Cells:
    """What each recipe had on validation problems at each learning rate; no rows where none was chosen."""
    held = compare.get("rates") or {}
    grid = sorted(held.get("grid", ()))
    head = ["recipe", "figure", *(f"{rate:g}" for rate in grid), "taken"]
    rows = []
    for name, found in held.get("arms", {}).items():
        scores = {rate: number(score, share=True) for rate, score in found["scores"]}
        taken = f"{found['chosen']:g}" + (" (edge of the grid: a wider one may hold a better)" if found["edge"] else "")
        rows.append([name, found["measure"], *(scores.get(rate, "–") for rate in grid), taken])
    return head, rows


def about(compare: Mapping[str, Any]) -> list[str]:
    """What a page says of the whole comparison, a sentence each."""
    equal, budget = compare.get("equal"), compare.get("budget")
    said = []
    if equal == "updates":
        said.append(f"Every run lasts until its generator has had {compare.get('batches')} batches to learn from.")
    elif equal == "batches":
        said.append(f"Every run lasts {compare.get('batches')} batches.")
    elif equal in UNITS and isinstance(budget, int | float):
        whose = (
            f", what {compare['dearest']} spends in {compare.get('batches')} batches" if compare.get("dearest") else ""
        )
        said.append(f"Every run ends when it has spent {amount(budget, equal)} {UNITS[equal]}{whose}.")
    said.append("Each seed is tested on problems of its own, the same ones in every recipe.")
    return said
