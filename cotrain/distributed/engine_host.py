"""An engine in a process of its own, the shipped one or vLLM's, for requests that come from another process
(``remote_engines.py``). Knows no Ray: ``ray_processes.py`` makes it an actor.

``advance`` is the engine's own, with the requests that were made since the last call and what has finished. Requests
enter in the order in which they were made there, and the engine forms a batch only when all of them have entered: so
batches, and with them the bits, are those of an engine in the caller's process.

The models here are copies. ``publish`` brings the weights that have changed, by name, into the very tensors that the
engine computes with. What arrives are the learners' parameters, by their names in transformers; vLLM knows a model's
weights by the names of its directory, which are the same for the models that it was tried with, and an adapter's by
those of PEFT.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cotrain.core.errors import ModelError
from cotrain.core.input_files import parse_json
from cotrain.core.seeding import Address
from cotrain.core.types import Completion
from cotrain.distributed.local import PolicyFactory, make_local_engine, with_device_defaults
from cotrain.distributed.policy_handles import LearningSpec, ModelHandle, PolicySpec
from cotrain.inference.contract import (
    ContextLimitedEngine,
    HoldingEngine,
    MemoryLimitedEngine,
    Request,
    as_serving_engine,
)
from cotrain.inference.vllm import VllmEngine, VllmSettings
from cotrain.models.load import load_renderer, model_directory
from cotrain.models.lora import Lora
from cotrain.prompts.render import Rendering
from cotrain.rollout.event_loop import EngineEventLoop

Weights = Mapping[str, Any]  # parameter → numpy array


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """A request on its way to the process of the engine, which has its own renderers."""

    number: int  # number of the request, in the order in which they were made
    request: Request  # without ``fields`` and ``decode``
    reads: bool  # whether its text is searched for stop strings


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """The result of a request."""

    number: int
    completion: Completion | None
    error: Exception | None = None


# answers; counts and limits of the engine; seconds
TurnResult = tuple[list[HostResult], dict[str, float], dict[str, int], float]


def to_host_request(number: int, request: Request) -> HostRequest:
    """The part of a request that goes to another process."""
    return HostRequest(
        number=number, request=replace(request, fields={}, decode=None), reads=request.decode is not None
    )


class BaseEngineHost:
    """An engine, asked from another process."""

    def __init__(self, engine: ContextLimitedEngine, renderers: Mapping[str, Rendering | None]) -> None:
        """``renderers``: of each policy that is asked."""
        self._engine = engine
        self._renderers = dict(renderers)
        self._loop = EngineEventLoop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._finished: list[HostResult] = []

    def context(self) -> dict[str, int]:
        """The context of each policy: see ``ServingEngine.context``."""
        return {name: self._engine.context(name) for name in self._renderers}

    def advance(self, requests: Sequence[HostRequest], gone: Sequence[int]) -> TurnResult:
        """Take these requests, give up those that nobody waits for any more, and work until at least one has been
        answered. Returns what has been answered, in the order of the engine, its counts and its limits, and the seconds
        that it took; no answer where nothing is open."""
        began = time.perf_counter()
        self._accept_requests(requests, gone)
        if self._tasks:
            self._run_loop(self._wait_for_answer())
        return self._collect_results(began)

    def hold(self, policies: Sequence[str]) -> None:
        """See ``HoldingEngine``."""
        if isinstance(self._engine, HoldingEngine):
            self._engine.hold(policies)

    def release(self) -> None:
        """See ``HoldingEngine``."""
        if isinstance(self._engine, HoldingEngine):
            self._engine.release()

    def step(self, requests: Sequence[HostRequest], gone: Sequence[int]) -> TurnResult:
        """See ``ServingEngine.step``."""
        began = time.perf_counter()
        self._accept_requests(requests, gone)
        self._run_loop(asyncio.sleep(0))
        as_serving_engine(self._engine).step()
        self._run_loop(asyncio.sleep(0))
        return self._collect_results(began)

    def running_tokens(self) -> dict[Address, list[int]]:
        """See ``ServingEngine.running_tokens``."""
        return as_serving_engine(self._engine).running_tokens()

    def publish(self, policy: str, version: int, weights: Weights, gone: Sequence[int]) -> int:
        """These weights of a policy are of this version. Returns their bytes."""
        self._accept_requests((), gone)
        if weights:
            self.load_weights(policy, weights)
        self._engine.publish(policy, version)
        return sum(int(array.nbytes) for array in weights.values())

    def load_weights(self, policy: str, weights: Weights) -> None:
        """New weights into the tensors that the engine computes with."""
        raise NotImplementedError

    def counts(self) -> dict[str, float]:
        return self._engine.counts()

    def set_limits(self, limits: Mapping[str, int]) -> None:
        if isinstance(self._engine, MemoryLimitedEngine):
            self._engine.set_limits(limits)

    def close(self) -> None:
        """Give up what is open, for who holds it in a process that lives on: a killed one ends as it is."""
        self._loop.close()

    def _accept_requests(self, requests: Sequence[HostRequest], gone: Sequence[int]) -> None:
        for number in gone:
            if number in self._tasks:
                self._tasks[number].cancel()
        if gone:
            self._run_loop(asyncio.sleep(0))
        for host_request in requests:
            renderer = self._renderers.get(host_request.request.policy)
            decode = renderer.decode if host_request.reads and renderer is not None else None
            work = self._answer_request(host_request.number, replace(host_request.request, decode=decode))
            self._tasks[host_request.number] = self._loop.create_task(work, name=str(host_request.number))

    async def _answer_request(self, number: int, request: Request) -> None:
        try:
            completion = await self._engine.sample(request)
        except asyncio.CancelledError:
            del self._tasks[number]
            raise
        except Exception as error:  # noqa: BLE001  told to whoever asked
            self._finished.append(HostResult(number=number, completion=None, error=error))
        else:
            self._finished.append(HostResult(number=number, completion=completion))
        del self._tasks[number]
        self._news.set()

    async def _wait_for_answer(self) -> None:
        """Until something has been answered. The engine advances whenever everything waits (``event_loop.py``)."""
        await self._news.wait()

    def _run_loop(self, work: Coroutine[Any, Any, object]) -> None:
        """Run the event loop until ``work`` ends. Other tasks go on in the next call."""
        self._news = asyncio.Event()
        self._loop.advance = self._advance_engine
        whole = self._loop.create_task(_await_work(work), name="host")
        try:
            self._loop.run_until_complete(whole)
        finally:
            if not whole.done():  # the engine raised
                whole.cancel()
                self._loop.advance = _never_advance
                self._loop.run_until_complete(asyncio.wait([whole]))

    def _advance_engine(self) -> bool:
        """Advance the engine. If it pauses, since a policy that should continue is held, wake the caller without
        answers."""
        has_worked = self._engine.advance()
        if isinstance(self._engine, HoldingEngine) and self._engine.is_paused:
            self._news.set()
        return has_worked

    def _collect_results(self, began: float) -> TurnResult:
        results = self._finished
        self._finished = []
        limits = self._engine.limits() if isinstance(self._engine, MemoryLimitedEngine) else {}
        return results, self._engine.counts(), limits, time.perf_counter() - began


async def _await_work(work: Coroutine[Any, Any, object]) -> None:
    await work


def _never_advance() -> bool:
    return False


class EngineHost(BaseEngineHost):
    """The policies of a run that are sampled, and a local engine over them."""

    def __init__(self, policies: Mapping[str, PolicySpec], seed: int, device: str, threads: int) -> None:
        """``policies``: all that the engine has; ``threads``: of the CPU."""
        torch.set_num_threads(threads)
        factory = EnginePolicyFactory(policies, seed, device)
        handles = {name: factory.get_handle(name) for name, spec in policies.items() if spec.generates or spec.scores}
        self._handles = {name: handle for name, handle in handles.items() if isinstance(handle, ModelHandle)}
        engine = as_serving_engine(make_local_engine(self._handles, device))
        super().__init__(engine, {name: handle.renderer for name, handle in self._handles.items()})

    @torch.no_grad()
    def load_weights(self, policy: str, weights: Weights) -> None:
        own = dict(self._handles[policy].model.named_parameters())
        for name, array in weights.items():
            own[name].copy_(torch.from_numpy(array.copy()))


class EnginePolicyFactory(PolicyFactory):
    """The factory of a process whose models are sampled and not trained."""

    def build_trainable(self, name: str, spec: LearningSpec, model: nn.Module, renderer: Rendering | None) -> Any:
        # Its parameters go on requiring gradients, as the learner's do. Nothing is differentiated here, but PyTorch
        # chooses by this flag how it multiplies what is not contiguous, and the choice changes the last bit.
        return ModelHandle(name, spec, renderer, model, activate=self.place(name, spec, model))

    def build_adapter(self, name: str, spec: LearningSpec) -> Any:
        model, renderer, activate, _ = self.adapter_module(name, spec)
        return ModelHandle(name, spec, renderer, model, activate=activate)


class VllmHost(BaseEngineHost):
    """The policies of a run that generate with one set of weights, or with adapters on it, and an engine of vLLM, in
    the Python of an environment that has it."""

    def __init__(self, policies: Mapping[str, Any], settings: VllmSettings, device: str, threads: int) -> None:
        """``policies``: all on one model; ``threads``: of the CPU."""
        torch.set_num_threads(threads)
        self._adapters = {name: _adapter_config(spec.lora) for name, spec in policies.items() if spec.lora is not None}
        first_spec: Any = next(iter(with_device_defaults(policies, device).values()))
        narrow = first_spec.autocast or first_spec.dtype == "bfloat16"
        ranks = {}
        for name in policies:
            ranks[name] = self._adapters[name]["r"] if name in self._adapters else None
        engine = VllmEngine(
            model_directory(first_spec.model, trust_remote_code=first_spec.trust_remote_code),
            ranks,
            dtype="bfloat16" if narrow else "float32",
            settings=settings,
            device=device,
            trust_remote_code=first_spec.trust_remote_code,
        )
        renderer = load_renderer(first_spec.model, trust_remote_code=first_spec.trust_remote_code)
        super().__init__(engine, dict.fromkeys(policies, renderer))
        self._vllm = engine

    def load_weights(self, policy: str, weights: Weights) -> None:
        named = [(name, torch.from_numpy(array.copy())) for name, array in weights.items()]
        if policy not in self._adapters:
            self._vllm.load_weights(policy, named)
            return
        saved = [(saved_name(name, policy), tensor) for name, tensor in named]
        targets = sorted({name.split(".lora_")[0].rpartition(".")[2] for name, _ in saved})
        self._vllm.load_weights(policy, saved, {**self._adapters[policy], "target_modules": targets})


def saved_name(name: str, policy: str) -> str:
    """A weight's name in an adapter's directory, of that in the module (``models/adapters.py``)."""
    return "base_model.model." + name.replace(f".policy-{policy}.", ".")


def _adapter_config(lora: Lora) -> dict[str, Any]:
    """The configuration of an adapter that vLLM reads, as PEFT writes it."""
    rank = lora.rank
    alpha = lora.alpha
    if lora.path is not None:
        try:
            saved = parse_json((Path(lora.path) / "adapter_config.json").read_text(encoding="utf-8"))
            rank = int(saved["r"])
            alpha = int(saved["lora_alpha"])
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"adapter {lora.path}: no rank in its adapter_config.json ({error})", code="E_ADAPTER_FILE_MISSING"
            ) from error
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "bias": "none"}
