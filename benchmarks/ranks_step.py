"""A step of GRPO with the learners in one process and on two ranks, in turn, both by Ray: the embedded base, 8
problems, 8 answers to each, one thread a process.

    python benchmarks/ranks_step.py

Both trainers stand beside each other and make the same steps; ratios are taken within each pair, of the whole step and
of its update. Left out: the start, and models that do not fit one process, for which ranks are made.
"""

from __future__ import annotations

import time

import torch

from cotrain.backend.cluster_file import Cluster
from cotrain.backend.on_ray import Ray
from cotrain.backend.several import Several
from cotrain.loop.override import override
from cotrain.loop.trainer import CoTrainer
from cotrain.recipes.grpo import grpo

STEPS = 4


def main() -> None:
    torch.set_num_threads(1)
    recipe = override(grpo(steps=STEPS, tasks_per_step=8, group_size=8), ["policies.generator.micro_tokens=512"])
    trainers = [CoTrainer(recipe, backend=Several(Ray(Cluster()), "cpu", world=world)) for world in (1, 2)]
    for step in range(STEPS):
        seconds, updates = [], []
        for trainer in trainers:
            began = time.perf_counter()
            result = trainer.step()
            seconds.append(time.perf_counter() - began)
            updates.append(result.seconds["update"])
        print(
            f"step {step}: one process {seconds[0]:.2f} s ({updates[0]:.2f} s update), two ranks {seconds[1]:.2f} s "
            f"({updates[1]:.2f} s), ratios {seconds[1] / seconds[0]:.2f} and {updates[1] / updates[0]:.2f}",
            flush=True,
        )
    for trainer in trainers:
        trainer.close()


if __name__ == "__main__":
    main()
