"""The runs of a comparison: the command that makes one, and what is read back from its directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.analysis.comparison.arms import Arm
from cotrain.config.registry import find_recipe
from cotrain.runs import manifest
from cotrain.runs.directory import RunDirectory
from cotrain.runs.figures import costs_of
from cotrain.storage.jsonl import read_jsonl
from cotrain.trainer.flops import PARTS

ENDLESS = 10**6  # steps of a run that something else ends
COTRAIN = (sys.executable, "-m", "cotrain.cli.main")


def run_command(
    arm: Arm,
    folder: Path,
    *,
    seed: int,
    ends: Mapping[str, float],
    evaluate_every: int,
    overrides: Sequence[str],
    device: str,
    changed_code: bool = False,
    threads: int = 1,
    checkpoint_every: int = 25,
    tasks: str | None,
    data: str | None,
    operations: tuple[int, int] | None,
    lenient: bool,
) -> list[str]:
    """Begin a run, or go on with it. ``ends``: "steps", "horizon" and the budgets of a recipe."""
    if (folder / "recipe.json").exists():
        with_code = ["--changed-code"] if changed_code else []
        return [*COTRAIN, "resume", str(folder), f"--device={device}", *with_code]
    parameters = find_recipe(arm.target).parameters
    run_flags = {"seed": seed, "steps": int(ends["steps"]), "evaluate_every": evaluate_every}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in run_flags.items() if name in parameters]
    # A user's function need not have them as parameters.
    missing = [f"{name}={value}" for name, value in run_flags.items() if name not in parameters]
    budgets = [f"{name}={json.dumps(value)}" for name, value in ends.items() if name != "steps"]
    words = [*flags, f"--threads={threads}", f"--checkpoint-every={checkpoint_every}", f"--device={device}"]
    words += [f"--{name}={value}" for name, value in (("tasks", tasks), ("data", data)) if value is not None]
    words += ["--lenient"] if lenient else []
    words += ["--operations", *map(str, operations)] if operations else []
    words += [f"--set={setting}" for setting in (*overrides, *arm.overrides, *missing, *budgets)]
    return [*COTRAIN, "run", arm.target, "--out", str(folder), *arm.flags(), *words]


def is_done(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def end_figures_of(folder: Path) -> set[str]:
    """The names of the figures that a finished run has at its end."""
    summary: Any = RunDirectory(folder).read("summary.json")
    return set(summary["after"])


def collect_run(folder: Path, seed: int, policy: str) -> dict[str, Any]:
    """One run as a comparison reads it: its curve on validation problems with what had been spent, its costs, its
    figures on test problems before and after, its alarms, and what each of these problems says at the end. Raises
    RunDirectoryError where a file is not as the run wrote it."""
    directory = RunDirectory(folder)
    manifest.verify_files(directory)
    costs = costs_of(folder)
    curve = []
    parts = dict.fromkeys(PARTS, 0)
    for row in read_jsonl(folder / "metrics.jsonl"):
        if row.get("kind") == "evaluation":
            figures = {key.removeprefix("eval/"): value for key, value in row.items() if key.startswith("eval/")}
            curve.append({"spent": costs[int(row["step"]) + 1], "figures": figures})
        for part in PARTS:
            parts[part] += sum(value for key, value in row.items() if key.endswith(f"/flops/{part}"))

    summary: Any = directory.read("summary.json")
    alarms = []
    for alarm in summary.get("alarms", ()):
        alarms.append({"band": alarm["band"], "key": alarm["key"], "step": alarm["step"]})
    return {
        "seed": seed,
        "curve": curve,
        "spent": costs[-1],
        "flops": parts,
        "updates": summary.get("updates", {}).get(policy, 0),
        "before": {key: value["value"] for key, value in summary["before"].items()},
        "after": {key: value["value"] for key, value in summary["after"].items()},
        "alarms": alarms,
        "problems": directory.read("after_problems.json") or {},
    }
