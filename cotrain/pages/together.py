"""Runs side by side, as a page shows them: a comparison, a study, or the seeds of one recipe.

Figures and words come from ``compare.json`` and ``study.json`` through ``report/compare_*``; curves of training,
progress and settings from the run directories, which may still be written. Nothing here decides what is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import RunDirectoryError
from cotrain.core.statistics import Estimate
from cotrain.metrics.table import meaning
from cotrain.pages import study_words
from cotrain.pages.bands import arms_of, bands_of, tells_of_training
from cotrain.pages.compare_overview import Cells, about, alarms, costs, headlines, rates, settings
from cotrain.pages.compare_reach import levels
from cotrain.pages.compare_table import (
    VERDICTS,
    Runs,
    by_figure,
    is_headline,
    is_share,
    label_of,
    roles_in,
    runs_of,
    tabled,
    verdict_table,
)
from cotrain.pages.compare_words import AXES, UNITS, budget_in_words, short_labels
from cotrain.pages.follow import object_of
from cotrain.pages.guide import interval, number
from cotrain.pages.places import RECIPE, Place, comparison_at
from cotrain.pages.read import estimates
from cotrain.pages.rollouts import FIELDS
from cotrain.pages.runs import Run, figures, shown
from cotrain.pages.settings import flat, word

MOST_SETTINGS = 120  # rows of the difference of settings
MOST_PROBLEMS = 300  # in the list of one seed
END = (
    "On test problems, when each run had ended. Intervals (95\u202f%) are over seeds and problems, differences "
    "paired by seed and "
    "problem. A difference is called when its interval leaves out zero and it is as large as what would have been "
    "seen with "
    "80\u202f% power."
)
ON_CURVES = (
    "Read off the curves on validation problems, where every run has spent as much: no verdicts. Intervals are over "
    "seeds."
)
COSTS = (
    "Means over seeds. A batch counts whether or not something was learned from it, an update only when the weights "
    "moved. "
    "FLOPs are of all policies: prompts, sampled tokens, scoring passes and learning. Seconds are of one thread of "
    "the machine, "
    "with what ran beside."
)
NEEDED = (
    "Where the mean curve on validation problems first passes the level, with the smallest and largest crossing of a "
    "single "
    "seed. The difference is paired by seed, and given only when every seed gets there."
)
ON_VERDICTS = "On test problems, means over seeds. An unreadable review counts as a wrong verdict."
ALARMS = (
    "Health checks that fired in single runs, and the batches after which they first did. A recipe most of whose runs "
    "raised one may not have had a fair chance, or be no control: look at its runs."
)
Arms = Mapping[str, Mapping[int, Run]]  # arm → seed → its run


class Together:
    """Several runs that one page shows. ``numbers``: run directory → its number in the viewer."""

    def __init__(self, place: Place, arms: Arms, numbers: Mapping[Path, int]) -> None:
        self.place = place
        self.arms = arms
        self._numbers = numbers

    def stamp(self) -> list[float]:
        """Changes when there is something new to draw."""
        found: list[float] = []
        for seeds in self.arms.values():
            for run in seeds.values():
                rows, held_out, *_, ended, _ = run.stamp()
                found += [rows, held_out, ended]
        path = self.place.path / "compare.json"
        return [*found, path.stat().st_mtime if path.is_file() else 0.0]

    def document(self) -> dict[str, Any]:
        """Everything but rollouts."""
        for seeds in self.arms.values():
            for run in seeds.values():
                run.curves.read()
        compare, _ = object_of(self.place.path / "compare.json")
        compare = compare if self.place.kind == "comparison" else {}
        curves = {arm: {seed: run.curves for seed, run in seeds.items()} for arm, seeds in self.arms.items()}
        held_out = runs_of(compare) if compare else arms_of(curves, training=False)
        return {
            "kind": self.place.kind,
            "title": shown(self.place.title),
            "name": self.place.name,
            "arms": [self._progress(arm) for arm in self.arms],
            **(compared(compare, held_out) if compare else {"said": [], "figures": [], "cells": [], "about": []}),
            "held_out": bands_of(held_out, differences=bool(compare)),
            "training": bands_of(arms_of(curves, training=True), differences=False, first=tells_of_training),
            "settings": unlike_settings({arm: list(seeds.values()) for arm, seeds in self.arms.items()}),
        }

    def _progress(self, arm: str) -> dict[str, Any]:
        runs = [
            {
                "seed": seed,
                "number": self._numbers.get(run.directory),
                "steps": len(run.curves.rows),
                "planned": run.recipe.get("steps"),
                "ended": (run.directory / "summary.json").is_file(),
            }
            for seed, run in self.arms[arm].items()
        ]
        return {"label": shown(arm), "short": shown(short_labels(list(self.arms))[arm]), "runs": runs}

    def sides(self, seed: int) -> dict[str, Any]:
        """The problems that the runs of one seed met, those on which the arms differ most first, and where to find the
        solutions of each."""
        met: dict[str, dict[str, dict[str, Any]]] = {}
        reading = 0
        for arm, seeds in self.arms.items():
            if seed in seeds:
                run = seeds[seed]
                reading += run.rollouts.steps() - run.rollouts.read_steps()
                for problem, found in _groups(run).items():
                    met.setdefault(problem, {})[arm] = {**found, "run": self._numbers.get(run.directory)}
        least = min(2, sum(seed in seeds for seeds in self.arms.values()))
        shared: list[dict[str, Any]] = [
            {"problem": problem, "apart": _spread(arms), "arms": {shown(arm): found for arm, found in arms.items()}}
            for problem, arms in met.items()
            if len(arms) >= least
        ]
        shared.sort(key=lambda one: (-float(one["apart"]), str(one["problem"])))
        return {"seed": seed, "reading": reading, "all": len(shared), "problems": shared[:MOST_PROBLEMS]}


def _groups(run: Run) -> dict[str, dict[str, Any]]:
    """problem → its latest group of a run: step, task, and of each member whether it is right and was called right."""
    step, task, member, role, right, said, at = (
        FIELDS.index(name) for name in ("step", "task", "member", "role", "right", "said", "problem")
    )
    rows, problems, _ = run.rollouts.known()
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row[step], row[task], row[member], row[role])):
        problem = problems[row[at]]
        held = found.get(problem)
        if held is None or (held["step"], held["task"]) != (row[step], row[task]):
            held = found[problem] = {"step": row[step], "task": row[task], "members": []}
        if not held["members"] or held["members"][-1][0] != row[member]:
            held["members"].append([row[member], row[right], row[said]])
    return found


def _spread(arms: Mapping[str, Mapping[str, Any]]) -> float:
    """How far the arms' shares of right solutions are apart."""
    shares = []
    for found in arms.values():
        graded = [right for _, right, _ in found["members"] if right is not None]
        shares += [sum(graded) / len(graded)] if graded else []
    return max(shares) - min(shares) if shares else 0.0


def compared(compare: Mapping[str, Any], runs: Runs) -> dict[str, Any]:
    """What compare.json says: sentences, tables of figures, tables of text."""
    whole = tabled(compare)
    rows, budgets = whole["table"], whole["budgets"]
    names = list(runs)
    cells = [
        _cells("At the start and at the end", "", headlines(whole)),
        _cells("What it cost", COSTS, costs(whole)),
        _cells("Alarms", ALARMS, alarms(whole), folded=True),
        *(_cells(f"Verdicts at the end: {title}", ON_VERDICTS, found) for title, found in _verdicts(rows)),
        _cells("Needed to reach a level", NEEDED, _needed(runs, budgets), folded=True),
        _cells("How it was run", "", settings(whole)),
        _cells("Learning rates", "Chosen on validation problems, with seeds that are not compared.", rates(whole)),
    ]
    return {
        "about": about(whole),
        "said": _said(rows),
        "figures": [
            _figures([row for row in rows if row["at"] == at], names, budgets, at)
            for at in ("end", *AXES)
            if any(row["at"] == at for row in rows)
        ],
        "cells": [found for found in cells if found["rows"]],
    }


def _cells(title: str, lead: str, cells: Cells, *, folded: bool = False) -> dict[str, Any]:
    head, rows = cells
    return {"title": title, "lead": lead, "head": head, "rows": rows, "folded": folded}


def _said(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What can be said of the headlines of the first role at the end."""
    wanted = [row for row in table if row["words"] and row["at"] == "end" and is_headline(row["metric"])]
    roles = roles_in({row["metric"] for row in table})
    first = wanted[0]["metric"].split("/")[0] if wanted else ""
    return [
        {
            "recipe": row["recipe"],
            "reference": row["reference"],
            "label": label_of(row["metric"], roles),
            "words": row["words"],
        }
        for row in wanted
        if row["metric"].startswith(f"{first}/")
    ]


def _figures(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], budgets: Mapping[str, float], at: str
) -> dict[str, Any]:
    roles = roles_in({row["metric"] for row in rows})
    groups = []
    for reference, group in by_figure(rows):
        values = [Estimate.of_json(row[side]).value for row in group for side in ("before", "after")]
        metric = group[0]["metric"]
        groups.append({
            "label": label_of(metric, roles),
            "against": "" if reference == names[0] else reference,
            "headline": is_headline(metric),
            "share": is_share(metric, roles, values),
            "rows": [{key: row[key] for key in ("recipe", "before", "after", "words")} for row in group],
        })  # fmt: skip
    title = f"Figures {budget_in_words(at, dict(budgets))}"
    return {"at": at, "title": title, "lead": END if at == "end" else ON_CURVES, "groups": groups}


def _needed(runs: Runs, budgets: Mapping[str, float]) -> Cells:
    rows = []
    for axis in AXES:
        for level in levels(runs, axis, budgets.get(axis, math.nan)):
            name = f", {level.name}" if level.name else ""
            what = f"{UNITS[axis]} to {number(level.value, share=True)}{name}"
            rows += [[what, r.recipe, r.words(), r.against()] for r in level.reached]
    return ["level", "recipe", "needed", "against the reference"], rows


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Cells]]:
    found = []
    for title, recipes in verdict_table(rows).items():
        metrics = [m for m in VERDICTS if any(m in figures for figures in recipes.values())]
        lines = [
            [name, *(_estimate(figures[m]) if m in figures else "–" for m in metrics)]
            for name, figures in recipes.items()
        ]
        found.append((title, (["recipe", *(meaning(m).label for m in metrics)], lines)))
    return found


def _estimate(e: Estimate) -> str:
    if math.isnan(e.value):
        return "–"
    spread = f" ({interval(e, share=True)})" if math.isfinite(e.low) else ""
    return f"{number(e.value, share=True)}{spread}"


def unlike_settings(arms: Mapping[str, Sequence[Run]]) -> Cells:
    """The settings in which the arms' first runs differ, one row each."""
    found = {
        arm: {name: word(value) for name, value in flat(shown(runs[0].recipe.get("settings", {}))).items()}
        for arm, runs in arms.items()
        if runs
    }
    names = sorted({name for own in found.values() for name in own} - {"seed"})
    rows = [
        [name, *(own.get(name, "–") for own in found.values())]
        for name in names
        if len({own.get(name) for own in found.values()}) > 1
    ]
    return ["setting", *map(shown, found)], rows[:MOST_SETTINGS]


def study_of(place: Place, made: Callable[[Place], Together]) -> dict[str, Any]:
    """The study in a directory, with those of its parts that there are. Raises KeyError, TypeError for a damaged
    study.json."""
    study, note = object_of(place.path / "study.json")
    if note:
        raise RunDirectoryError(f"{place.path}: {note}")
    found = {}
    for name, part in study["parts"].items():
        path = (place.path / str(part["page"])).parent
        comparison = comparison_at(path, name) if path.parent == place.path else None
        if comparison is not None:
            found[name] = made(comparison).document()
    return study_document(study, found)


def folder_row(place: Place) -> dict[str, Any]:
    """One line of the list of a folder, from the files that are read at once."""
    runs = [place.path] if place.kind == "run" else [run for seeds in place.arms.values() for run in seeds.values()]
    recipe, _ = object_of(place.path / RECIPE) if place.kind == "run" else ({}, "")
    summary, _ = object_of(place.path / "summary.json") if place.kind == "run" else ({}, "")
    roles = sorted(roles_in(set(estimates(summary.get("after")))))
    measured = figures(estimates(summary.get("before")), summary, roles)
    wanted = (one for one in measured if one["name"] == "pass@1" and not one["split"] and one["after"])
    return {
        "name": place.name,
        "kind": place.kind,
        "title": shown(place.title or str(recipe.get("name") or "")),
        "seed": recipe.get("seed"),
        "planned": recipe.get("steps"),
        "runs": len(runs),
        "ended": sum((run / "summary.json").is_file() for run in runs),
        "figure": next(wanted, None),
    }


def study_document(study: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A study, with its parts as comparisons."""
    cells = [
        _cells(f"{study['measure']}, start → end", "On test problems.", study_words.figures(study)),
        _cells("Verdicts", "Each arm against the first one of its part.", study_words.verdicts(study)),
        _cells("What it cost", "Means over seeds.", study_words.costs(study)),
        _cells("Alarms", ALARMS, study_words.alarms(study), folded=True),
    ]
    return {
        "kind": "study",
        "name": study["study"],
        "title": study["hypothesis"],
        "standing": study_words.standing(study),
        "cells": [found for found in cells if found["rows"]],
        "parts": [{"name": name, "document": document} for name, document in parts.items()],
    }
