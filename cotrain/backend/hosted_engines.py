"""Several engines, each in a process of its own, as one: each request goes to the engine of its policy.

All advance together: each is told what was asked of it, then each is waited for. What shares a batch follows from the
work then, also where one engine is faster than another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotrain.backend.hosted import HostedEngine
from cotrain.core.address import Address
from cotrain.core.errors import EngineLost, UnknownName
from cotrain.core.types import Completion
from cotrain.engine.contract import Request


class HostedEngines:
    """Implements ``ServingEngine`` and ``DividingEngine``."""

    def __init__(self, engines: Mapping[tuple[str, ...], HostedEngine]) -> None:
        """``engines``: by the policies that they answer for."""
        self._engines = list(engines.values())
        self._of = {policy: engine for policies, engine in engines.items() for policy in policies}

    async def sample(self, request: Request) -> Completion:
        return await self._engine(request.policy).sample(request)

    def advance(self) -> bool:
        """Raises EngineLost when one of them is lost, once the others have answered."""
        return self._turn("advance")

    def step(self) -> bool:
        return self._turn("step")

    def drawn(self) -> dict[Address, list[int]]:
        return {address: ids for engine in self._engines for address, ids in engine.drawn().items()}

    def check(self, request: Request) -> None:
        self._engine(request.policy).check(request)

    def context(self, policy: str) -> int:
        return self._engine(policy).context(policy)

    def publish(self, policy: str, version: int) -> None:
        self._engine(policy).publish(policy, version)

    def bring(self, policy: str, version: int, weights: Any) -> None:
        """See ``HostedEngine.bring``."""
        self._engine(policy).bring(policy, version, weights)

    def counts(self) -> dict[str, float]:
        return {name: count for engine in self._engines for name, count in engine.counts().items()}

    def limits(self) -> dict[str, int]:
        return {policy: count for engine in self._engines for policy, count in engine.limits().items()}

    def limit(self, limits: Mapping[str, int]) -> None:
        for policy in limits:
            self._engine(policy)
        for engine in self._engines:
            engine.limit({policy: n for policy, n in limits.items() if self._of[policy] is engine})

    def _turn(self, method: str) -> bool:
        lost: EngineLost | None = None
        begun: list[tuple[HostedEngine, Any]] = []
        for engine in self._engines:
            try:
                reference = engine.begin_turn(method)
            except EngineLost as error:
                lost = error
            else:
                begun += [] if reference is None else [(engine, reference)]
        answered = False
        for engine, reference in begun:
            try:
                answered = engine.end_turn(reference, method) or answered
            except EngineLost as error:
                lost = error
        if lost is not None:
            raise lost
        return answered

    def _engine(self, policy: str) -> HostedEngine:
        if policy not in self._of:
            raise UnknownName("policy", policy, self._of)
        return self._of[policy]
