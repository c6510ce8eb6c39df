"""Sampled tokens per second: the embedded engine beside transformers' ``generate``, on the same work.

The two run in turns (A B A B …) on one model, so that whatever else the machine does falls on both. Two kinds of work:

- *equal*: as many requests as rows, every answer of the same length. Nothing ends early; what is left is the cost of a
  step.
- *drawn*: three times as many requests as rows, lengths drawn between a quarter and seven quarters of it, as answers
  with a stop token have. ``generate`` runs each batch to its longest answer; only tokens that were asked for count.

``--group`` requests in a row share a prompt, as the members of a group do in training. Random weights; temperature 1.

    python benchmarks/engine_vs_generate.py            a table
    python benchmarks/engine_vs_generate.py --json     the same for a program
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from cotrain.core.address import Address
from cotrain.core.types import Sampling
from cotrain.engine.contract import Request
from cotrain.engine.embedded import EmbeddedEngine
from cotrain.models.config import new_model, small_config
from cotrain.play.idle_loop import IdleLoop, together


def work(count: int, prompt: int, lengths: Sequence[int], group: int, vocabulary: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    prompts = [tuple(rng.randrange(vocabulary) for _ in range(prompt)) for _ in range(-(-count // group))]
    return [
        Request(
            policy="a",
            prompt_ids=prompts[i // group],
            sampling=Sampling(max_tokens=lengths[i]),
            stop_ids=(),
            seed=rng.getrandbits(63),
            address=Address(step=0, task=i // group, member=i % group, role="solver", call=0),
        )
        for i in range(count)
    ]


def by_engine(engine: EmbeddedEngine, requests: Sequence[Request]) -> int:
    loop = IdleLoop(engine.advance)
    try:
        completions = loop.run_until_complete(together([engine.sample(r) for r in requests]))
    finally:
        loop.finish()
    return sum(len(c.token_ids) for c in completions)


def by_generate(model: PreTrainedModel, requests: Sequence[Request], rows: int) -> int:
    """Batches of ``rows`` requests in order, each to its longest answer. Counts the tokens that were asked for."""
    for at in range(0, len(requests), rows):
        batch = requests[at : at + rows]
        ids = torch.tensor([r.prompt_ids for r in batch], device=model.device)
        longest = max(r.sampling.max_tokens for r in batch)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=longest,
                min_new_tokens=longest,
            )
        assert out.shape[1] == ids.shape[1] + longest
    return sum(r.sampling.max_tokens for r in requests)


def rate(run: Callable[[], int]) -> float:
    start = time.perf_counter()
    tokens = run()
    return tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=48)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--group", type=int, default=8, help="requests that share a prompt")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="autocast the engine to bfloat16 (generate stays float32)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    model = new_model(small_config(640), seed=0).to(options.device)
    autocast = torch.bfloat16 if options.bf16 else None
    engine = EmbeddedEngine({"a": model}, max_rows=options.rows, device=options.device, autocast=autocast)
    rng = random.Random(0)
    lengths = {
        "equal": [options.new] * options.rows,
        "drawn": [rng.randint(options.new // 4, options.new * 7 // 4) for _ in range(3 * options.rows)],
    }
    results = {}
    for name, wanted in lengths.items():
        rates: dict[str, list[float]] = {"engine": [], "generate": []}
        for turn in range(options.rounds + 1):  # the first one warms up
            requests = work(len(wanted), options.prompt, wanted, options.group, 640, seed=turn)
            pair = {
                "engine": rate(lambda requests=requests: by_engine(engine, requests)),
                "generate": rate(lambda requests=requests: by_generate(model, requests, options.rows)),
            }
            for side, value in pair.items():
                rates[side] += [value] if turn else []
        ratios = [a / b for a, b in zip(rates["engine"], rates["generate"], strict=True)]
        results[name] = {
            "engine_tokens_per_second": statistics.median(rates["engine"]),
            "generate_tokens_per_second": statistics.median(rates["generate"]),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
    if options.json:
        print(json.dumps({"settings": vars(options), "results": results}))
        return
    print(f"{'lengths':8} {'engine':>9} {'generate':>9} {'ratio':>6}   (tokens/s, median of {options.rounds})")
    for name, found in results.items():
        engine_rate, generate_rate = found["engine_tokens_per_second"], found["generate_tokens_per_second"]
        print(f"{name:8} {engine_rate:9.0f} {generate_rate:9.0f} {found['ratio']:6.2f}")


if __name__ == "__main__":
    main()
