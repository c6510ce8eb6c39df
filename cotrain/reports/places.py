"""Finds the contents of a folder: runs, comparisons, studies, and the runs of one recipe over seeds."""

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

MOST_PLACES = 500  # that are shown together
MAX_DEPTH = 3  # folders below the one that was named


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPlace:
    """One thing that can be opened."""

    kind: str  # "run", "comparison", "study" or "seeds"
    path: Path
    name: str  # below the folder that was named
    title: str = ""
    arms: Mapping[str, Mapping[int, Path]] = field(default_factory=dict)  # for a comparison or seeds: arm → seed → run


def find_places(root: Path) -> list[ViewPlace]:
    """Studies and comparisons first, then recipes with several seeds, then runs. Raises RunDirectoryError when the
    folder holds none of them."""
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
    return [*studies, *comparisons, *_seed_groups([run for run in runs if run.path not in compared]), *runs]


def _walk_folders(root: Path) -> Iterator[Path]:
    """The folder and those below it; what is inside of a run is left out."""
    level = [root]
    for deep in range(MAX_DEPTH + 1):
        yield from level
        if deep < MAX_DEPTH:
            try:
                level = [folder for parent in level for folder in _folders_in(parent)]
            except OSError as error:
                raise RunDirectoryError(
                    f"{root}: {error.strerror}; choose another folder", code="E_FOLDER_UNREADABLE"
                ) from None


def _folders_in(parent: Path) -> list[Path]:
    """The folders in a folder, without hidden ones; none for a run."""
    if (parent / RECIPE).is_file():
        return []
    return [child for child in sorted(parent.iterdir()) if child.is_dir() and not child.name.startswith(".")]


def comparison_at(path: Path, name: str) -> ViewPlace | None:
    """The comparison in a directory, finished or not; None where there is none."""
    compare_json, _ = read_json_object(path / "compare.json")
    settings_json, _ = read_json_object(path / "settings.json")
    recipes = compare_json.get("recipes")
    labels = list(recipes) if isinstance(recipes, dict) else settings_json.get("arms")
    if not isinstance(labels, list) or ("equal" not in settings_json and not compare_json):
        return None
    labels = [str(label) for label in labels if slug_of(str(label)).strip(".")]
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
        if seed.isascii() and seed.isdigit() and len(seed) < 10 and (path / "metrics.jsonl").is_file():
            runs[int(seed)] = path
    return dict(sorted(runs.items()))


def _seed_groups(runs: list[ViewPlace]) -> list[ViewPlace]:
    """Runs that differ in nothing but the seed, together; alone they are runs only."""
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
