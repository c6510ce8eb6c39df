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

# The rollouts in the page, of one seed:
MOST_BYTES = 2_000_000
MOST_PROBLEMS = 12
MOST_MEMBERS = 3  # rollouts of a problem in an arm
EPISODES_READ = 4_000  # the latest episodes of each run, among which they are looked for


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
    """Write ``report.html`` of a study, whose parts are comparisons in folders below, and return its path."""
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
    """The problems of the first seed, and rollouts of some of them by ``ARM|STEP:TASK:MEMBER``, with ARM the index of
    the arm."""
    seeds = sorted({seed for group in together.arms.values() for seed in group})
    if not seeds:
        return {"problems": [], "seed": None, "all": 0, "reading": 0}, {}  # as ``shared_problems`` has them
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
    problems_in_page = []
    for problem in sides["problems"][:MOST_PROBLEMS]:
        for arm_index, arm in enumerate(together.arms):
            group = problem["arms"].get(redact_texts(arm))
            if group is None:
                continue
            for member, *_ in group["members"][:MOST_MEMBERS]:
                rollout = arms[arm].rollout(group["step"], group["task"], member, tokens=0)
                size += len(dump_json(rollout))
                details[f"{arm_index}|{group['step']}:{group['task']}:{member}"] = rollout
        if size > MOST_BYTES:
            break
        problems_in_page.append(problem)
    return sides | {"problems": problems_in_page, "reading": 0}, details
