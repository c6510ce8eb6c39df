"""``report.html`` of a comparison and of a study: the same page with their data inside.

The rollouts of one seed on the problems where the arms differ most travel with a comparison, at most ``MOST_BYTES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotrain.core.errors import RunDirectoryError
from cotrain.reports.compared_runs import ComparedRuns, study_document
from cotrain.reports.detail import dump_json
from cotrain.reports.follow import read_json_object
from cotrain.reports.page import write_page
from cotrain.reports.places import ViewPlace, comparison_at
from cotrain.reports.runs import RunView, redact_texts

MOST_BYTES = 2_000_000  # most bytes of the rollouts
PROBLEMS = 12  # problems of one seed, with their rollouts
MEMBERS = 3  # members of a group
EPISODES_READ = 4_000  # episodes of a run, the latest


def write_comparison_page(directory: Path) -> Path:
    """Write ``report.html`` into the directory of a comparison and return its path. Raises RunDirectoryError,
    DiskError."""
    place = comparison_at(directory, directory.name)
    if place is None:
        raise RunDirectoryError(
            f"{directory} holds no comparison; give the directory of `cotrain compare`", code="E_NOT_COMPARISON"
        )
    return write_page(directory / "report.html", "cotrain comparison", comparison_documents(place))


def rewrite_page(directory: Path) -> Path | None:
    """The page of a comparison or a study anew; None where the directory holds neither."""
    if (directory / "study.json").is_file():
        study, note = read_json_object(directory / "study.json")
        if note:
            raise RunDirectoryError(f"{directory}: {note}; restore it", code="E_RUN_DAMAGED")
        return write_study_page(directory, study)
    return write_comparison_page(directory) if comparison_at(directory, "") is not None else None


def write_study_page(directory: Path, study: Mapping[str, Any]) -> Path:
    """The same for a study, whose parts are comparisons in folders below."""
    parts = {}
    for name, part in study["parts"].items():
        place = comparison_at((directory / part["page"]).parent, name)
        if place is not None:
            parts[name] = _open_comparison(place).document()
    return write_page(directory / "report.html", "cotrain study", {"together": dump_json(study_document(study, parts))})


def comparison_documents(place: ViewPlace) -> dict[str, bytes]:
    """name → JSON of everything that the page of a comparison asks for."""
    together = _open_comparison(place)
    sides, details = _problems_and_rollouts(together)
    return {"together": dump_json(together.document()), "sides": dump_json(sides), "details": dump_json(details)}


def _open_comparison(place: ViewPlace) -> ComparedRuns:
    arms = {}
    for arm, seeds in place.arms.items():
        arms[arm] = {seed: RunView(path) for seed, path in seeds.items()}
    return ComparedRuns(place, arms, {})


def _problems_and_rollouts(together: ComparedRuns) -> tuple[dict[str, Any], dict[str, Any]]:
    """The problems of the first seed, and the rollouts of some of them by ``ARM|STEP:TASK:MEMBER``."""
    seeds = sorted({seed for group in together.arms.values() for seed in group})
    if not seeds:
        return {"problems": [], "seed": None, "all": 0, "reading": 0}, {}
    arms = {arm: runs[seeds[0]] for arm, runs in together.arms.items() if seeds[0] in runs}
    for run in arms.values():
        episodes_left = EPISODES_READ
        for member in reversed(run.rollouts.members()):
            if episodes_left <= 0:
                break
            run.rollouts.load_steps([member.step])
            episodes_left -= member.episodes

    sides = together.shared_problems(seeds[0])
    details: dict[str, Any] = {}
    size = 0
    kept = []
    for problem in sides["problems"][:PROBLEMS]:
        for place, arm in enumerate(together.arms):
            side = problem["arms"].get(redact_texts(arm))
            if side is None:
                continue
            for member, *_ in side["members"][:MEMBERS]:
                rollout = arms[arm].rollout(side["step"], side["task"], member, tokens=0)
                size += len(dump_json(rollout))
                details[f"{place}|{side['step']}:{side['task']}:{member}"] = rollout
        if size > MOST_BYTES:
            break
        kept.append(problem)
    return sides | {"problems": kept, "reading": 0}, details
