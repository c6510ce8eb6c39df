"""Several engines, each in a process of its own, as one: each request goes to an engine of its policy.

Where a policy has several, its *replicas*, the request's address picks one (``replica_of``), so the deal depends
neither on the clock nor on the order in which requests arrive. All replicas are told of new weights and of limits.

All advance together: each is told what was asked of it, then each is waited for. What shares a batch follows from the
work then, also where one engine is faster than another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cotrain.backend.hosted import HostedEngine
from cotrain.core.address import Address
from cotrain.core.errors import EngineLost, UnknownName
from cotrain.core.types import Completion
from cotrain.engine.contract import Request


def replica_of(address: Address, replicas: int) -> int:
    """Which of so many replicas answers a request.

    An episode stays with one: what goes on of a conversation finds its keys and values there. T problems with G
    episodes each are dealt out evenly where T or G is a multiple of ``replicas``.
    """
    return (address.task + address.member) % replicas


class HostedEngines:
    """Implements ``ServingEngine`` and ``MemoryLimitedEngine``."""

    def __init__(self, engines: Sequence[tuple[Sequence[str], HostedEngine]]) -> None:
        """``engines``: each with the policies that it answers for; two with the same ones are replicas."""
        self._engines = [engine for _, engine in engines]
        self._of: dict[str, list[HostedEngine]] = {}
        for policies, engine in engines:
            for policy in policies:
                self._of.setdefault(policy, []).append(engine)

    async def sample(self, request: Request) -> Completion:
        replicas = self.engines_of(request.policy)
        return await replicas[replica_of(request.address, len(replicas))].sample(request)

    def advance(self) -> bool:
        """Raises EngineLost when one of them is lost, once the others have answered."""
        return self._run_turn("advance")

    def step(self) -> bool:
        return self._run_turn("step")

    def running_tokens(self) -> dict[Address, list[int]]:
        return {address: ids for engine in self._engines for address, ids in engine.running_tokens().items()}

    def check(self, request: Request) -> None:
        self.engines_of(request.policy)[0].check(request)

    def context(self, policy: str) -> int:
        return self.engines_of(policy)[0].context(policy)

    def publish(self, policy: str, version: int) -> None:
        self.send_weights(policy, version, {})

    def send_weights(self, policy: str, version: int, weights: Any) -> int:
        """See ``HostedEngine.send_weights``; to all replicas at once. Returns the bytes that each took. Raises
        EngineLost as ``advance`` does."""
        sizes: list[int] = self._ask_engines(
            self.engines_of(policy),
            lambda engine: engine.start_sending_weights(policy, version, weights),
            lambda engine, begun: engine.finish_sending_weights(begun),
        )
        return sizes[0]

    def counts(self) -> dict[str, float]:
        """Of all replicas together."""
        totals: dict[str, float] = {}
        for engine in self._engines:
            for name, count in engine.counts().items():
                totals[name] = totals.get(name, 0.0) + count
        return totals

    def limits(self) -> dict[str, int]:
        """Of the replica that does least at a time."""
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

    def engines_of(self, policy: str) -> list[HostedEngine]:
        """The engines of a policy. Raises UnknownName."""
        if policy not in self._of:
            raise UnknownName("policy", policy, self._of)
        return self._of[policy]

    def _run_turn(self, method: str) -> bool:
        def finish_turn(engine: HostedEngine, reference: Any) -> bool:
            return reference is not None and engine.end_turn(reference, method)

        return any(self._ask_engines(self._engines, lambda engine: engine.begin_turn(method), finish_turn))

    def _ask_engines(
        self,
        engines: Sequence[HostedEngine],
        begin: Callable[[HostedEngine], Any],
        end: Callable[[HostedEngine, Any], Any],
    ) -> list[Any]:
        """Ask all, then wait for all. Raises EngineLost when one of them is lost, once the others have answered."""
        lost: EngineLost | None = None
        started: list[tuple[HostedEngine, Any]] = []
        for engine in engines:
            try:
                started.append((engine, begin(engine)))
            except EngineLost as error:
                lost = error
        answers = []
        for engine, reference in started:
            try:
                answers.append(end(engine, reference))
            except EngineLost as error:
                lost = error
        if lost is not None:
            raise lost
        return answers
