"""An event loop that lets the engine work exactly when no coroutine can.

asyncio asks its selector to *block* only when no callback is ready to run. That moment is what a batching engine waits
for: every coroutine has gone as far as it can, so all requests that can be made have been made, and what shares a
batch follows from the work and not from the clock. There the selector calls ``advance`` instead of blocking.

Whoever waits for something outside (a grader's process, a timer) does so inside ``busy()``. While anyone is busy the
loop really blocks and the engine rests: no batch forms while a coroutine may yet run on.

``SIGINT`` needs no care: nothing installs a handler, so Python raises ``KeyboardInterrupt`` between two operations of
the engine, and it passes through the loop to whoever runs it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from cotrain.core.errors import CotrainError

T = TypeVar("T")


class Deadlock(CotrainError, RuntimeError):
    """Coroutines wait for something that neither the engine nor anything outside will ever bring."""


class IdleLoop(asyncio.SelectorEventLoop):
    """A selector event loop that calls ``advance`` whenever it would block and nobody is busy."""

    def __init__(self, advance: Callable[[], bool]) -> None:
        """``advance``: does some work and makes at least one callback ready, or returns False as there is none."""
        self.advance = advance
        self.outside = 0  # how many coroutines wait for something outside
        super().__init__(_IdleSelector(self))

    def finish(self) -> None:
        """Cancel what is left, give it one chance to clean up, and close. The engine does not advance any more."""
        self.advance = lambda: False
        try:
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.wait(left))
            for task in left:
                if not task.cancelled():
                    task.exception()  # looked at, so that nothing is logged about it
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()


class _IdleSelector(selectors.DefaultSelector):
    def __init__(self, loop: IdleLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if (timeout is None or timeout > 0) and not self._loop.outside:
            if self._loop.advance():
                return []
            if timeout is None:  # no timer either
                names = sorted(task.get_name() for task in asyncio.all_tasks(self._loop))
                raise Deadlock(
                    f"{len(names)} coroutines wait, but no request is open and nobody is busy: {', '.join(names[:4])}"
                    f"{', …' if len(names) > 4 else ''}; wait for what is not a role inside `async with roles.busy()`"
                )
        return super().select(timeout)


@asynccontextmanager
async def busy() -> AsyncIterator[None]:
    """While the block runs, the engine forms no batch. For waiting for anything but the engine."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, IdleLoop):
        raise RuntimeError("busy() belongs into a protocol that an Executor plays")
    loop.outside += 1
    try:
        yield
    finally:
        loop.outside -= 1


async def together(coroutines: Iterable[Coroutine[Any, Any, T]], names: Iterable[str] | None = None) -> list[T]:
    """Run all at once and return their results in order. If one fails the others are cancelled and have ended before
    its error is raised; of several errors, the first in order."""
    coroutines = list(coroutines)
    labels = [None] * len(coroutines) if names is None else list(names)
    tasks = [asyncio.create_task(c, name=n) for c, n in zip(coroutines, labels, strict=True)]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if errors:
        raise errors[0]
    return [task.result() for task in tasks]
