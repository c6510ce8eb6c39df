"""All policies of a run as one engine: each request goes to the handle of its policy, batches form in the engine
below."""

from __future__ import annotations

from collections.abc import Mapping

from cotrain.backend.handles import PolicyHandle
from cotrain.core.address import Address
from cotrain.core.types import Completion
from cotrain.engine.contract import Engine, MemoryLimitedEngine, Request, as_serving_engine


class RoutingEngine:
    """Implements ``ServingEngine`` and ``MemoryLimitedEngine`` over handles; ``engine`` answers for whoever has none,
    and refuses whom it does not know."""

    def __init__(self, handles: Mapping[str, PolicyHandle], engine: Engine) -> None:
        self._handles, self.engine = handles, engine

    async def sample(self, request: Request) -> Completion:
        player = self._handles.get(request.policy, self.engine)
        return await player.sample(request)

    def advance(self) -> bool:
        return self.engine.advance()

    def publish(self, policy: str, version: int) -> None:
        self.engine.publish(policy, version)

    def counts(self) -> dict[str, float]:
        own = self.engine.counts()
        for handle in self._handles.values():
            own |= handle.counts()
        return own

    def limits(self) -> dict[str, int]:
        return self.engine.limits() if isinstance(self.engine, MemoryLimitedEngine) else {}

    def set_limits(self, limits: Mapping[str, int]) -> None:
        if isinstance(self.engine, MemoryLimitedEngine):
            self.engine.set_limits(limits)

    # -- what a server needs

    def step(self) -> bool:
        return as_serving_engine(self.engine).step()

    def running_tokens(self) -> dict[Address, list[int]]:
        return as_serving_engine(self.engine).running_tokens()

    def check(self, request: Request) -> None:
        as_serving_engine(self.engine).check(request)

    def context(self, policy: str) -> int:
        return as_serving_engine(self.engine).context(policy)
