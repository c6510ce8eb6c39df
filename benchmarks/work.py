"""The work that both sides of a comparison do: prompts, lengths of answers, reward; and how a side reports.

Runs in every environment: nothing of cotrain, trl or transformers is imported here. A side is a command that does the
work ``--warmup`` times unmeasured, then ``--steps`` times, and prints one line of JSON last.

Prompts are random ids, all of one length. Answers are ``new`` tokens long each ("fixed"), or drawn for every row of
every step ("drawn"): log-normal with mean ``new`` and a standard deviation of the logarithm of 0.5, cut at 2.5 · new,
as a limit on tokens cuts answers in training. A length is imposed and not sampled, so that both sides make as many
tokens. The reward is the mean id of an answer: cheap, and different for any two answers of a group.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cotrain.core.threads import usable_cores

VOCABULARY = 547  # of the shipped base; the benchmark's models of every size have it
PAD, STOP, FIRST = 0, 1, 2  # ids; words of prompts begin at FIRST
SPREAD, CUT = 0.5, 2.5  # of drawn lengths: standard deviation of the logarithm; longest over mean
LENGTHS = ("fixed", "drawn")
PACKAGES = ("torch", "transformers", "trl", "cotrain", "accelerate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step does."""

    tasks: int  # prompts
    group: int  # answers to each
    prompt: int  # tokens of each prompt
    new: int  # mean tokens of an answer
    lengths: str = "fixed"  # one of LENGTHS

    @property
    def rows(self) -> int:
        return self.tasks * self.group

    @property
    def longest(self) -> int:
        """The limit on an answer's tokens."""
        return self.new if self.lengths == "fixed" else round(CUT * self.new)

    def prompts(self, count: int) -> list[tuple[int, ...]]:
        """The first ``count`` prompts; the same ones for everybody."""
        rng = random.Random(0)
        return [tuple(rng.randrange(FIRST, VOCABULARY) for _ in range(self.prompt)) for _ in range(count)]

    def answers(self, step: int) -> list[int]:
        """Tokens of each answer of a step, prompt by prompt: ``[tasks · group]``."""
        if self.lengths == "fixed":
            return [self.new] * self.rows
        rng = random.Random(1000 + step)
        middle = math.log(self.new) - SPREAD**2 / 2
        return [min(self.longest, max(1, round(rng.lognormvariate(middle, SPREAD)))) for _ in range(self.rows)]


def reward(token_ids: Sequence[int]) -> float:
    return sum(token_ids) / len(token_ids) / VOCABULARY


def word(token: int) -> str:
    """The benchmark tokenizer's word for an id."""
    return f"w{token}"


def side(description: str, *, model: bool = True) -> argparse.ArgumentParser:
    """The flags that every side understands; ``model``: it cannot do without one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=model, metavar="DIR", help="model directory written by models.py")
    parser.add_argument("--tasks", type=int, default=32, help="prompts a step")
    parser.add_argument("--group", type=int, default=8, help="answers a prompt")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="mean tokens of an answer")
    parser.add_argument("--lengths", choices=LENGTHS, default="fixed")
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not measured")
    parser.add_argument("--steps", type=int, default=3, help="steps that are")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 arithmetic over float32 weights")
    parser.add_argument("--lora", type=int, default=0, help="rank of an adapter of all linear layers; 0: all weights")
    return parser


def work_of(given: argparse.Namespace) -> Work:
    """The flags' work; sets the thread count."""
    import torch

    torch.set_num_threads(given.threads)
    use_device(given.device)
    return Work(tasks=given.tasks, group=given.group, prompt=given.prompt, new=given.new, lengths=given.lengths)


def use_device(device: str) -> None:
    """Makes the tests' pretended device known where it is asked for: on it the scripts can be tried without a GPU."""
    if not device.startswith("pretended"):
        return
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from cotrain.distributed import local
    from tests.device.pretended import NAME, install

    install()
    local.DEVICE_KINDS = (*local.DEVICE_KINDS, NAME)
    torch.__future__.set_swap_module_params_on_conversion(True)  # parameters stay the objects they are, as on CUDA


def now(device: str = "cpu") -> float:
    """Seconds on a clock, when all that was asked of the device is done."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()


def process_age() -> float:
    """Seconds since this process began (Linux)."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def peak(device: str = "cpu") -> float:
    """Most MiB held so far: of the process's memory, or of the device's."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device) / 2**20
    if device.startswith("pretended"):
        from tests.device.pretended import memory

        return memory.peak / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux


def middle(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of every key."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def versions() -> dict[str, str]:
    """Of the packages that matter, those that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def answer(**figures: Any) -> None:
    """The last line of a side."""
    import torch

    print(json.dumps({**figures, "threads": torch.get_num_threads(), "versions": versions()}), flush=True)
