"""A step of GRPO with the learners in one process, on two ranks and on four, in turn, all by Ray: 8 problems, 8 answers
to each, one thread a process.

    python benchmarks/ranks_step.py                              # the shipped base
    python benchmarks/ranks_step.py --size 25M --problems 2      # random weights of that size

All trainers stand beside each other and make the same steps; ratios are taken within each round, of the whole step and
of its update, to those of one process. Left out: the start, and models that do not fit one process, for which ranks are
made.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from models import REAL_SIZES, SIZES
from ray_step import recipe_of

from cotrain.config.edits import with_policies
from cotrain.distributed.cluster_file import Cluster
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.distributed.ray_processes import RayLauncher
from cotrain.trainer.trainer import CoTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description="A step of GRPO with learners on one, two and four ranks, in turn.")
    parser.add_argument("--size", default="shipped", choices=["shipped", *SIZES, *REAL_SIZES])
    parser.add_argument("--problems", type=int, default=8, help="a step (default: 8)")
    parser.add_argument("--steps", type=int, default=4, help="rounds (default: 4)")
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4], help="ranks (default: 1 2 4)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        made = recipe_of(given.size, given.problems, 8, given.steps, Path(folder))
        recipe = with_policies(made, ["generator"], micro_tokens=512)
        trainers = [
            CoTrainer(recipe, backend=MultiProcessBackend(RayLauncher(Cluster()), "cpu", world=world))
            for world in given.worlds
        ]
        for step in range(given.steps):
            told = []
            for world, trainer in zip(given.worlds, trainers, strict=True):
                began = time.perf_counter()
                update = trainer.step().seconds["update"]
                told.append((world, time.perf_counter() - began, update))
            _, whole, alone = told[0]
            print(
                f"step {step}: "
                + "; ".join(
                    f"{world} ranks {seconds:.2f} s ({update:.2f} s update), ratios {seconds / whole:.2f} and "
                    f"{update / alone:.2f}"
                    for world, seconds, update in told
                ),
                flush=True,
            )
        for trainer in reversed(trainers):  # the first has begun Ray
            trainer.close()


if __name__ == "__main__":
    main()
