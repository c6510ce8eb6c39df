"""Processor seconds of a step of the demo, on one thread: what somebody waits for who tries cotrain for the first time.

    python benchmarks/demo_step.py [--against COMMIT] [--steps 10] [--rounds 3]

The steps are those of the recipe ``demo`` as ``cotrain.run`` makes them, with what is written to disk: first some
in which the verifier learns, then both kinds in turn. The first step is not measured. Each kind has its median, and
``seconds`` weighs the two as the demo's own schedule does. Processor time is that of the whole process, so that other
work on the machine disturbs it little.

``--against COMMIT`` measures another commit in turn with the files that are here, each in a process of its own, and
says the ratio of the two within each pair. Where a step takes more than ``SLOWER`` times that commit's, a warning is
printed; the exit code stays 0, since a busy machine is no fault of the code.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KINDS = ("generator", "verifier")  # phases of the demo's schedule
SLOWER = 1.15  # times the other commit's seconds, from which on a warning is printed
ROOT = Path(__file__).resolve().parents[1]


class StepTimer:
    """An observer of a run: the processor seconds between two steps, by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._ended: float | None = None  # the step before

    def message(self, text: str) -> None: ...

    def update(self, row: Mapping[str, Any]) -> None:
        if "phase" not in row:
            return  # an evaluation
        now = time.process_time()
        if self._ended is not None:
            self.seconds[row["phase"]].append(now - self._ended)
        self._ended = now


def measure_steps(steps: int) -> dict[str, float]:
    """Median processor seconds of each kind of step, and of the demo's mean step."""
    import torch

    import cotrain
    from cotrain.config.registry import find_recipe

    torch.set_num_threads(1)
    demo = find_recipe("demo")
    whole = demo()
    verifier_alone = steps // 2
    timer = StepTimer()
    with tempfile.TemporaryDirectory() as folder:
        recipe = demo(steps=1 + steps, warmup=verifier_alone, evaluation_tasks=1)
        cotrain.run(recipe, Path(folder) / "run", device="cpu", observer=timer)
    medians = {kind: statistics.median(timer.seconds[kind]) for kind in KINDS}
    phases = [whole.schedule.phase_at(step).name for step in range(whole.steps)]
    seconds = sum(medians[phase] for phase in phases) / len(phases)
    return {"seconds": seconds, **medians}


def extract_commit(commit: str, folder: str) -> None:
    """The files of a commit. Raises SystemExit with one line where git does not know it."""
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"--against {commit}: {done.stderr.decode().strip()}; expected a commit of this repository")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def measure_tree(tree: str, steps: int) -> dict[str, float]:
    """``measure_steps`` in a process of its own, with the package that stands in ``tree``."""
    command = [sys.executable, __file__, "--steps", str(steps), "--json"]
    environment = {**os.environ, "PYTHONPATH": tree, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{tree}: the demo's steps ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare_commits(commit: str, steps: int, rounds: int) -> None:
    """Print the seconds of both, and the ratios of ``rounds`` pairs."""
    with tempfile.TemporaryDirectory() as folder:
        extract_commit(commit, folder)
        pairs = [(measure_tree(str(ROOT), steps), measure_tree(folder, steps)) for _ in range(rounds)]
    for name in ("seconds", *KINDS):
        here = [mine[name] for mine, _ in pairs]
        there = [other[name] for _, other in pairs]
        ratios = [b / a for a, b in zip(here, there, strict=True)]
        print(
            f"{name}: {statistics.median(here):.2f} s here, {statistics.median(there):.2f} s at {commit}, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {rounds} pairs)"
        )
    slowdown = statistics.median(mine["seconds"] / other["seconds"] for mine, other in pairs)
    if slowdown > SLOWER:
        print(f"warning: a step of the demo takes {slowdown:.2f} times as long as at {commit}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit too, in turn")
    parser.add_argument("--steps", type=int, default=10, help="steps that are measured, at least 4")
    parser.add_argument("--rounds", type=int, default=3, help="pairs, with --against")
    parser.add_argument("--json", action="store_true", help="one line of JSON, last")
    given = parser.parse_args()
    if given.steps < 4:
        parser.error(f"--steps {given.steps}; expected at least 4, so that both kinds of step are among them")
    if given.against:
        compare_commits(given.against, given.steps, given.rounds)
        return
    figures = measure_steps(given.steps)
    if given.json:
        print(json.dumps(figures))
        return
    print(", ".join(f"{name} {value:.2f} s" for name, value in figures.items()))


if __name__ == "__main__":
    main()
