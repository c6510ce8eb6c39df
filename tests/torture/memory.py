"""Memory that runs out, in the forward pass, the backward pass, while scoring and while sampling.

    python -m tests.torture.memory --cases 300

In most cases an error of the allocator is raised at a pass drawn by the seed, once or several times in a row; the
update is then made in smaller micro-batches, the answers are drawn again fewer at a time. Weights and log-probabilities
must be within 1e-6 of those of enough memory (1e-5 while sampling, where rows share batches of another size), tokens
the same. In the last cases the error is a real one: an update of some hundred MB in a process that may have less.

Updates are in float64. In float32 the gradients differ by rounding, and AdamW's first step, which divides each by its
own size, makes up to 6e-6 of that at a learning rate of 1e-2.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "learner"))  # for ``learn_makers``, as pytest has it

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cotrain.algorithms.contract import LossTerm
from cotrain.core.seeding import rng_of
from cotrain.inference.local import LocalEngine
from cotrain.learner.learner import TorchLearner
from cotrain.learner.logprobs import Scorer
from tests.helpers import answers, mixed_requests
from tests.helpers import tiny_model as speaking_model
from tests.inference.test_rows_begin_again import short
from tests.learner.test_smaller_batches import ALGORITHM, ERRORS, Short, random_samples, terms, tiny_model, weights

KINDS = ("forward", "backward", "scoring", "sampling")
ROOM = (400, 250, 150)  # MB that a real case may allocate beyond what it has at the start


def case(seed: int, kind: str) -> float:
    """The largest difference that it made; infinite where tokens differ, or nothing ran out."""
    chance = rng_of("memory", seed)
    times, error = chance.choice((1, 1, 2)), ERRORS[seed % len(ERRORS)]
    if kind == "sampling":
        return _sampled(seed, chance.randrange(1000), times)
    if kind == "scoring":
        return _scored(seed, chance.randrange(1000), times, error)
    found, passes = [], 0
    for broken in (False, True):
        model = tiny_model(seed=seed)
        learner = TorchLearner(model, lr=1e-2, micro_tokens=24)
        breaks = Short(model, kind, chance.randrange(passes) if broken else 10**9, times=times, error=error)
        report = learner.update(terms(seed))
        passes = breaks.count
        found.append(weights(model))
        if broken != ("out_of_memory" in report.metrics):
            return float("inf")
    return float((found[0] - found[1]).abs().max())


def _scored(seed: int, draw: int, times: int, error: BaseException) -> float:
    model = tiny_model(torch.float32, seed=seed)
    pairs = [(s.prompt_ids, s.token_ids) for s in random_samples(12, seed=seed)]
    expected, broken = Scorer(model, micro_tokens=30).logprobs(pairs), Scorer(model, micro_tokens=30)
    Short(model, "forward", draw % 3, times=times, error=error)
    found = broken.logprobs(pairs)
    if not broken.oom_count:
        return float("inf")
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def _sampled(seed: int, draw: int, times: int) -> float:
    found, passes = [], 0
    for broken in (False, True):
        model = speaking_model(seed=seed)
        engine = LocalEngine({"a": model}, static=bool(seed % 2))
        counted = short(
            model,
            draw % max(1, passes // 3) if broken else 10**9,  # while several rows run
            times,
        )
        found.append(answers(engine, mixed_requests(["a"], 10, seed=seed)))
        passes = len(counted)
        if broken != (engine.counts()["a/out_of_memory"] > 0):
            return float("inf")
    if [c.token_ids for c in found[0]] != [c.token_ids for c in found[1]]:
        return float("inf")
    pairs = [p for a, b in zip(*found, strict=True) for p in zip(a.logprobs, b.logprobs, strict=True)]
    return max(abs(a - b) for a, b in pairs)


def real(room: int) -> tuple[float, int]:
    """In a child that may allocate so many MB: the difference, and how often the micro-batch was halved."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            difference, halved = _limited(room)
            os.write(writer, f"{difference!r} {halved}".encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    ended = os.waitpid(child, 0)[1]
    said = os.read(reader, 100).decode().split()
    os.close(reader)
    return (float(said[0]), int(said[1])) if ended == 0 else (float("inf"), 0)


def _limited(room: int) -> tuple[float, int]:
    config = LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(0)
    models = [LlamaForCausalLM(config).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ids = torch.randint(0, 64, (64, 300), generator=torch.Generator().manual_seed(0))
    made = [
        replace(
            random_samples(1, reference=True)[0],
            key=str(i),
            prompt_ids=tuple(row[:8].tolist()),
            token_ids=tuple(row[8:].tolist()),
            sampler_logprobs=torch.full((292,), -4.0),
            advantages=torch.full((292,), 1.0 - i % 3),
            reference=torch.full((292,), -4.1),
        )
        for i, row in enumerate(ids)
    ]
    term = [LossTerm(name="a", algorithm=ALGORITHM, samples=tuple(made))]
    small, large = (TorchLearner(m, lr=1e-3, micro_tokens=n) for m, n in zip(models, (700, 10**6), strict=True))
    small.update(term)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + room * 10**6, resource.RLIM_INFINITY))
    report = large.update(term)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return float((weights(models[0]) - weights(models[1])).abs().max()), int(report.metrics.get("out_of_memory", 0))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    given = parser.parse_args(argv)
    good = True
    rows, counts = dict.fromkeys(KINDS, 0.0), Counter[str]()
    halved = [(room, *real(room)) for room in ROOM]  # before this process computes: it forks
    for seed in range(given.cases):
        kind = KINDS[seed % len(KINDS)]
        difference = case(seed, kind)
        rows[kind], counts[kind] = max(rows[kind], difference), counts[kind] + 1
        if difference > (1e-5 if kind == "sampling" else 1e-6):
            good = False
            print(f"case {seed} ({kind}): {difference}", flush=True)
    print("| where | cases | largest difference |\n|---|---|---|")
    for kind in KINDS:
        print(f"| {kind} | {counts[kind]} | {rows[kind]:.1e} |")
    for room, difference, times in halved:
        good &= difference < 1e-6 and times > 0
        print(f"| update in {room} MB, halved {times} times | 1 | {difference:.1e} |")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
