"""Runs side by side, as a page shows them: a comparison, a study, or the seeds of one recipe.

Figures and words come from ``compare.json`` and ``study.json`` through ``compare_*.py``; curves of training,
progress and settings from the run directories, which may still be written. Nothing here decides what is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import RunDirectoryError
from cotrain.core.statistics import Estimate
from cotrain.reports import study_words
from cotrain.reports.bands import bands_of, is_training_headline, seed_runs_of
from cotrain.reports.compare_overview import (
    TextTable,
    about_sentences,
    alarm_cells,
    cost_cells,
    few_tested_words,
    headline_cells,
    needed_cells,
    rate_cells,
    setting_cells,
    verdict_cells,
)
from cotrain.reports.compare_table import (
    Runs,
    group_by_figure,
    is_headline,
    is_share,
    label_of,
    roles_in,
    runs_of,
    with_table,
)
from cotrain.reports.compare_words import AXES, budget_in_words, short_labels
from cotrain.reports.follow import RECIPE, read_json_object
from cotrain.reports.guide import parse_estimates
from cotrain.reports.places import ViewPlace, comparison_at
from cotrain.reports.rollouts import FIELDS
from cotrain.reports.runs import RunView, figure_rows, redact_texts
from cotrain.reports.settings import flatten_settings, value_text

MOST_SETTINGS = 120  # rows of the difference of settings
MOST_PROBLEMS = 300  # in the list of one seed
END_LEAD = (
    "On test problems, when each run had ended. Intervals (95\u202f%) are over seeds and problems, differences paired "
    "by seed and problem. A difference is significant when its p is below 0.021 with five seeds, 0.017 with "
    "six, 0.012 with ten."
)
CURVES_LEAD = (
    "Read off the curves on validation problems, where every run has spent as much: no verdicts. Intervals are over "
    "seeds."
)
COSTS_LEAD = (
    "Means over seeds. A batch counts whether or not something was learned from it, an update only when the weights "
    "moved. FLOPs are of all policies: prompts, sampled tokens, scoring passes and learning. Seconds are of one thread "
    "of the machine, with what ran beside."
)
NEEDED_LEAD = (
    "Where the mean curve on validation problems first passes the level, with the smallest and largest crossing of a "
    "single seed. The difference is paired by seed, and given only when every seed gets there."
)
VERDICTS_LEAD = "On test problems, means over seeds. An unreadable review counts as a wrong verdict."
ALARMS_LEAD = (
    "Health checks that fired in single runs, and the batches after which they first did. A recipe most of whose runs "
    "raised one may not have had a fair chance, or be no control: look at its runs."
)
Arms = Mapping[str, Mapping[int, RunView]]  # arm → seed → its run


class ComparedRuns:
    """Several runs that one page shows. ``numbers``: run directory → its number in the viewer."""

    def __init__(self, place: ViewPlace, arms: Arms, numbers: Mapping[Path, int]) -> None:
        self.place = place
        self.arms = arms
        self._numbers = numbers

    def stamp(self) -> list[float]:
        """Numbers of which one changes when there is something new to draw."""
        counts: list[float] = []
        for seeds in self.arms.values():
            for run in seeds.values():
                stamp = run.stamp()
                counts += [stamp[name] for name in ("steps", "evaluations", "ended", "recipe")]
        path = self.place.path / "compare.json"
        return [*counts, path.stat().st_mtime if path.is_file() else 0.0]

    def document(self) -> dict[str, Any]:
        """What the page shows, without rollouts."""
        for seeds in self.arms.values():
            for run in seeds.values():
                run.read_new()
        compare: dict[str, Any] = {}  # {}: seeds of one recipe, or a comparison that is still being made
        if self.place.kind == "comparison":
            compare, _ = read_json_object(self.place.path / "compare.json")
        curves = {}
        for arm, seeds in self.arms.items():
            curves[arm] = {seed: run.curves for seed, run in seeds.items()}
        held_out = runs_of(compare) if compare else seed_runs_of(curves, training=False)
        tables: dict[str, Any] = {"said": [], "figures": [], "cells": [], "about": []}
        if compare:
            tables = comparison_tables(compare, held_out)
        return {
            "kind": self.place.kind,
            "title": redact_texts(self.place.title),
            "name": self.place.name,
            "arms": [self._arm_progress(arm) for arm in self.arms],
            **tables,
            "held_out": bands_of(held_out, differences=bool(compare)),
            "training": bands_of(seed_runs_of(curves, training=True), differences=False, first=is_training_headline),
            "settings": differing_settings({arm: list(seeds.values()) for arm, seeds in self.arms.items()}),
        }

    def _arm_progress(self, arm: str) -> dict[str, Any]:
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
        return {"label": redact_texts(arm), "short": redact_texts(short_labels(list(self.arms))[arm]), "runs": runs}

    def shared_problems(self, seed: int) -> dict[str, Any]:
        """The problems that the runs of one seed met, those on which the arms differ most first, and where to find the
        solutions of each."""
        groups_by_problem: dict[str, dict[str, dict[str, Any]]] = {}
        reading = 0  # steps whose rollouts are still to be read
        runs = {arm: seeds[seed] for arm, seeds in self.arms.items() if seed in seeds}
        for arm, run in runs.items():
            reading += run.rollouts.step_count() - run.rollouts.read_step_count()
            for problem, group in _latest_groups(run).items():
                groups_by_problem.setdefault(problem, {})[arm] = {**group, "run": self._numbers.get(run.directory)}

        min_arms = min(2, len(runs))
        shared: list[dict[str, Any]] = []
        for problem, groups in groups_by_problem.items():
            if len(groups) >= min_arms:
                arms = {redact_texts(arm): group for arm, group in groups.items()}
                shared.append({"problem": problem, "apart": _share_range(groups), "arms": arms})
        shared.sort(key=lambda entry: (-float(entry["apart"]), str(entry["problem"])))
        return {"seed": seed, "reading": reading, "all": len(shared), "problems": shared[:MOST_PROBLEMS]}


def _latest_groups(run: RunView) -> dict[str, dict[str, Any]]:
    """problem → its latest group of a run: step, task, and of each member whether it is right and was called right."""
    table, problems, _ = run.rollouts.known_rows()
    rows = [dict(zip(FIELDS, row, strict=True)) for row in table]
    rows.sort(key=lambda row: (row["step"], row["task"], row["member"], row["role"]))
    groups: dict[str, dict[str, Any]] = {}
    for row in rows:
        problem = problems[row["problem"]]
        group = groups.get(problem)
        is_same_group = group is not None and (group["step"], group["task"]) == (row["step"], row["task"])
        if group is None or not is_same_group:
            group = groups[problem] = {"step": row["step"], "task": row["task"], "members": []}
        is_next_member = not group["members"] or group["members"][-1][0] != row["member"]
        if is_next_member:  # of a member with several rows, such as two roles, the first counts
            group["members"].append([row["member"], row["right"], row["said"]])
    return groups


def _share_range(arms: Mapping[str, Mapping[str, Any]]) -> float:
    """The largest minus the smallest share of right solutions among the arms."""
    shares = []
    for group in arms.values():
        graded = [right for _, right, _ in group["members"] if right is not None]
        if graded:
            shares.append(sum(graded) / len(graded))
    return max(shares) - min(shares) if shares else 0.0


def comparison_tables(compare: Mapping[str, Any], runs: Runs) -> dict[str, Any]:
    """Return compare.json for a page: sentences, tables of figures, tables of text."""
    with_rows = with_table(compare)
    rows = with_rows["table"]
    budgets = with_rows["budgets"]
    names = list(runs)
    cells = [
        _titled_table("At the start and at the end", "", headline_cells(with_rows)),
        _titled_table("What it cost", COSTS_LEAD, cost_cells(with_rows)),
        _titled_table("Alarms", ALARMS_LEAD, alarm_cells(with_rows), folded=True),
        *(_titled_table(f"Verdicts at the end: {title}", VERDICTS_LEAD, table) for title, table in verdict_cells(rows)),
        _titled_table("Needed to reach a level", NEEDED_LEAD, needed_cells(runs, budgets), folded=True),
        _titled_table("How it was run", "", setting_cells(with_rows)),
        _titled_table(
            "Learning rates", "Chosen on validation problems, with seeds that are not compared.", rate_cells(with_rows)
        ),
    ]
    figures = []
    for at in ("end", *AXES):
        rows_there = [row for row in rows if row["at"] == at]
        if rows_there:
            figures.append(_figure_table(rows_there, names, budgets, at))
    return {
        "about": about_sentences(with_rows),
        "said": _headline_sentences(rows, few_tested_words(with_rows)),
        "figures": figures,
        "cells": [table for table in cells if table["rows"]],
    }


def _titled_table(title: str, lead: str, cells: TextTable, *, folded: bool = False) -> dict[str, Any]:
    head, rows = cells
    return {"title": title, "lead": lead, "head": head, "rows": rows, "folded": folded}


def _headline_sentences(table: Sequence[Mapping[str, Any]], few: str) -> list[dict[str, Any]]:
    """The sentences on the headlines of the first role at the end. ``few``: a warning of too few problems, or ""."""
    headlines = [row for row in table if row["words"] and row["at"] == "end" and is_headline(row["metric"])]
    if not headlines:
        return []
    first_role = headlines[0]["metric"].split("/")[0]
    roles = roles_in({row["metric"] for row in table})
    sentences = []
    for row in headlines:
        if row["metric"].startswith(f"{first_role}/"):
            sentences.append(
                {
                    "recipe": row["recipe"],
                    "reference": row["reference"],
                    "label": label_of(row["metric"], roles),
                    "words": f"{few}; {row['words']}" if few else row["words"],
                }
            )
    return sentences


def _figure_table(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], budgets: Mapping[str, float], at: str
) -> dict[str, Any]:
    roles = roles_in({row["metric"] for row in rows})
    groups = []
    for reference, group in group_by_figure(rows):
        values = []
        table_rows = []
        for row in group:
            values.append(Estimate.from_json(row["before"]).value)
            values.append(Estimate.from_json(row["after"]).value)
            table_rows.append({key: row[key] for key in ("recipe", "before", "after", "words")})

        metric = group[0]["metric"]
        groups.append({
            "label": label_of(metric, roles),
            "against": "" if reference == names[0] else reference,
            "headline": is_headline(metric),
            "share": is_share(metric, roles, values),
            "rows": table_rows,
        })  # fmt: skip

    title = f"Figures {budget_in_words(at, dict(budgets))}"
    return {"at": at, "title": title, "lead": END_LEAD if at == "end" else CURVES_LEAD, "groups": groups}


def differing_settings(arms: Mapping[str, Sequence[RunView]]) -> TextTable:
    """The settings in which the arms' first runs differ, one row each."""
    settings_by_arm: dict[str, dict[str, str]] = {}
    for arm, runs in arms.items():
        if runs:
            settings = flatten_settings(redact_texts(runs[0].recipe.get("settings", {})))
            settings_by_arm[arm] = {name: value_text(value) for name, value in settings.items()}

    names = set[str]().union(*settings_by_arm.values()) - {"seed"}
    rows = []
    for name in sorted(names):
        texts = [own.get(name) for own in settings_by_arm.values()]
        if len(set(texts)) > 1:
            rows.append([name, *("–" if text is None else text for text in texts)])
    return ["setting", *map(redact_texts, settings_by_arm)], rows[:MOST_SETTINGS]


def open_study(place: ViewPlace, open_runs: Callable[[ViewPlace], ComparedRuns]) -> dict[str, Any]:
    """The study in a directory, with those of its parts that exist already. Raises KeyError, TypeError for a damaged
    study.json."""
    study, note = read_json_object(place.path / "study.json")
    if note:
        raise RunDirectoryError(f"{place.path}: {note}", code="E_RUN_DAMAGED")
    parts = {}
    for name, part in study["parts"].items():
        path = (place.path / str(part["page"])).parent
        comparison = comparison_at(path, name) if path.parent == place.path else None
        if comparison is not None:
            parts[name] = open_runs(comparison).document()
    return study_document(study, parts)


def folder_row(place: ViewPlace) -> dict[str, Any]:
    """What the list of a folder says of one place. Only small files are read for it."""
    recipe: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    if place.kind == "run":
        runs = [place.path]
        recipe, _ = read_json_object(place.path / RECIPE)
        summary, _ = read_json_object(place.path / "summary.json")
    else:
        runs = [run for seeds in place.arms.values() for run in seeds.values()]
    roles = sorted(roles_in(set(parse_estimates(summary.get("after")))))
    figures = figure_rows(parse_estimates(summary.get("before")), summary, roles)
    accuracies = [figure for figure in figures if figure["name"] == "pass@1" and not figure["split"]]
    return {
        "name": place.name,
        "kind": place.kind,
        "title": redact_texts(place.title or str(recipe.get("name") or "")),
        "seed": recipe.get("seed"),
        "planned": recipe.get("steps"),
        "runs": len(runs),
        "ended": sum((run / "summary.json").is_file() for run in runs),
        "figure": next((figure for figure in accuracies if figure["after"]), None),
    }


def study_document(study: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A study, with its parts as comparisons."""
    cells = [
        _titled_table(f"{study['measure']}, start → end", "On test problems.", study_words.study_figures(study)),
        _titled_table("Verdicts", "Each arm against the first one of its part.", study_words.study_verdicts(study)),
        _titled_table("What it cost", "Means over seeds.", study_words.study_costs(study)),
        _titled_table("Alarms", ALARMS_LEAD, study_words.study_alarms(study), folded=True),
    ]
    return {
        "kind": "study",
        "name": study["study"],
        "title": study["hypothesis"],
        "standing": study_words.standing_lines(study),
        "cells": [table for table in cells if table["rows"]],
        "parts": [{"name": name, "document": document} for name, document in parts.items()],
    }
