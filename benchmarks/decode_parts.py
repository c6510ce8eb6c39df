"""A decode step of a model on a CPU, by part, beside reading the weights once and beside the products alone.

    python benchmarks/models.py 135M DIR
    python benchmarks/decode_parts.py --model DIR [--rows 8 32 64] [--tokens 24] [--threads 1] [--plain]

The local engine decodes rows in groups of eight with one prompt of 48 tokens, with packed weights
(``inference/packed_weights.py``), or plain ones. Processor milliseconds of a step, on average over all but the first
``rows`` that are asked for twice; products alone and reading are the least of some turns.
"""

from __future__ import annotations

import argparse
import functools
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from decode import completions_of
from torch import Tensor, nn

from cotrain.core.seeding import Address
from cotrain.core.types import Sampling
from cotrain.inference.contract import Request
from cotrain.inference.local import LocalEngine
from cotrain.inference.packed_weights import PackedWeights
from cotrain.inference.scheduler import Scheduler
from cotrain.models.load import load_model

GROUP = 8
PROMPT = 48  # tokens
TURNS = 5

seconds: dict[str, float] = defaultdict(float)  # by method of the scheduler
calls: dict[str, int] = defaultdict(int)


def timed(name: str) -> None:
    """Count the processor seconds of a method of schedulers, with all that it calls."""
    method: Callable[..., Any] = getattr(Scheduler, name)

    @functools.wraps(method)
    def counted(*arguments: Any) -> Any:
        began = time.process_time()
        result = method(*arguments)
        seconds[name] += time.process_time() - began
        calls[name] += 1
        return result

    setattr(Scheduler, name, counted)


def requests(rows: int, tokens: int, vocabulary: int) -> list[Request]:
    rng = random.Random(rows)
    prompts = [tuple(rng.randrange(vocabulary) for _ in range(PROMPT)) for _ in range(-(-rows // GROUP))]
    return [
        Request(
            policy="a",
            prompt_ids=prompts[row // GROUP],
            sampling=Sampling(max_tokens=tokens),
            stop_ids=(),
            seed=row,
            address=Address(step=0, task=row // GROUP, member=row % GROUP, role="solver", call=0),
        )
        for row in range(rows)
    ]


def least_ms(compute: Callable[[], object]) -> float:
    taken = []
    for _ in range(TURNS):
        began = time.process_time()
        compute()
        taken.append(time.process_time() - began)
    return 1000 * min(taken)


def products_ms(model: nn.Module, rows: int, plain: bool) -> float:
    """All linear layers once, one after the other, on inputs of so many rows."""
    packed = PackedWeights(model)
    if not plain:
        packed.refresh()
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    inputs = {layer.in_features: torch.rand(rows, layer.in_features) for layer in layers}

    def multiply_all() -> list[Tensor]:
        return [layer(inputs[layer.in_features]) for layer in layers]

    with packed.use_copies():
        return least_ms(multiply_all)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="weights as they are")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model, _ = load_model(given.model)
    engine = LocalEngine({"a": model}, max_rows=max(given.rows), pack_weights=() if given.plain else ("a",))
    for name in ("_decode_step", "_draw_tokens"):
        timed(name)
    print("| rows | a step, ms | of it drawing | products alone | reading the weights | tokens/s |")
    print("|---|---|---|---|---|---|")
    for rows in given.rows:
        for _ in range(2):  # the first time makes room, and oneDNN's programs
            seconds.clear()
            calls.clear()
            completions_of(engine, requests(rows, given.tokens, model.config.vocab_size))
        step = 1000 * seconds["_decode_step"] / calls["_decode_step"]
        drawing = 1000 * seconds["_draw_tokens"] / calls["_draw_tokens"]
        products = products_ms(model, rows, given.plain)
        reading = least_ms(lambda: [parameter.sum() for parameter in model.parameters()])
        print(f"| {rows} | {step:.0f} | {drawing:.0f} | {products:.0f} | {reading:.0f} | {1000 * rows / step:.0f} |")


if __name__ == "__main__":
    main()
