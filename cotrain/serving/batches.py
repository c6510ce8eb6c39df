"""The engine's thread in a server, which batches the requests of all connections.

::

    connection ─┐                                    ┌─ engine.step() ─┐
    connection ─┼─▶ do(coroutine) ─▶ engine's loop ──┤                 ├─▶ rows so far ─▶ who streams
    connection ─┘                                    └──── sleep(0) ◀──┘

The engine, its futures and every forward pass live in this thread alone; the server's own loop never waits for them.
Between two decode steps whatever has come in enters the batch. When the engine raises, the requests that are open fail
with its reason, and the next ones are served.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from cotrain.core.seeding import Address
from cotrain.core.types import Completion
from cotrain.inference.contract import Request, ServingEngine
from cotrain.rollout.rollout_context import EngineError

T = TypeVar("T")


class EngineThread:
    """Runs coroutines next to the engine. ``sample``, ``watch`` and the coroutines given to ``run_in_thread`` run in
    its thread."""

    def __init__(self, engine: ServingEngine) -> None:
        self.engine = engine
        self.publish = engine.publish
        self.counts = engine.counts
        self.check = engine.check
        self.context = engine.context
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._tick = self._loop.create_future()
        self._open: set[asyncio.Task[Completion]] = set()
        self._watched = 0  # requests of which somebody reads along
        self._drawn: dict[Address, list[int]] = {}
        self._failure = ""
        self._pumping: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run_loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def open_requests(self) -> int:
        """Requests that wait or run."""
        return len(self._open)

    async def run_in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the engine's thread, from any other loop; whoever cancels this cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def sample(self, request: Request) -> Completion:
        """As ``Engine.sample``; EngineError when the engine breaks while the request is open."""
        work = asyncio.ensure_future(self.engine.sample(request))
        self._open.add(work)
        self._wake.set()
        try:
            await asyncio.wait({work})
            if work.cancelled():
                raise EngineError(self._failure, code="E_ENGINE_STOPPED")
            return work.result()
        finally:
            self._open.discard(work)
            work.cancel()

    async def watch(self, request: Request, read: Callable[[Sequence[int]], None]) -> Completion:
        """Sample, and call ``read`` with the ids so far after each step."""
        work = asyncio.ensure_future(self.sample(request))
        self._watched += 1
        try:
            while not work.done():
                await asyncio.wait({work, self._tick}, return_when=asyncio.FIRST_COMPLETED)
                ids = self._drawn.get(request.address)  # None before it runs and once it has finished
                if ids is not None and not work.done():
                    read(ids)
            return work.result()
        finally:
            self._watched -= 1
            work.cancel()

    def advance(self) -> bool:
        """Never called: the thread turns the engine."""
        raise NotImplementedError("an EngineThread advances by itself")

    def close(self) -> None:
        """Cancel what is open and end the thread."""
        if self._pumping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._pumping.cancel)
            self._thread.join()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._pumping = self._loop.create_task(self._pump_engine())
        try:
            self._loop.run_until_complete(self._pumping)
        except asyncio.CancelledError:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left))
        finally:
            self._loop.close()

    async def _pump_engine(self) -> None:
        """Step while there is work, sleep while there is none."""
        while True:
            try:
                has_worked = self.engine.step()
                self._drawn = self.engine.running_tokens() if self._watched else {}
            except Exception as error:  # noqa: BLE001  whatever a forward pass raises; the server goes on
                self._failure, has_worked = f"{type(error).__name__}: {error}", bool(self._open)
                for work in list(self._open):
                    work.cancel()

            if has_worked:
                tick = self._tick
                self._tick = self._loop.create_future()
                tick.set_result(None)
                await asyncio.sleep(0)
            else:
                self._wake.clear()
                await self._wake.wait()
