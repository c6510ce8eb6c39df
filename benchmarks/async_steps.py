"""A step of GRPO with a policy lag of one (``--async-steps 1``) and without, in turn, both by Ray: the shipped base, 16
problems, 8 answers to each, one thread a process.

    python benchmarks/async_steps.py [--quick]

Both trainers stand beside each other and make the same steps; ratios are taken within each pair. The first step, which
samples twice with a policy lag, and the last, which samples nothing beside its update, are left out. *Least* is what
the pair's step without a policy lag says could be gained: the longer of the rollouts and the rest, over both.
``--quick`` has 2 problems, 2 answers to each and three steps, to see that it runs."""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from cotrain.distributed.cluster_file import Cluster
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.distributed.ray_processes import RayLauncher
from cotrain.recipes.grpo import grpo
from cotrain.trainer.trainer import CoTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny; to see that it runs")
    quick = parser.parse_args().quick
    steps, problems, answers = (3, 2, 2) if quick else (6, 16, 8)
    torch.set_num_threads(1)
    recipe = grpo(steps=steps, tasks_per_step=problems, group_size=answers)
    trainers = [
        CoTrainer(recipe, backend=MultiProcessBackend(RayLauncher(Cluster()), "cpu"), async_steps=steps)
        for steps in (0, 1)
    ]
    ratios, least = [], []
    for step in range(steps):
        seconds, rollout_seconds = [], []
        for trainer in trainers:
            began = time.perf_counter()
            result = trainer.step()
            seconds.append(time.perf_counter() - began)
            rollout_seconds.append(result.seconds["rollout"])
        if 0 < step < steps - 1:
            ratios.append(seconds[1] / seconds[0])
            least.append(max(rollout_seconds[0], seconds[0] - rollout_seconds[0]) / seconds[0])
            print(
                f"step {step}: none {seconds[0]:.2f} s ({rollout_seconds[0]:.2f} s "
                f"rollouts), async_steps 1 {seconds[1]:.2f} s, ratio {ratios[-1]:.2f}, least {least[-1]:.2f}",
                flush=True,
            )
    for trainer in reversed(trainers):  # the first has begun Ray
        trainer.close()
    print(f"median of {len(ratios)} pairs: ratio {statistics.median(ratios):.2f}, least {statistics.median(least):.2f}")


if __name__ == "__main__":
    main()
