"""Sampling alone: the local engine, plain or packed, or transformers' ``generate``, on the benchmark's work.

    python benchmarks/decode.py --side engine|packed|generate --model DIR [--lengths drawn] [--bf16]

Side ``packed`` is the engine with weights laid out for decoding on a CPU (``inference/packed_weights.py``).

All rows of a step at once; rows of a group have one prompt. ``generate`` runs the batch to its longest answer, with no
stop token to look for; only tokens that were asked for count. ``decode_seconds`` is the whole less a run in which every
answer is one token long: what the tokens after the first cost. ``first_token_seconds`` is the time from the start of
the process to the end of its first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from work import Work, answer, middle, now, peak, process_age, side, work_of

from cotrain.core.seeding import Address, seed_of
from cotrain.core.types import Completion, Sampling
from cotrain.inference.contract import Request
from cotrain.inference.local import LocalEngine
from cotrain.models.load import load_model
from cotrain.rollout.event_loop import EngineEventLoop, gather

Sampler = Callable[[Sequence[tuple[int, ...]], Sequence[int]], int]  # (prompts, length of each answer) → tokens


def by_engine(model: PreTrainedModel, work: Work, device: str, half: torch.dtype | None) -> Sampler:
    return sampler_of(LocalEngine({"a": model}, max_rows=work.rows, device=device, autocast=half), work)


def by_packed_engine(model: PreTrainedModel, work: Work, device: str, half: torch.dtype | None) -> Sampler:
    engine = LocalEngine({"a": model}, max_rows=work.rows, device=device, autocast=half, pack_weights=("a",))
    return sampler_of(engine, work)


def sampler_of(engine: LocalEngine, work: Work) -> Sampler:
    """Of an engine whose policy is "a"."""

    def sample(prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> int:
        requests = [
            request_of(i, prompt, work, max_tokens=length)
            for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        return sum(len(completion.token_ids) for completion in completions_of(engine, requests))

    return sample


def request_of(number: int, prompt: tuple[int, ...], work: Work, **sampling: Any) -> Request:
    return Request(
        policy="a",
        prompt_ids=prompt,
        sampling=Sampling(**sampling),
        stop_ids=(),
        seed=seed_of("decode", number),
        address=Address(step=0, task=number // work.group, member=number % work.group, role="solver", call=0),
    )


def completions_of(engine: LocalEngine, requests: Sequence[Request]) -> list[Completion]:
    """All at once."""
    return EngineEventLoop().run_to_end(gather(engine.sample(request) for request in requests), engine.advance)


def by_generate(model: PreTrainedModel, work: Work, device: str, half: torch.dtype | None) -> Sampler:
    model.to(device)
    model.generation_config.eos_token_id = None

    def sample(prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> int:
        ids = torch.tensor(prompts, device=device)
        with torch.inference_mode(), torch.autocast(torch.device(device).type, dtype=half, enabled=half is not None):
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max(lengths),
            )
        assert out.shape[1] == ids.shape[1] + max(lengths)
        return sum(lengths)

    return sample


SIDES = {"engine": by_engine, "packed": by_packed_engine, "generate": by_generate}


def main() -> None:
    parser = side(__doc__.splitlines()[0])
    parser.add_argument("--side", choices=SIDES, required=True)
    given = parser.parse_args()
    work, device = work_of(given), given.device
    sample = SIDES[given.side](load_model(given.model)[0], work, device, torch.bfloat16 if given.bf16 else None)
    sample(work.prompts(1), [1])
    first_token_seconds = process_age()
    measured = []
    for step in range(given.warmup + given.steps):
        prompts = [prompt for prompt in work.prompts(work.tasks * (step + 1))[-work.tasks :] for _ in range(work.group)]
        began = now(device)
        tokens = sample(prompts, work.answers(step))
        middle_of = now(device)
        sample(prompts, [1] * work.rows)
        ended = now(device)
        if step >= given.warmup:
            whole, first = middle_of - began, ended - middle_of
            measured.append({"seconds": whole, "decode_seconds": whole - first, "sampled_tokens": tokens})
    answer(**middle(measured), peak_mib=peak(device), first_token_seconds=first_token_seconds)


if __name__ == "__main__":
    main()
