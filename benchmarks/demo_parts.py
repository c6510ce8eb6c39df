"""Processor seconds of the demo's steps by part, beside its matrix products alone, on one thread.

    python benchmarks/demo_parts.py [--steps 10]

The steps are those of ``demo_step.py``. A part's seconds are its own: what it calls that is another part counts there.
The floor of a part is what its matrix products take alone: their shapes are noted in a second run of the same steps,
and each is made again with other numbers, by the faster of the two libraries that torch has for it (MKL and oneDNN).
The first step is not measured.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import cotrain
from cotrain.config.registry import find_recipe
from cotrain.distributed.policy_handles import ModelHandle
from cotrain.inference import decode_batch, scheduler
from cotrain.inference.packed_weights import can_pack
from cotrain.learner import batching, learner
from cotrain.learner.logprobs import Scorer
from cotrain.rollout import runner
from cotrain.runs import step_recorder
from cotrain.trainer.trainer import CoTrainer

KINDS = ("generator", "verifier")  # phases of the demo's schedule
OUTSIDE = "the rest of a run"  # what no part has
LEAST = 0.002  # seconds of a part that is shown
Product = tuple[tuple[int, ...], tuple[int, ...]]  # the shapes of two matrices, or of two batches of them

aten = torch.ops.aten
FACTORS = {aten.mm: (0, 1), aten.linear: (0, 1), aten.bmm: (0, 1), aten.addmm: (1, 2), aten.baddbmm: (1, 2)}


class PartClock:
    """Processor seconds by part of the step that runs; each part is charged for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open = [OUTSIDE]
        self._since = time.process_time()

    @property
    def part(self) -> str:
        """The part that runs now."""
        return self._open[-1]

    @contextmanager
    def charging(self, part: str) -> Iterator[None]:
        """Within the block, seconds are this part's."""
        self._charge()
        self._open.append(part)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """The seconds since the last call."""
        self._charge()
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken

    def _charge(self) -> None:
        now = time.process_time()
        self.seconds[self.part] += now - self._since
        self._since = now


class ProductCounter(TorchDispatchMode):
    """Counts the matrix products of each part, by their shapes."""

    def __init__(self, clock: PartClock) -> None:
        super().__init__()
        self._clock = clock
        self.counts: dict[str, Counter[Product]] = defaultdict(Counter)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        factors = FACTORS.get(func.overloadpacket)
        if factors is not None:
            left, right = (args[place] for place in factors)
            if func.overloadpacket is aten.linear:
                left = left.flatten(0, -2)
                right = right.t()
            self.counts[self._clock.part][tuple(left.shape), tuple(right.shape)] += 1
        return func(*args, **(kwargs or {}))

    def take(self) -> dict[str, Counter[Product]]:
        taken = dict(self.counts)
        self.counts.clear()
        return taken


@contextmanager
def parts_charged(clock: PartClock) -> Iterator[None]:
    """Within the block, functions of cotrain charge their parts."""
    charged: list[tuple[Any, str, Callable[..., str]]] = [
        (scheduler.Scheduler, "_admit_rows", lambda self, *_: f"prefill, {self.policy}"),
        (scheduler.Scheduler, "_decode_step", lambda self: f"decode, {self.policy}"),
        (scheduler.Scheduler, "_draw_tokens", lambda self, *_: f"draw tokens, {self.policy}"),
        (scheduler.Scheduler, "_remove_rows", lambda *_: "collect finished rows"),
        (decode_batch.Rows, "collect_finished", lambda _: "collect finished rows"),
        (ModelHandle, "logprobs", lambda self, *_, **__: f"log-probabilities, {self.name}"),
        (batching, "forward_input_of", lambda *_, **__: "lay out sequences"),
        (batching, "plan_update", lambda *_, **__: "lay out sequences"),
        (learner, "plan_update", lambda *_, **__: "lay out sequences"),
        (learner, "collate", lambda *_, **__: "lay out sequences"),
        (learner.TorchLearner, "apply_plan", lambda self, plan: f"update, {plan[0].term.name}: the rest"),
        (Scorer, "predict", lambda self, *_, **__: _predict_part(clock)),
        (torch.Tensor, "backward", lambda *_, **__: f"{_update_of(clock)}: backward"),
        (learner.Optimizer, "step", lambda *_: f"{_update_of(clock)}: clip and AdamW"),
        (learner.TorchLearner, "clip_gradients", lambda *_: f"{_update_of(clock)}: clip and AdamW"),
        (runner.RolloutRunner, "collect", lambda *_, **__: "coroutines, prompts, parsing"),
        (step_recorder.StepRecorder, "_write", lambda *_: "ledger and metrics to the disk"),
        (CoTrainer, "step", lambda _: "credit, metrics of the step"),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in charged]
    for owner, name, part_of in charged:
        setattr(owner, name, _charging(clock, getattr(owner, name), part_of))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _charging(clock: PartClock, function: Callable[..., Any], part_of: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        with clock.charging(part_of(*args, **kwargs)):
            return function(*args, **kwargs)

    return charged


def _update_of(clock: PartClock) -> str:
    """The name of the update that runs."""
    return clock.part.split(":")[0]


def _predict_part(clock: PartClock) -> str:
    """A forward pass belongs to an update, or to whoever wants log-probabilities."""
    return f"{_update_of(clock)}: forward" if clock.part.startswith("update") else clock.part


class StepCollector:
    """An observer of a run: what ``take`` gives for each step, by phase."""

    def __init__(self, take: Callable[[], Mapping[str, Any]]) -> None:
        self._take = take
        self._is_first = True
        self.steps: dict[str, list[Mapping[str, Any]]] = defaultdict(list)

    def message(self, text: str) -> None: ...

    def update(self, row: Mapping[str, Any]) -> None:
        if "phase" not in row:
            return  # an evaluation
        taken = self._take()
        if not self._is_first:
            self.steps[row["phase"]].append(taken)
        self._is_first = False


def run_demo(steps: int, collector: StepCollector) -> None:
    """The steps of the demo: first some in which the verifier learns, then both kinds in turn."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = find_recipe("demo")(steps=1 + steps, warmup=steps // 2, evaluation_tasks=1)
        cotrain.run(recipe, Path(folder) / "run", device="cpu", observer=collector)


def measure_seconds(steps: int) -> dict[str, dict[str, float]]:
    """Median seconds of each part, by kind of step."""
    clock = PartClock()
    collector = StepCollector(clock.take)
    with parts_charged(clock):
        run_demo(steps, collector)
    medians: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        parts = sorted({part for step in collector.steps[kind] for part in step})
        medians[kind] = {
            part: statistics.median(step.get(part, 0.0) for step in collector.steps[kind]) for part in parts
        }
        medians[kind]["a whole step"] = statistics.median(sum(step.values()) for step in collector.steps[kind])
    return medians


def measure_products(steps: int) -> dict[str, dict[str, float]]:
    """Seconds of each part's matrix products alone, by kind of step; means over its steps."""
    clock = PartClock()
    counter = ProductCounter(clock)
    collector = StepCollector(counter.take)
    with parts_charged(clock), counter:
        run_demo(steps, collector)
    cost = functools.lru_cache(maxsize=None)(seconds_of_product)
    means: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        sums: dict[str, float] = defaultdict(float)
        for step in collector.steps[kind]:
            for part, products in step.items():
                sums[part] += sum(cost(product) * count for product, count in products.items())
        means[kind] = {part: total / len(collector.steps[kind]) for part, total in sums.items()}
        means[kind]["a whole step"] = sum(means[kind].values())
    return means


def seconds_of_product(product: Product) -> float:
    """One product of matrices of these shapes, or of batches of them, by the faster library."""
    left, right = map(torch.rand, product)
    ways: list[Callable[[], Tensor]] = [partial(torch.matmul, left, right)]
    if left.ndim == 2 and can_pack():
        ways.append(partial(torch.ops.mkldnn._linear_pointwise, left, right.t(), None, "none", [], ""))
    return min(map(least_seconds, ways))


@torch.no_grad()
def least_seconds(compute: Callable[[], Tensor]) -> float:
    """One call of ``compute``: the least of some turns."""
    seconds = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(8):
            compute()
        seconds.append((time.process_time() - began) / 8)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="steps that are measured, at least 4")
    given = parser.parse_args()
    if given.steps < 4:
        parser.error(f"--steps {given.steps}; expected at least 4, so that both kinds of step are among them")
    torch.set_num_threads(1)
    seconds = measure_seconds(given.steps)
    products = measure_products(given.steps)
    for kind in KINDS:
        print(f"\n| the {kind} learns | ms | products alone, ms |\n|---|---|---|")
        for part, taken in sorted(seconds[kind].items(), key=lambda item: -item[1]):
            if taken >= LEAST:
                print(f"| {part} | {1000 * taken:.0f} | {1000 * products[kind].get(part, 0.0):.0f} |")


if __name__ == "__main__":
    main()
