"""A step of GRPO with a lag of one and without, in turn, both by Ray: the embedded base, 16 problems, 8 answers to
each, one thread a process.

    python benchmarks/lag.py

Both trainers stand beside each other and make the same steps; ratios are taken within each pair. The first step, which
plays twice with a lag, and the last, which plays nothing beside its update, are left out. *Least* is what the pair's
step without a lag says could be gained: the longer of play and the rest, over both.
"""

from __future__ import annotations

import statistics
import time

import torch

from cotrain.backend.cluster_file import Cluster
from cotrain.backend.multi_process import MultiProcessBackend
from cotrain.backend.on_ray import RayLauncher
from cotrain.methods.grpo import grpo
from cotrain.train.trainer import CoTrainer

STEPS = 6


def main() -> None:
    torch.set_num_threads(1)
    recipe = grpo(steps=STEPS, tasks_per_step=16, group_size=8)
    trainers = [
        CoTrainer(recipe, backend=MultiProcessBackend(RayLauncher(Cluster()), "cpu"), lag=lag) for lag in (0, 1)
    ]
    ratios, least = [], []
    for step in range(STEPS):
        seconds, plays = [], []
        for trainer in trainers:
            began = time.perf_counter()
            result = trainer.step()
            seconds.append(time.perf_counter() - began)
            plays.append(result.seconds["play"])
        if 0 < step < STEPS - 1:
            ratios.append(seconds[1] / seconds[0])
            least.append(max(plays[0], seconds[0] - plays[0]) / seconds[0])
            print(
                f"step {step}: lag 0 {seconds[0]:.2f} s ({plays[0]:.2f} s play), lag 1 {seconds[1]:.2f} s, "
                f"ratio {ratios[-1]:.2f}, least {least[-1]:.2f}",
                flush=True,
            )
    for trainer in reversed(trainers):  # the first has begun Ray
        trainer.close()
    print(f"median of {len(ratios)} pairs: ratio {statistics.median(ratios):.2f}, least {statistics.median(least):.2f}")


if __name__ == "__main__":
    main()
