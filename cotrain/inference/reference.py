"""The slow engine: one request at a time, the whole sequence through the model for every token, no cache.

It defines what the local engine must return, and is meant for tests and for doubt. Prompt and sampled tokens go
through the model without mask or padding; uniforms and draws are those of ``decode_batch.py``, with the same seeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import torch
from torch import nn

from cotrain.core.entropy import LEVELS_PER_ROOT_NAT, MAX_LEVEL
from cotrain.core.errors import UnknownName
from cotrain.core.types import Completion
from cotrain.inference.contract import Request
from cotrain.inference.decode_batch import draw_tokens, uniform_numbers
from cotrain.prompts.decoding import stop_in


@torch.no_grad()
def complete_request(model: nn.Module, request: Request, version: int = 0) -> Completion:
    """Answer one request with a causal language model of transformers, where it is."""
    sampling = request.sampling
    device = next(model.parameters()).device
    temperature = torch.tensor([sampling.temperature], device=device)
    top_p = torch.tensor([sampling.top_p], device=device)
    seed = torch.tensor([request.seed], device=device)
    token_ids: list[int] = []
    logprobs: list[float] = []
    levels: list[int] = []
    stopped = False
    while len(token_ids) < sampling.max_tokens and not stopped:
        ids = torch.tensor([[*request.prompt_ids, *token_ids]], device=device)
        logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        uniform = uniform_numbers(seed, torch.tensor([len(token_ids)], device=device))
        token, logprob, entropy = draw_tokens(logits, uniform, temperature, top_p)
        token_ids.append(int(token))
        logprobs.append(float(logprob))
        levels.append(min(MAX_LEVEL, round(LEVELS_PER_ROOT_NAT * max(0.0, float(entropy)) ** 0.5)))
        stopped = token_ids[-1] in request.stop_ids
        if sampling.stop and request.decode:
            stopped = stopped or stop_in(request.decode(token_ids), sampling.stop) is not None
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        entropies=bytes(levels),
        finish="stop" if stopped else "length",
        policy=request.policy,
        version=version,
    )


class ReferenceEngine:
    """``complete_request`` behind the Engine contract: each ``advance`` answers the waiting request of the least
    address."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._models = dict(models)
        self._versions = dict.fromkeys(models, 0)
        self._sampled = dict.fromkeys(models, 0)
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []

    async def sample(self, request: Request) -> Completion:
        if request.policy not in self._models:
            raise UnknownName("policy", request.policy, self._models)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        return await future

    def advance(self) -> bool:
        self._waiting = sorted((p for p in self._waiting if not p[1].cancelled()), key=lambda p: p[0].address)
        if not self._waiting:
            return False
        request, future = self._waiting.pop(0)
        completion = complete_request(self._models[request.policy], request, self._versions[request.policy])
        self._sampled[request.policy] += len(completion.token_ids)
        future.set_result(completion)
        return True

    def publish(self, policy: str, version: int) -> None:
        if policy not in self._models:
            raise UnknownName("policy", policy, self._models)
        self._versions[policy] = version

    def counts(self) -> dict[str, float]:
        return {f"{policy}/sampled_tokens": float(count) for policy, count in self._sampled.items()}
