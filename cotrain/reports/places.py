"""Finds what `cotrain view` can open in a folder: runs, comparisons, studies, and runs that differ in their seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotrain.core.errors import RunDirectoryError
from cotrain.core.verbosity import count_of
from cotrain.reports.compare_words import short_labels, slug_of
from cotrain.reports.follow import RECIPE, read_json_object

MOST_PLACES = 500  # places that a page lists
MAX_DEPTH = 3  # levels of folders below the one that was named


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPlace:
    """One thing that can be opened."""

    kind: str  # "run", "comparison", "study" or "seeds"
    path: Path
    name: str  # below the folder that was named
    title: str = ""
    arms: Mapping[str, Mapping[int, Path]] = field(default_factory=dict)  # for a comparison or seeds: arm → seed → run


def find_places(root: Path) -> list[ViewPlace]:
    """Studies and comparisons, then groups of runs with several seeds, then all runs. Raises RunDirectoryError when the
    folder holds no run."""
    if not root.is_dir():
        raise RunDirectoryError(
            f"no run directory at {root}; give the directory that `cotrain run` printed", code="E_NO_RUN_DIRECTORY"
        )
    studies = []
    comparisons = []
    runs = []
    for path in _walk_folders(root):
        name = str(path.relative_to(root)) if path != root else path.resolve().name
        if (path / "study.json").is_file():
            studies.append(ViewPlace(kind="study", path=path, name=name, title=name))
            continue
        comparison = comparison_at(path, name)
        if comparison is not None:
            comparisons.append(comparison)
        elif (path / RECIPE).is_file():
            runs.append(ViewPlace(kind="run", path=path, name=name))

    if not studies and not comparisons and not runs:
        raise RunDirectoryError(
            f"{root} holds no run (no {RECIPE} in it or {MAX_DEPTH} folders below it)", code="E_NO_RUN_BELOW"
        )
    compared: set[Path] = set()
    for place in comparisons:
        for seeds in place.arms.values():
            compared.update(seeds.values())
    other_runs = [run for run in runs if run.path not in compared]
    return [*studies, *comparisons, *_seed_groups(other_runs), *runs]


def _walk_folders(root: Path) -> Iterator[Path]:
    """The folder and those below it, level by level, without the folders in a run."""
    yield root
    level = [root]
    for _ in range(MAX_DEPTH):
        next_level = []
        for parent in level:
            try:
                next_level += _folders_in(parent)
            except OSError as error:
                raise RunDirectoryError(
                    f"{root}: {error.strerror}; choose another folder", code="E_FOLDER_UNREADABLE"
                ) from None
        yield from next_level
        level = next_level


def _folders_in(parent: Path) -> list[Path]:
    """The folders in a folder, without hidden ones; [] for a run."""
    if (parent / RECIPE).is_file():
        return []
    return [child for child in sorted(parent.iterdir()) if child.is_dir() and not child.name.startswith(".")]


def comparison_at(path: Path, name: str) -> ViewPlace | None:
    """The comparison in a directory, finished or not; None where there is none."""
    compare_json, _ = read_json_object(path / "compare.json")
    settings_json, _ = read_json_object(path / "settings.json")
    recipes = compare_json.get("recipes")
    labels = list(recipes) if isinstance(recipes, dict) else settings_json.get("arms")
    is_comparison = bool(compare_json) or "equal" in settings_json  # finished, or begun
    if not isinstance(labels, list) or not is_comparison:
        return None
    labels = [str(label) for label in labels if slug_of(str(label)).strip(".")]  # no folder is called "" or ".."
    short = short_labels(labels)
    title = f"{short[labels[1]]} against {short[labels[0]]}" if len(labels) == 2 else f"{len(labels)} arms"
    arms = {label: _runs_by_seed(path / slug_of(label)) for label in labels}
    return ViewPlace(kind="comparison", path=path, name=name, title=title, arms=arms)


def _runs_by_seed(folder: Path) -> dict[int, Path]:
    runs = {}
    try:
        folders = list(folder.glob("seed-*"))
    except OSError:  # a name that no folder can have
        folders = []
    for path in folders:
        seed = path.name.removeprefix("seed-")
        is_number = seed.isascii() and seed.isdigit() and len(seed) < 10  # int() is slow on a very long name
        if is_number and (path / "metrics.jsonl").is_file():
            runs[int(seed)] = path
    return dict(sorted(runs.items()))


def _seed_groups(runs: list[ViewPlace]) -> list[ViewPlace]:
    """A place for each set of two or more runs that differ in nothing but the seed."""
    groups: dict[str, dict[int, Path]] = {}
    titles: dict[str, str] = {}
    for run in runs:
        recipe, _ = read_json_object(run.path / RECIPE)
        seed = recipe.get("seed")
        if isinstance(seed, int) and seed >= 0:
            key = json.dumps(
                [recipe.get("name"), recipe.get("steps"), _without_seed(recipe.get("settings"))], sort_keys=True
            )
            groups.setdefault(key, {}).setdefault(seed, run.path)
            titles[key] = str(recipe.get("name") or "runs")

    places = []
    for key, seeds in groups.items():
        if len(seeds) > 1:
            paths = dict(sorted(seeds.items()))
            parent = next(iter(paths.values())).parent
            title = f"{titles[key]}, {count_of(len(paths), 'seed')}"
            places.append(
                ViewPlace(
                    kind="seeds", path=parent, name=f"{parent.name}: {title}", title=title, arms={titles[key]: paths}
                )
            )
    return places


def _without_seed(settings: Any) -> Any:
    return {key: value for key, value in settings.items() if key != "seed"} if isinstance(settings, dict) else settings
