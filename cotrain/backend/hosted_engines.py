"""Several engines, each in a process of its own, as one: each request goes to an engine of its policy.

Where a policy has several, its *replicas*, the request's address picks one (``dealt``), so the deal depends neither on
the clock nor on the order in which requests arrive. All replicas are told of new weights and of limits.

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


def dealt(address: Address, replicas: int) -> int:
    """Which of so many replicas answers a request.

    An episode stays with one: what goes on of a conversation finds its keys and values there. T problems with G
    episodes each are dealt out evenly where T or G is a multiple of ``replicas``.
    """
    return (address.task + address.member) % replicas


class HostedEngines:
    """Implements ``ServingEngine`` and ``DividingEngine``."""

    def __init__(self, engines: Sequence[tuple[Sequence[str], HostedEngine]]) -> None:
        """``engines``: each with the policies that it answers for; two with the same ones are replicas."""
        self._engines = [engine for _, engine in engines]
        self._of: dict[str, list[HostedEngine]] = {}
        for policies, engine in engines:
            for policy in policies:
                self._of.setdefault(policy, []).append(engine)

    async def sample(self, request: Request) -> Completion:
        replicas = self.replicas(request.policy)
        return await replicas[dealt(request.address, len(replicas))].sample(request)

    def advance(self) -> bool:
        """Raises EngineLost when one of them is lost, once the others have answered."""
        return self._turn("advance")

    def step(self) -> bool:
        return self._turn("step")

    def drawn(self) -> dict[Address, list[int]]:
        return {address: ids for engine in self._engines for address, ids in engine.drawn().items()}

    def check(self, request: Request) -> None:
        self.replicas(request.policy)[0].check(request)

    def context(self, policy: str) -> int:
        return self.replicas(policy)[0].context(policy)

    def publish(self, policy: str, version: int) -> None:
        self.bring(policy, version, {})

    def bring(self, policy: str, version: int, weights: Any) -> int:
        """See ``HostedEngine.bring``; to all replicas at once. Returns the bytes that each took. Raises EngineLost as
        ``advance`` does."""
        taken: list[int] = self._each(
            self.replicas(policy),
            lambda engine: engine.begin_bring(policy, version, weights),
            lambda engine, begun: engine.end_bring(begun),
        )
        return taken[0]

    def counts(self) -> dict[str, float]:
        """Of all replicas together."""
        found: dict[str, float] = {}
        for engine in self._engines:
            for name, count in engine.counts().items():
                found[name] = found.get(name, 0.0) + count
        return found

    def limits(self) -> dict[str, int]:
        """Of the replica that does least at a time."""
        found: dict[str, int] = {}
        for engine in self._engines:
            for policy, count in engine.limits().items():
                found[policy] = min(count, found.get(policy, count))
        return found

    def limit(self, limits: Mapping[str, int]) -> None:
        for policy in limits:
            self.replicas(policy)
        for engine in self._engines:
            engine.limit({policy: n for policy, n in limits.items() if engine in self._of[policy]})

    def replicas(self, policy: str) -> list[HostedEngine]:
        """The engines of a policy. Raises UnknownName."""
        if policy not in self._of:
            raise UnknownName("policy", policy, self._of)
        return self._of[policy]

    def _turn(self, method: str) -> bool:
        def end(engine: HostedEngine, reference: Any) -> bool:
            return reference is not None and engine.end_turn(reference, method)

        return any(self._each(self._engines, lambda engine: engine.begin_turn(method), end))

    def _each(
        self,
        engines: Sequence[HostedEngine],
        begin: Callable[[HostedEngine], Any],
        end: Callable[[HostedEngine, Any], Any],
    ) -> list[Any]:
        """Ask all, then wait for all. Raises EngineLost when one of them is lost, once the others have answered."""
        lost: EngineLost | None = None
        begun: list[tuple[HostedEngine, Any]] = []
        for engine in engines:
            try:
                begun.append((engine, begin(engine)))
            except EngineLost as error:
                lost = error
        found = []
        for engine, reference in begun:
            try:
                found.append(end(engine, reference))
            except EngineLost as error:
                lost = error
        if lost is not None:
            raise lost
        return found
