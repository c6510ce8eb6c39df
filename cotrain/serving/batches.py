"""The engine's thread in a server: it batches the requests of all connections.

::

    connection ─┐                                             ┌─ engine.step() ─┐
    connection ─┼─▶ run_in_thread(coroutine) ─▶ its own loop ─┤                 ├─▶ tokens so far ─▶ who streams
    connection ─┘                                             └──── sleep(0) ◀──┘

The engine, its futures and every forward pass live in this thread alone, and the server's own loop never waits for
them. Requests that came in during a decode step enter the batch before the next one. When the engine raises, the
requests that are open fail with its reason, and the next ones are served.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from cotrain.core.seeding import Address
from cotrain.core.types import Completion
from cotrain.inference.contract import Request, ServingEngine
from cotrain.rollout.context import EngineError

T = TypeVar("T")


class EngineThread:
    """An engine with a thread that steps it. ``sample``, ``sample_streaming`` and the coroutines given to
    ``run_in_thread`` run in this thread."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        # What else an Engine has. Roles that sample need it.
        self.publish = engine.publish
        self.counts = engine.counts
        self.check = engine.check
        self.context = engine.context

        self._loop = asyncio.new_event_loop()
        self._has_new_request = asyncio.Event()
        self._next_step = self._loop.create_future()  # done when the engine has made its next step
        self._open: set[asyncio.Task[Completion]] = set()
        self._n_streaming = 0  # open requests that are streamed
        self._tokens_so_far: dict[Address, list[int]] = {}  # of the running requests; empty while none is streamed
        self._failure = ""  # what the engine raised last
        self._stepping: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run_loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def open_requests(self) -> int:
        """Requests that wait or run."""
        return len(self._open)

    async def run_in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the engine's thread, from any other loop. Whoever cancels this cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def sample(self, request: Request) -> Completion:
        """As ``Engine.sample``; EngineError when the engine breaks while the request is open."""
        work = asyncio.ensure_future(self._engine.sample(request))
        self._open.add(work)
        self._has_new_request.set()
        try:
            await asyncio.wait({work})
            if work.cancelled():
                raise EngineError(self._failure, code="E_ENGINE_STOPPED")
            return work.result()
        finally:
            self._open.discard(work)
            work.cancel()

    async def sample_streaming(self, request: Request, on_tokens: Callable[[Sequence[int]], None]) -> Completion:
        """``sample``, and call ``on_tokens`` with the token ids so far after each step."""
        work = asyncio.ensure_future(self.sample(request))
        self._n_streaming += 1
        try:
            while not work.done():
                await asyncio.wait({work, self._next_step}, return_when=asyncio.FIRST_COMPLETED)
                token_ids = self._tokens_so_far.get(request.address)  # None before it runs and once it has finished
                if token_ids is not None and not work.done():
                    on_tokens(token_ids)
            return work.result()
        finally:
            self._n_streaming -= 1
            work.cancel()

    def advance(self) -> bool:
        """An ``Engine`` has this method. Nobody calls it here, since the thread steps the engine."""
        raise NotImplementedError("an EngineThread advances by itself")

    def close(self) -> None:
        """Cancel what is open and end the thread."""
        if self._stepping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stepping.cancel)
            self._thread.join()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._stepping = self._loop.create_task(self._step_forever())
        try:
            self._loop.run_until_complete(self._stepping)
        except asyncio.CancelledError:
            remaining = asyncio.all_tasks(self._loop)
            for task in remaining:
                task.cancel()
            if remaining:
                self._loop.run_until_complete(asyncio.wait(remaining))
        finally:
            self._loop.close()

    async def _step_forever(self) -> None:
        """Step the engine while it has work, and sleep while it has none."""
        while True:
            if self._step_once():
                made_step = self._next_step
                self._next_step = self._loop.create_future()
                made_step.set_result(None)
                await asyncio.sleep(0)  # new requests and those who stream run now
            else:
                self._has_new_request.clear()
                await self._has_new_request.wait()

    def _step_once(self) -> bool:
        """One step of the engine; False when it had nothing to do. When it raises, all open requests are cancelled."""
        try:
            has_worked = self._engine.step()
            self._tokens_so_far = self._engine.running_tokens() if self._n_streaming else {}
            return has_worked
        except Exception as error:  # noqa: BLE001  whatever a forward pass raises; the server goes on
            self._failure = f"{type(error).__name__}: {error}"
            for work in list(self._open):
                work.cancel()
            return bool(self._open)  # those who wait for the cancelled ones have to run
