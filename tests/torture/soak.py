"""A long run of small steps: memory, open files and threads must stay where they were.

    python -m tests.torture.soak --steps 100000 --out runs/torture/soak

One process trains the tiny model of the tests, one problem with two short answers a step, and notes every hundred steps
what it holds: resident memory, blocks of Python's allocator, file descriptors, threads. Blocks tell what is kept from
what the allocator of tensors leaves between pieces. Where the script is stopped (Ctrl-C, a kill), the next call
resumes the run. The slope is a straight line through the samples of the longest uninterrupted part, its first tenth
left out, in which caches fill. Of what grows on purpose the run holds 20 bytes a step: the index of its ledger.

Left out: GPUs, whose memory is not looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from cotrain.config.recipe import Recipe
from cotrain.config.schedule import constant_schedule
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Task
from cotrain.recipes.grpo import grpo
from cotrain.rollout.runner import Roles
from cotrain.runs import run as loop
from cotrain.trainer.failures import Interrupted
from tests.helpers import EASY, TINY

ROOT = Path(__file__).resolve().parents[2]
EVERY = 100  # steps between two samples
TOKENS = 6  # of an answer
SHORT = 1000  # steps; of fewer nothing is said about memory


@gives(OUTCOME.to("solver"))
async def odd(task: Task, roles: Roles) -> None:
    """Pays for an odd sum of tokens, so that most groups have a spread and most steps learn."""
    solution = await roles.solver(problem=task.prompt)
    solution.reward(OUTCOME, float(sum(solution.completion.token_ids) % 2))


def recipe(steps: int) -> Recipe:
    made = grpo(
        steps=steps, tasks=EASY, kl=0.0, model=TINY, tasks_per_step=1, group_size=2, evaluation_tasks=1, lr=1e-6
    )
    solver = made.roles["solver"]
    solver = replace(solver, sampling=replace(solver.sampling, max_tokens=TOKENS, temperature=2.0))
    short = replace(made.evaluation, group_size=1, greedy=False, frozen_roles={}, splits=())
    schedule = constant_schedule(odd, "generator", name="generator")
    return replace(made, roles={"solver": solver}, schedule=schedule, evaluation=short)


class Watch:
    """Notes what the process holds. An observer of the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._updates = 0

    def message(self, text: str) -> None:
        print(text, flush=True)

    def update(self, row: Mapping[str, Any]) -> None:
        if row["step"] % EVERY:
            return
        held = {"step": row["step"], "process": os.getpid(), "time": round(time.time(), 1), **holds()}
        held["updates"] = row.get("generator/updates", 0)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(held) + "\n")


def holds() -> dict[str, float]:
    """Resident memory in MB, blocks of Python's allocator, file descriptors, threads of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 3),
        "blocks": sys.getallocatedblocks(),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line."""
    count = len(points)
    x0, y0 = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    below = sum((x - x0) ** 2 for x, _ in points)
    return sum((x - x0) * (y - y0) for x, y in points) / below if below else 0.0


def told(path: Path) -> tuple[str, bool]:
    """What the samples say, and whether it is flat: below 1 MB an hour and 10,000 steps alike, no more files or
    threads."""
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    parts: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        parts.setdefault(sample["process"], []).append(sample)
    part = max(parts.values(), key=len)
    part = part[len(part) // 10 :]
    by_step = slope([(s["step"], s["rss"]) for s in part]) * 10_000
    by_hour = slope([(s["time"], s["rss"]) for s in part]) * 3600
    blocks = slope([(s["step"], s.get("blocks", 0)) for s in part])
    files, threads = ([s[name] for s in part] for name in ("files", "threads"))
    first, last = part[0], part[-1]
    text = "\n".join(
        [
            "| steps | updates | processes | steps of the part looked at | RSS, first → last (MB) | MB per 10,000 "
            "steps | MB an hour | blocks a step | files | threads |",
            "|---|---|---|---|---|---|---|---|---|---|",
            f"| {samples[-1]['step']} | {samples[-1]['updates']} | {len(parts)} | {last['step'] - first['step']} "
            f"| {first['rss']:.1f} → {last['rss']:.1f} | {by_step:.2f} | {by_hour:.2f} | {blocks:.2f} "
            f"| {min(files)}–{max(files)} | {min(threads)}–{max(threads)} |",
        ]
    )
    flat = min(by_hour, by_step) < 1.0
    if last["step"] - first["step"] < SHORT:
        text, flat = f"{text}\nfewer than {SHORT} steps: resident memory is not judged, as caches still fill", True
    return text, files[-1] <= files[0] and threads[-1] <= threads[0] and flat


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "torture" / "soak")
    parser.add_argument("--told", action="store_true", help="only the table of what was noted so far")
    given = parser.parse_args(argv)
    samples = given.out.with_suffix(".jsonl")
    if not given.told:
        torch.set_num_threads(1)
        samples.parent.mkdir(parents=True, exist_ok=True)
        made, watch = recipe(given.steps), Watch(samples)
        try:
            if (given.out / "recipe.json").exists():
                loop.resume_run(made, given.out, observer=watch)
            else:
                loop.start_run(made, given.out, checkpoint_every=1000, observer=watch)
        except Interrupted:
            pass
    table, flat = told(samples)
    print(table)
    return 0 if flat else 1


if __name__ == "__main__":
    raise SystemExit(main())
