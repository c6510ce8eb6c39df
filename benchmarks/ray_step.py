"""A step of GRPO in one process and by Ray, in turn: the embedded base, 32 problems, 8 answers to each, one thread.

    python benchmarks/ray_step.py

Both trainers stand beside each other and make the same steps; the ratio is taken within each pair. Left out: the start.
"""

from __future__ import annotations

import time

import torch

from cotrain.backend.cluster_file import Cluster
from cotrain.backend.local import Local
from cotrain.backend.on_ray import Ray
from cotrain.backend.several import Several
from cotrain.loop.trainer import CoTrainer
from cotrain.recipes.grpo import grpo

STEPS = 4


def main() -> None:
    torch.set_num_threads(1)
    recipe = grpo(steps=STEPS, tasks_per_step=32, group_size=8)
    trainers = [CoTrainer(recipe, backend=backend) for backend in (Local("cpu"), Several(Ray(Cluster()), "cpu"))]
    for step in range(STEPS):
        seconds = []
        for trainer in trainers:
            began = time.perf_counter()
            trainer.step()
            seconds.append(time.perf_counter() - began)
        print(f"step {step}: local {seconds[0]:.2f} s, Ray {seconds[1]:.2f} s, ratio {seconds[1] / seconds[0]:.2f}")
    for trainer in trainers:
        trainer.close()


if __name__ == "__main__":
    main()
