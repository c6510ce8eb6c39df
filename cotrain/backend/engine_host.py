"""An engine in a process of its own, for requests that come from another one. Knows no Ray: ``on_ray.py`` makes it an
actor.

``advance`` is the engine's own, with the requests that were made since the last call and what has finished. Requests
enter in the order in which they were made there, and the engine forms a batch only when all of them have entered: so
batches, and with them the bits, are those of an engine in the caller's process.

The models here are copies. ``publish`` brings the weights that have changed, by name, into the very tensors that the
engine computes with.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from cotrain.backend.handles import ModelHandle, Spec
from cotrain.backend.local import Room, embedded
from cotrain.core.address import Address
from cotrain.core.types import Completion
from cotrain.engine.contract import DividingEngine, LimitedEngine, Request, serving
from cotrain.rollout.idle_loop import IdleLoop
from cotrain.text.render import Rendering

Weights = Mapping[str, Any]  # parameter → numpy array


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request on its way to the process of the engine, which has its own renderers."""

    number: int  # of the request, in the order in which they were made
    request: Request  # without ``fields`` and ``decode``
    reads: bool  # whether its text is searched for stop strings


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of a request."""

    number: int
    completion: Completion | None
    error: Exception | None = None


Turn = tuple[list[Answered], dict[str, float], dict[str, int], float]  # answers; counts and limits of the engine; s


def sent(number: int, request: Request) -> Asked:
    """What of a request crosses to another process."""
    return Asked(number=number, request=replace(request, fields={}, decode=None), reads=request.decode is not None)


class Host:
    """An engine, asked from another process."""

    def __init__(self, engine: LimitedEngine, renderers: Mapping[str, Rendering | None]) -> None:
        """``renderers``: of each policy that is asked."""
        self._engine, self._renderers = engine, dict(renderers)
        self._loop = IdleLoop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._finished: list[Answered] = []

    def pid(self) -> int:
        return os.getpid()

    def context(self) -> dict[str, int]:
        """Of each policy: see ``ServingEngine.context``."""
        return {name: self._engine.context(name) for name in self._renderers}

    def advance(self, asked: Sequence[Asked], gone: Sequence[int]) -> Turn:
        """Take these requests, give up those that nobody waits for any more, and work until at least one has been
        answered. Returns what has been answered, in the order of the engine, its counts and its limits, and the seconds
        that it took; no answer where nothing is open."""
        began = time.perf_counter()
        self._take(asked, gone)
        if self._tasks:
            self._run(self._some())
        return self._handed_out(began)

    def step(self, asked: Sequence[Asked], gone: Sequence[int]) -> Turn:
        """See ``ServingEngine.step``."""
        began = time.perf_counter()
        self._take(asked, gone)
        self._run(asyncio.sleep(0))
        serving(self._engine).step()
        self._run(asyncio.sleep(0))
        return self._handed_out(began)

    def drawn(self) -> dict[Address, list[int]]:
        """See ``ServingEngine.drawn``."""
        return serving(self._engine).drawn()

    def publish(self, policy: str, version: int, weights: Weights, gone: Sequence[int]) -> int:
        """These weights of a policy are of this version. Returns their bytes."""
        self._take((), gone)
        if weights:
            self.bring(policy, weights)
        self._engine.publish(policy, version)
        return sum(int(array.nbytes) for array in weights.values())

    def bring(self, policy: str, weights: Weights) -> None:
        """New weights into the tensors that the engine computes with."""
        raise NotImplementedError

    def counts(self) -> dict[str, float]:
        return self._engine.counts()

    def limit(self, limits: Mapping[str, int]) -> None:
        """See ``DividingEngine``."""
        if isinstance(self._engine, DividingEngine):
            self._engine.limit(limits)

    def close(self) -> None:
        """Give up what is open, for who holds it in a process that lives on: a killed one ends as it is."""
        self._loop.close()

    def _take(self, asked: Sequence[Asked], gone: Sequence[int]) -> None:
        for number in gone:
            if number in self._tasks:
                self._tasks[number].cancel()
        if gone:
            self._run(asyncio.sleep(0))
        for one in asked:
            renderer = self._renderers.get(one.request.policy)
            decode = renderer.decode if one.reads and renderer is not None else None
            work = self._answer(one.number, replace(one.request, decode=decode))
            self._tasks[one.number] = self._loop.create_task(work, name=str(one.number))

    async def _answer(self, number: int, request: Request) -> None:
        try:
            completion = await self._engine.sample(request)
        except asyncio.CancelledError:
            del self._tasks[number]
            raise
        except Exception as error:  # noqa: BLE001  told to whoever asked
            self._finished.append(Answered(number=number, completion=None, error=error))
        else:
            self._finished.append(Answered(number=number, completion=completion))
        del self._tasks[number]
        self._news.set()

    async def _some(self) -> None:
        """Until something has been answered. The engine advances whenever everything waits (``idle_loop.py``)."""
        await self._news.wait()

    def _run(self, work: Any) -> None:
        """Run what is not to be cancelled when ``work`` ends."""
        self._news = asyncio.Event()
        self._loop.advance = self._engine.advance
        whole = self._loop.create_task(_awaited(work), name="host")
        try:
            self._loop.run_until_complete(whole)
        finally:
            if not whole.done():  # the engine raised
                whole.cancel()
                self._loop.advance = _idle
                self._loop.run_until_complete(asyncio.wait([whole]))

    def _handed_out(self, began: float) -> Turn:
        answered, self._finished = self._finished, []
        limits = self._engine.limits() if isinstance(self._engine, DividingEngine) else {}
        return answered, self._engine.counts(), limits, time.perf_counter() - began


async def _awaited(work: Any) -> None:
    await work


def _idle() -> bool:
    return False


class EngineHost(Host):
    """The policies of a run that are asked, and an embedded engine over them."""

    def __init__(self, policies: Mapping[str, Spec], seed: int, device: str, threads: int) -> None:
        """``policies``: all that the engine has, as the backend has settled them; ``threads``: of the CPU."""
        torch.set_num_threads(threads)
        room = SpeakingRoom(policies, seed, device)
        asked = {name: room.handle(name) for name, spec in policies.items() if spec.speaks or spec.scores}
        self._handles = {name: handle for name, handle in asked.items() if isinstance(handle, ModelHandle)}
        engine = serving(embedded(self._handles, device))
        super().__init__(engine, {name: handle.renderer for name, handle in self._handles.items()})

    @torch.no_grad()
    def bring(self, policy: str, weights: Weights) -> None:
        own = dict(self._handles[policy].model.named_parameters())
        for name, array in weights.items():
            own[name].copy_(torch.from_numpy(array.copy()))


class SpeakingRoom(Room):
    """Where models are held that are asked and not trained here."""

    def learning(self, name: str, spec: Any, model: nn.Module, renderer: Rendering | None) -> Any:
        return ModelHandle(name, spec, renderer, model.to(self.device).requires_grad_(False))

    def adapted(self, name: str, spec: Any) -> Any:
        model, renderer, activate, _ = self.adapter(name, spec)
        return ModelHandle(name, spec, renderer, model, activate=activate)
