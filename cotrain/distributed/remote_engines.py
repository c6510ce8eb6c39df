"""The run's side of the engines, each in a process of its own: all of them as one engine.

A rollout changes nothing, so a lost engine costs the rollouts of the time: the next question begins a new process,
which is given the present weights (``multi_process.py``).

Where a policy has several engines, its *replicas*, the request's address picks one (``replica_of``), so the choice
depends neither on the clock nor on the order in which requests arrive. All replicas get new weights and limits.

All advance together: each is sent its requests, then each is waited for. What shares a batch follows from the
work then, also where one engine is faster than another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cotrain.core.errors import EngineLost, ProcessLost, UnknownName
from cotrain.core.seeding import Address
from cotrain.core.types import Completion
from cotrain.distributed.contract import ProcessStats
from cotrain.distributed.engine_host import HostResult, to_host_request
from cotrain.distributed.remote_policies import Process
from cotrain.inference.contract import Request


def replica_of(address: Address, replicas: int) -> int:
    """The replica, of so many, that answers a request.

    An episode stays with one: what goes on of a conversation finds its keys and values there. T problems with G
    episodes each are shared out evenly where T or G is a multiple of ``replicas``.
    """
    return (address.task + address.member) % replicas


class EngineProcess:
    """One engine in another process, and the requests that are open there."""

    def __init__(
        self, process: Process, policies: Sequence[str], make_again: Callable[[], Process], worked: ProcessStats
    ) -> None:
        """``policies``: that it answers for; ``make_again``: makes another process in place of a lost one, with the
        present weights; ``worked``: what it does is added to it."""
        self.policies = policies
        self.worked = worked
        self._process: Process | None = process
        self._renew = make_again
        self.contexts: dict[str, int] = process.ask("context")  # context of each policy, see ``ServingEngine.context``
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._open: dict[int, asyncio.Future[Completion]] = {}
        self._number = 0
        self._past: dict[str, float] = {}  # counts of lost processes
        self._counts: dict[str, float] = process.ask("counts")  # counts of this process, as it told last
        self._limits: dict[str, int] = {}  # likewise
        self._held: tuple[str, ...] = ()
        self.is_paused = False  # did its last turn end without an answer, because a policy is held?

    async def sample(self, request: Request) -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        return await future

    def start_sending_weights(self, policy: str, version: int, weights: Any) -> tuple[Any, float]:
        """Send new weights of a policy: numpy arrays by name, or what Ray fetches them by. What
        ``finish_sending_weights`` waits for. Errors: as ``ask``."""
        began = time.perf_counter()
        return self._live_process().send("publish", policy, version, weights, self._drop_cancelled()), began

    def finish_sending_weights(self, begun: tuple[Any, float]) -> int:
        """Wait until they have arrived; their bytes. Errors: as ``ask``."""
        reference, began = begun
        n_bytes: int = self.wait(reference, "publish")
        self.worked.published_bytes += n_bytes
        self.worked.publish_seconds += time.perf_counter() - began
        return n_bytes

    def counts(self) -> dict[str, float]:
        return {key: self._past.get(key, 0.0) + count for key, count in self._counts.items()}

    def limits(self) -> dict[str, int]:
        return dict(self._limits)

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """A process that was lost gets this when it has been replaced."""
        changed = dict(limits) != self._limits
        self._limits = dict(limits)
        if changed and self._process is not None:
            self.ask("set_limits", self._limits)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the process and wait for its answer; a lost process is replaced first. Raises EngineLost,
        and ProcessLost when the weights for a new one are lost."""
        return self.wait(self._live_process().send(method, *arguments), method)

    def hold(self, policies: Sequence[str]) -> None:
        """See ``HoldingEngine``. Errors: as ``ask``."""
        self._held = tuple(name for name in policies if name in self.policies)
        self.is_paused = False
        self.ask("hold", self._held)

    def release(self) -> None:
        """See ``HoldingEngine``. Errors: as ``ask``."""
        self._held = ()
        self.ask("release")

    def _live_process(self) -> Process:
        if self._process is None:
            process = self._renew()
            try:
                if self._limits:
                    process.ask("set_limits", self._limits)
                if self._held:
                    process.ask("hold", self._held)
            except ProcessLost as lost:
                raise EngineLost(str(lost), code=lost.code) from lost
            self._process = process
        return self._process

    def wait(self, reference: Any, method: str) -> Any:
        """The answer to what was sent. Errors: as ``ask``."""
        try:
            return self._live_process().wait(reference, method)
        except ProcessLost as lost:
            self.drop_process()
            raise EngineLost(str(lost), code=lost.code) from lost

    def drop_process(self) -> None:
        """The process is lost, and with it all that is open."""
        self._process = None
        self._waiting = []
        self._open = {}
        self.is_paused = False
        self._past = self.counts()
        self._counts = dict.fromkeys(self._counts, 0.0)

    def begin_turn(self, method: str) -> Any:
        """Send what was asked since the last turn; what ``end_turn`` waits for, None where nothing is open. Errors: as
        ``ask``."""
        gone = self._drop_cancelled()
        requests = []
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
        self.is_paused = False
        if reference is None:
            return False
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

        self.is_paused = bool(self._held) and not results and bool(self._open)
        return bool(results)

    def _drop_cancelled(self) -> list[int]:
        """Open requests that nobody waits for any more; forgotten here."""
        gone = [number for number, future in self._open.items() if future.cancelled()]
        for number in gone:
            del self._open[number]
        return gone


class HostedEngines:
    """Implements ``ServingEngine`` and ``MemoryLimitedEngine``."""

    def __init__(self, engines: Sequence[EngineProcess]) -> None:
        """``engines``: two that answer for the same policies are replicas."""
        self._engines = engines
        self._of: dict[str, list[EngineProcess]] = {}
        for engine in engines:
            for policy in engine.policies:
                self._of.setdefault(policy, []).append(engine)
        self._paused: list[EngineProcess] = []  # engines that stopped before a step of a held policy

    async def sample(self, request: Request) -> Completion:
        replicas = self.engines_of(request.policy)
        return await replicas[replica_of(request.address, len(replicas))].sample(request)

    def advance(self) -> bool:
        """Raises EngineLost when one of them is lost, once the others have answered; then nothing is open there."""
        engines = self._paused or self._engines
        self._paused = []
        answered = self._run_turn("advance", engines)
        self._paused = [engine for engine in engines if engine.is_paused]
        return answered or bool(self._paused)

    @property
    def is_paused(self) -> bool:
        """See ``HoldingEngine``: one of them at least, and the turn is over when all have ended it."""
        return bool(self._paused)

    def hold(self, policies: Collection[str]) -> None:
        """See ``HoldingEngine``. Errors: as ``advance``."""
        self._paused = []
        for engine in self._engines:
            engine.hold(tuple(policies))

    def release(self) -> None:
        """See ``HoldingEngine``. Errors: as ``advance``."""
        for engine in self._engines:
            engine.release()

    def step(self) -> bool:
        return self._run_turn("step", self._engines)

    def running_tokens(self) -> dict[Address, list[int]]:
        return {address: ids for engine in self._engines for address, ids in engine.ask("running_tokens").items()}

    def check(self, request: Request) -> None:
        """Raises UnknownName; other faults of a request raise an error when it is sampled."""
        self.engines_of(request.policy)

    def context(self, policy: str) -> int:
        return self.engines_of(policy)[0].contexts[policy]

    def publish(self, policy: str, version: int) -> None:
        """The version of the weights that are there."""
        self.send_weights(policy, version, {})

    def send_weights(self, policy: str, version: int, weights: Any) -> int:
        """See ``EngineProcess.start_sending_weights``; to all replicas at once. Returns the bytes that each took.
        Raises EngineLost as ``advance`` does."""
        sizes: list[int] = self._ask_engines(
            self.engines_of(policy),
            lambda engine: engine.start_sending_weights(policy, version, weights),
            lambda engine, begun: engine.finish_sending_weights(begun),
        )
        return sizes[0]

    def counts(self) -> dict[str, float]:
        """The counts of all replicas together."""
        totals: dict[str, float] = {}
        for engine in self._engines:
            for name, count in engine.counts().items():
                totals[name] = totals.get(name, 0.0) + count
        return totals

    def limits(self) -> dict[str, int]:
        """The limits of the replica that does least at a time."""
        lowest: dict[str, int] = {}
        for engine in self._engines:
            for policy, count in engine.limits().items():
                lowest[policy] = min(count, lowest.get(policy, count))
        return lowest

    def set_limits(self, limits: Mapping[str, int]) -> None:
        for policy in limits:
            self.engines_of(policy)
        for engine in self._engines:
            engine.set_limits({policy: n for policy, n in limits.items() if engine in self._of[policy]})

    def engines_of(self, policy: str) -> list[EngineProcess]:
        """The engines of a policy. Raises UnknownName."""
        if policy not in self._of:
            raise UnknownName("policy", policy, self._of)
        return self._of[policy]

    def each_alone(self, policy: str) -> list[HostedEngines]:
        """The engines of a policy, each as if there were no other."""
        return [HostedEngines([engine]) for engine in self.engines_of(policy)]

    def _run_turn(self, method: str, engines: Sequence[EngineProcess]) -> bool:
        return any(
            self._ask_engines(
                engines,
                lambda engine: engine.begin_turn(method),
                lambda engine, reference: engine.end_turn(reference, method),
            )
        )

    def _ask_engines(
        self,
        engines: Sequence[EngineProcess],
        begin: Callable[[EngineProcess], Any],
        end: Callable[[EngineProcess, Any], Any],
    ) -> list[Any]:
        """Ask all, then wait for all. Raises EngineLost when one of them is lost, once the others have answered."""
        lost: EngineLost | None = None
        started: list[tuple[EngineProcess, Any]] = []
        answers = []
        for engine in engines:
            try:
                started.append((engine, begin(engine)))
            except EngineLost as error:
                lost = error

        for engine, reference in started:
            try:
                answers.append(end(engine, reference))
            except EngineLost as error:
                lost = error

        if lost is not None:
            raise lost
        return answers
