"""``report.html`` of a comparison and of a study: the same page with their data inside.

The rollouts of one seed on the problems where the arms differ most travel with a comparison, at most ``MOST_BYTES``.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotrain.core.errors import RunDirectoryError
from cotrain.disk.files import replace_file
from cotrain.pages.detail import dumped
from cotrain.pages.follow import object_of
from cotrain.pages.page import page
from cotrain.pages.places import Place, comparison_at
from cotrain.pages.runs import Run, shown
from cotrain.pages.together import Together, study_document

MOST_BYTES = 2_000_000  # of the rollouts
PROBLEMS = 12  # of one seed, with their rollouts
MEMBERS = 3  # of a group
READ = 4_000  # episodes of a run, the latest


def write_comparison(directory: Path) -> Path:
    """Write ``report.html`` into the directory of a comparison and return its path. Raises RunDirectoryError,
    DiskError."""
    place = comparison_at(directory, directory.name)
    if place is None:
        raise RunDirectoryError(f"{directory} holds no comparison; give the directory of `cotrain compare`")
    return _written(directory, "cotrain comparison", comparison_documents(place))


def write_again(directory: Path) -> Path | None:
    """The page of a comparison or a study anew; None where the directory holds neither."""
    if (directory / "study.json").is_file():
        study, note = object_of(directory / "study.json")
        if note:
            raise RunDirectoryError(f"{directory}: {note}; restore it")
        return write_study(directory, study)
    return write_comparison(directory) if comparison_at(directory, "") is not None else None


def write_study(directory: Path, study: Mapping[str, Any]) -> Path:
    """The same for a study, whose parts are comparisons in folders below."""
    parts = {}
    for name, part in study["parts"].items():
        place = comparison_at((directory / part["page"]).parent, name)
        if place is not None:
            parts[name] = _together(place).document()
    return _written(directory, "cotrain study", {"together": dumped(study_document(study, parts))})


def comparison_documents(place: Place) -> dict[str, bytes]:
    """name → JSON of everything that the page of a comparison asks for."""
    together = _together(place)
    sides, details = _sides(together)
    return {"together": dumped(together.document()), "sides": dumped(sides), "details": dumped(details)}


def _together(place: Place) -> Together:
    arms = {arm: {seed: Run(path) for seed, path in seeds.items()} for arm, seeds in place.arms.items()}
    return Together(place, arms, {})


def _sides(together: Together) -> tuple[dict[str, Any], dict[str, Any]]:
    """The problems of the first seed, and the rollouts of some of them by ``ARM|STEP:TASK:MEMBER``."""
    seeds = sorted({seed for found in together.arms.values() for seed in found})
    if not seeds:
        return {"problems": [], "seed": None, "all": 0, "reading": 0}, {}
    arms = {arm: found[seeds[0]] for arm, found in together.arms.items() if seeds[0] in found}
    for run in arms.values():
        left = READ
        for member in reversed(run.rollouts.members()):
            if left <= 0:
                break
            run.rollouts.read([member.step])
            left -= member.episodes
    sides = together.sides(seeds[0])
    details: dict[str, Any] = {}
    size, kept = 0, []
    for one in sides["problems"][:PROBLEMS]:
        for place, arm in enumerate(together.arms):
            found = one["arms"].get(shown(arm))
            for member, *_ in found["members"][:MEMBERS] if found else ():
                rollout = arms[arm].rollout(found["step"], found["task"], member, tokens=0)
                size += len(dumped(rollout))
                details[f"{place}|{found['step']}:{found['task']}:{member}"] = rollout
        if size > MOST_BYTES:
            break
        kept.append(one)
    return sides | {"problems": kept, "reading": 0}, details


def _written(directory: Path, title: str, inside: Mapping[str, bytes]) -> Path:
    digest = hashlib.sha256(b"".join(inside.values())).digest()
    path = directory / "report.html"
    replace_file(path, page(title, base64.b64encode(digest[:18]).decode("ascii"), inside))
    return path
