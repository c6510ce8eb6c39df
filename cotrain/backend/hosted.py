"""Proxies for what other processes hold: ``HostedPolicy`` for a policy of the learners, ``HostedEngine`` for the
engine.

Both speak to a ``Process``, which answers or raises ``ProcessLost``. A play changes nothing, so a lost engine costs the
play: the next question begins a new process, which is given the present weights (``multi_process.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from cotrain.backend.engine_host import HostResult, to_host_request
from cotrain.backend.handles import PolicyHandle, PolicySpec, Sequences
from cotrain.backend.learner_host import PolicyInfo, tensors_of
from cotrain.backend.process_stats import ProcessStats
from cotrain.backend.shapes import ComputeShape
from cotrain.core.address import Address
from cotrain.core.errors import EngineLost, ProcessLost, UnknownName
from cotrain.core.state import State
from cotrain.core.types import Completion
from cotrain.engine.contract import Engine, Request
from cotrain.learn.contract import Given, LossTerm, UpdateReport


class Process(Protocol):
    """A host in a process of its own."""

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method there and wait. Raises what it raised, and ProcessLost when there is no answer."""
        ...

    def send(self, method: str, *arguments: Any) -> Any:
        """Call a method there. What comes back stands for its answer: as an argument to another process, or in
        ``wait``."""
        ...

    def wait(self, reference: Any, method: str) -> Any:
        """The answer of ``send``. Errors: as ``ask``."""
        ...

    def kill(self) -> None:
        """Whatever it does, and if it is gone already."""
        ...


class TimedProcess:
    """A process, and the seconds in which it was asked for something. Implements ``Process``."""

    def __init__(self, process: Process, worked: ProcessStats) -> None:
        self._process, self._worked = process, worked
        self.send, self.wait, self.kill = process.send, process.wait, process.kill

    def ask(self, method: str, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._process.ask(method, *arguments)
        finally:
            self._worked.busy += time.perf_counter() - began


class HostedPolicy(PolicyHandle):
    """A policy whose model is in the process of the learners."""

    engine: Engine  # who samples from it; set by the backend

    def __init__(self, name: str, spec: PolicySpec, opened: PolicyInfo, learner: Callable[[], Process]) -> None:
        """``learner``: the process that holds it now."""
        super().__init__(name, spec, opened.renderer)
        self.changes, self._shape, self._learner, self._version = opened.changes, opened.shape, learner, 0

    @property
    def version(self) -> int:
        return self._version

    async def sample(self, request: Request) -> Completion:
        return await self.engine.sample(request)

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, given: Sequence[Given] = ()
    ) -> list[torch.Tensor]:
        arrays = self._ask_learner("logprobs", list(sequences), temperature, list(given))
        return [torch.from_numpy(values.copy()) for values in arrays]

    def update(self, terms: Sequence[LossTerm]) -> UpdateReport:
        report, self._version = self._ask_learner("update", list(terms))
        return report

    def follow(self, source: PolicyHandle, planned: int) -> bool:
        changed, self._version = self._ask_learner("follow", source.name, planned)
        return bool(changed)

    def renew(self) -> None:
        self._ask_learner("renew")

    def restart(self) -> bool:
        return bool(self._ask_learner("restart"))

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(tensors_of(self._ask_learner("weights")).items())

    def shape(self) -> ComputeShape | None:
        return self._shape

    def state(self) -> State:
        return dict(self._ask_learner("state"))

    def tensors(self) -> dict[str, torch.Tensor]:
        return tensors_of(self._ask_learner("tensors"))

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        self._version = self._ask_learner("load", state, {name: tensor.numpy() for name, tensor in tensors.items()})

    def scoring_limit(self) -> int | None:
        found: int | None = self._ask_learner("limit")
        return found

    def set_scoring_limit(self, tokens: int | None) -> None:
        self._ask_learner("limit_to", tokens)

    def reset_version(self) -> None:
        """It is at its start again."""
        self._version = 0

    def _ask_learner(self, method: str, *arguments: Any) -> Any:
        return self._learner().ask(method, self.name, *arguments)


class HostedEngine:
    """An engine in another process. Implements ``ServingEngine`` and ``MemoryLimitedEngine``."""

    def __init__(self, process: Process, renew: Callable[[], Process], worked: ProcessStats) -> None:
        """``renew``: makes another process in place of one that is lost, with the present weights; ``worked``: what it
        does is added to it."""
        self.worked = worked
        self._process: Process | None = process
        self._renew = renew
        self._contexts: dict[str, int] = process.ask("context")
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._open: dict[int, asyncio.Future[Completion]] = {}
        self._number = 0
        self._past: dict[str, float] = {}  # counts of lost processes
        self._counts: dict[str, float] = process.ask("counts")  # of this one, as it told last
        self._limits: dict[str, int] = {}  # likewise

    async def sample(self, request: Request) -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        return await future

    def advance(self) -> bool:
        """Raises EngineLost: then nothing is open any more."""
        return self._run_turn("advance")

    def step(self) -> bool:
        return self._run_turn("step")

    def running_tokens(self) -> dict[Address, list[int]]:
        return dict(self.ask("running_tokens"))

    def check(self, request: Request) -> None:
        """Raises UnknownName; whatever else is wrong with a request is told when it is asked."""
        self.context(request.policy)

    def context(self, policy: str) -> int:
        if policy not in self._contexts:
            raise UnknownName("policy", policy, self._contexts)
        return self._contexts[policy]

    def publish(self, policy: str, version: int) -> None:
        """The version of the weights that are there."""
        self.send_weights(policy, version, {})

    def send_weights(self, policy: str, version: int, weights: Any) -> None:
        """New weights of a policy. ``weights``: numpy arrays by name, or what Ray fetches them by."""
        self.finish_sending_weights(self.start_sending_weights(policy, version, weights))

    def start_sending_weights(self, policy: str, version: int, weights: Any) -> tuple[Any, float]:
        """Send them; what ``finish_sending_weights`` waits for. Errors: as ``ask``."""
        began = time.perf_counter()
        return self._live_process().send("publish", policy, version, weights, self._drop_cancelled()), began

    def finish_sending_weights(self, begun: tuple[Any, float]) -> int:
        """Wait until they have arrived; their bytes. Errors: as ``ask``."""
        reference, began = begun
        taken: int = self.wait(reference, "publish")
        self.worked.published_bytes += taken
        self.worked.publish_seconds += time.perf_counter() - began
        return taken

    def counts(self) -> dict[str, float]:
        return {key: self._past.get(key, 0.0) + count for key, count in self._counts.items()}

    def limits(self) -> dict[str, int]:
        """See ``MemoryLimitedEngine``."""
        return dict(self._limits)

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """See ``MemoryLimitedEngine``. A lost process is told when there is another."""
        changed, self._limits = dict(limits) != self._limits, dict(limits)
        if changed and self._process is not None:
            self.ask("limit", self._limits)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Of the process; a lost one is replaced first. Raises EngineLost, and ProcessLost when the weights for a new
        one are lost."""
        return self.wait(self._live_process().send(method, *arguments), method)

    def _live_process(self) -> Process:
        if self._process is None:
            process = self._renew()
            if self._limits:
                try:
                    process.ask("limit", self._limits)
                except ProcessLost as lost:
                    raise EngineLost(str(lost)) from lost
            self._process = process
        return self._process

    def wait(self, reference: Any, method: str) -> Any:
        """The answer to what was sent. Errors: as ``ask``."""
        try:
            return self._live_process().wait(reference, method)
        except ProcessLost as lost:
            self.drop_process()
            raise EngineLost(str(lost)) from lost

    def drop_process(self) -> None:
        """The process is lost, and with it all that is open."""
        self._process, self._waiting, self._open = None, [], {}
        self._past, self._counts = self.counts(), dict.fromkeys(self._counts, 0.0)

    def _run_turn(self, method: str) -> bool:
        reference = self.begin_turn(method)
        return reference is not None and self.end_turn(reference, method)

    def begin_turn(self, method: str) -> Any:
        """Send what was asked since the last turn; what ``end_turn`` waits for, None where nothing is open. Errors: as
        ``ask``."""
        gone, requests = self._drop_cancelled(), []
        for request, future in self._waiting:
            if not future.cancelled():
                self._number += 1
                self._open[self._number] = future
                requests.append(to_host_request(self._number, request))
        self._waiting = []
        if not self._open and not gone:
            return None
        return self._live_process().send(method, requests, gone)

    def end_turn(self, reference: Any, method: str) -> bool:
        """Wait for a turn, and hand out what was answered; was anything? Errors: as ``ask``."""
        results: list[HostResult]
        results, self._counts, self._limits, seconds = self.wait(reference, method)
        self.worked.busy += seconds
        self.worked.tokens = sum(count for key, count in self.counts().items() if key.endswith("/sampled_tokens"))
        for result in results:
            future = self._open.pop(result.number)
            if result.error is not None:
                future.set_exception(result.error)
            elif result.completion is not None:
                future.set_result(result.completion)
        return bool(results)

    def _drop_cancelled(self) -> list[int]:
        """Open requests that nobody waits for any more; forgotten here."""
        gone = [number for number, future in self._open.items() if future.cancelled()]
        for number in gone:
            del self._open[number]
        return gone
