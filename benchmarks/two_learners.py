"""Two equal updates of two policies, each in a process of its own: one after the other, and beside each other.

    python benchmarks/two_learners.py                         two copies of a model of 1M weights, on two cores
    python benchmarks/two_learners.py --size 5M --rounds 9

Both ways go through the same processes of Ray, one thread each, in turn within every round; ``ratio`` is the time of
one after the other over that beside each other, the median over rounds. ``ceiling`` is the same of a plain loop in the
same processes, in the same rounds: what the machine gives to two processes just then, 2 where two cores do nothing
else. Each process is in a session of its own, to each of which a busy Linux gives an equal share. ``by_cpu`` does not
hang on other work: the CPU seconds of both processes and of the one that asks, over those of the longer way through
them, (a + b + c) / (max(a, b) + c), which is what two free cores come to.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from ray_step import model

from cotrain.algorithms.contract import LossTerm, Sample
from cotrain.algorithms.grpo import GRPO
from cotrain.config.policies import trainable
from cotrain.core.signals import OUTCOME
from cotrain.distributed.cluster_file import Cluster
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.distributed.ray_processes import RayLauncher, RayProcess
from cotrain.distributed.remote_policies import LearnerHost
from cotrain.trainer.async_rollouts import run_beside

POLICIES = ("generator", "verifier")
LOOP = 10_000_000  # turns of the plain loop


class SpinningLearners(LearnerHost):
    """Learners in a session of their own, that can do nothing for a while too."""

    def __init__(self, *settings: Any) -> None:
        with suppress(PermissionError):  # it leads one already
            os.setsid()
        super().__init__(*settings)
        self.spent = 0.0  # CPU seconds of what was asked

    def update(self, policy: str, terms: Any) -> Any:
        began = time.process_time()
        answer = super().update(policy, terms)
        self.spent += time.process_time() - began
        return answer

    def take_spent(self) -> float:
        spent, self.spent = self.spent, 0.0
        return spent

    def spin(self) -> int:
        return sum(range(LOOP)) + sum(1 for _ in range(LOOP // 10))


class SpinningLauncher(RayLauncher):
    """Keeps the processes, to ask them for the plain loop."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.learners: list[RayProcess] = []

    def begin(self, what: str, host: type, settings: tuple[Any, ...]) -> RayProcess:
        process = super().begin(what, SpinningLearners if host is LearnerHost else host, settings)
        if host is LearnerHost:
            self.learners.append(process)
        return process


def term_of(samples: int, prompt: int, length: int) -> LossTerm:
    """A batch like any other: what is in it takes no time."""
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 60, (samples, prompt + length), generator=draws).tolist()
    batch = tuple(
        Sample(
            key=str(number),
            prompt_ids=tuple(row[:prompt]),
            token_ids=tuple(row[prompt:]),
            sampler_logprobs=torch.full((length,), -3.0),
            advantages=torch.ones(length) * (1.0 if number % 2 else -1.0),
        )
        for number, row in enumerate(ids)
    )
    return LossTerm(name="update", algorithm=GRPO(reward_weights={OUTCOME: 1.0}), samples=batch)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(size: str, rounds: int, samples: int) -> dict[str, object]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        start = str(model(size, Path(folder) / "model"))
        launcher = SpinningLauncher(Cluster(cpus=2, object_store_mb=200))
        backend = MultiProcessBackend(launcher, worlds=dict.fromkeys(POLICIES, 1))
        handles = backend.open({name: trainable(start, lr=1e-6) for name in POLICIES}, seed=0)
        try:
            terms = [term_of(samples, prompt=32, length=96)]
            updates = [partial(handles[name].update, terms) for name in POLICIES]
            for update in updates:
                update()  # the first one makes moments
            spins = [partial(process.ask, "spin") for process in launcher.learners]
            ways = [partial(way, works) for works in (updates, spins) for way in (one_by_one, run_beside)]
            found, by_cpu = [], []
            for _ in range(rounds):
                for process in launcher.learners:
                    process.ask("take_spent")
                began = time.process_time()
                seconds = [seconds_of(way) for way in ways[:2]]
                asking = time.process_time() - began
                spent = [process.ask("take_spent") for process in launcher.learners]
                by_cpu.append((sum(spent) + asking) / (max(spent) + asking))
                found.append([*seconds, *map(seconds_of, ways[2:])])
        finally:
            asyncio.run(backend.close())
    ratios = [turns / beside for turns, beside, _, _ in found]
    ceilings = [turns / beside for _, _, turns, beside in found]
    return {
        "size": size,
        "one after the other": round(median(row[0] for row in found), 3),
        "beside each other": round(median(row[1] for row in found), 3),
        "ratio": round(median(ratios), 2),
        "ceiling": round(median(ceilings), 2),
        "by_cpu": round(median(by_cpu), 2),
        "ratios": [round(one, 2) for one in ratios],
        "ceilings": [round(one, 2) for one in ceilings],
    }


def one_by_one(updates: Sequence[Callable[[], object]]) -> None:
    for update in updates:
        update()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1M", help="of the model, see models.py")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=64)
    given = parser.parse_args()
    print(json.dumps(measure(given.size, given.rounds, given.samples), indent=2))


if __name__ == "__main__":
    main()
