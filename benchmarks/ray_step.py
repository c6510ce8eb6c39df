"""A step of GRPO in one process and by Ray, in turn; and what moving weights costs there.

    python benchmarks/ray_step.py                                # the shipped base, 32 problems × 8 answers
    python benchmarks/ray_step.py --size 25M --problems 4        # random weights of that size

Both trainers stand beside each other and make the same steps on one thread; the ratio is taken within each pair. Random
weights solve nothing, so answers are paid by chance there, and all are as long as the limit. *Publishing* hands the
generator's weights from the learners to the engine; *saving* takes all of the run's state (weights, optimiser) and
writes a checkpoint. Left out: the start.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from floors import Shape
from models import REAL_SIZES, SIZES

from cotrain import OUTCOME, Recipe, Roles, Task, gives, rng_of
from cotrain.config.edits import with_sampling
from cotrain.distributed.cluster_file import Cluster
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.distributed.ray_processes import RayLauncher
from cotrain.models.from_scratch import new_model, small_config
from cotrain.models.load import load_tokenizer, save_model
from cotrain.recipes.grpo import grpo
from cotrain.storage import checkpoints
from cotrain.trainer.trainer import CoTrainer

MOVES = 5  # measurements of publishing and of saving


@gives(OUTCOME.to("solver"))
async def paid_by_chance(task: Task, roles: Roles) -> None:
    solution = await roles.solver(problem=task.prompt)
    solution.reward(OUTCOME, float(rng_of("chance", task.id, solution.id).random() < 0.5))


def model(size: str, directory: Path) -> Path:
    """Random weights of a size behind the shipped base's tokenizer."""
    shape: Shape = (SIZES | REAL_SIZES)[size]
    words = load_tokenizer("shipped")
    assert words.pad_token_id is not None and words.eos_token_id is not None
    config = small_config(
        max(len(words), shape.vocabulary),
        depth=shape.depth,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        feed_forward=shape.feed_forward,
        pad_id=words.pad_token_id,
        eos_id=words.eos_token_id,
    )
    save_model(new_model(config, seed=0), words, directory)
    return directory


def recipe_of(size: str, problems: int, answers: int, steps: int, folder: Path) -> Recipe:
    kind = {"steps": steps, "tasks_per_step": problems, "group_size": answers}
    if size == "shipped":
        return grpo(**kind)
    made = with_sampling(grpo(model=str(model(size, folder / "model")), **kind), ["solver"], max_tokens=128)
    phases = tuple(replace(phase, protocol=paid_by_chance) for phase in made.schedule.phases)
    return replace(made, schedule=replace(made.schedule, phases=phases))


def seconds_of(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def told(what: str, seconds: list[float], size: int) -> None:
    middle = statistics.median(seconds)
    listed = ", ".join(f"{s:.2f}" for s in seconds)
    print(
        f"{what}: {size / 1e6:.0f} MB in {middle:.2f} s (median of {listed}), {size / middle / 1e9:.2f} GB/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A step of GRPO in one process and by Ray, in turn.")
    parser.add_argument("--size", default="shipped", choices=["shipped", *SIZES, *REAL_SIZES])
    parser.add_argument("--problems", type=int, default=32, help="a step (default: 32)")
    parser.add_argument("--answers", type=int, default=8, help="of each problem (default: 8)")
    parser.add_argument("--steps", type=int, default=4, help="pairs (default: 4)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(given.size, given.problems, given.answers, given.steps, Path(folder))
        backends = (LocalBackend("cpu"), MultiProcessBackend(RayLauncher(Cluster()), "cpu"))
        trainers = [CoTrainer(recipe, backend=backend) for backend in backends]
        ratios = []
        for step in range(given.steps):
            alone, by_ray = (seconds_of(trainer.step) for trainer in trainers)
            ratios.append(by_ray / alone)
            print(f"step {step}: local {alone:.2f} s, Ray {by_ray:.2f} s, ratio {ratios[-1]:.2f}", flush=True)
        print(f"median of {len(ratios)} pairs: {statistics.median(ratios):.2f}")
        _, by_ray_trainer = trainers
        weights = sum(p.numel() * p.element_size() for _, p in trainers[0].policies["generator"].weights())
        handle = by_ray_trainer.policies["generator"]
        publish = [
            seconds_of(lambda: by_ray_trainer.backend.publish(handle.name, handle.version)) for _ in range(MOVES)
        ]
        told("publishing", publish, weights)
        for name, trainer in zip(("one process", "Ray"), trainers, strict=True):
            told(f"saving, {name}", *saving(trainer, Path(folder) / name))
        for trainer in trainers:
            trainer.close()


def saving(trainer: CoTrainer, folder: Path) -> tuple[list[float], int]:
    """Seconds of each of some checkpoints, and the bytes of one."""

    def save(at: int) -> None:
        checkpoints.save_checkpoint(folder, at, trainer.policies.checkpoint_parts(), {"state": trainer.state()})

    seconds = [seconds_of(partial(save, at)) for at in range(MOVES)]
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    return seconds, sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
