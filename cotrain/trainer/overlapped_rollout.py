"""The next step's play beside this step's update, where the two need different policies; exact.

::

    play t │ update verifier t           │ update …
           │ play t+1: generator │ wait  │ verifier … │

In Tango the verifier learns while the generator, on its own device, writes the next step's solutions. The play stops
where it would compute with a policy that is *held*: one whose weights are being changed, or whose device learns. Once
the new weights are published it goes on at that very place. So it is the play that would have come after the update,
token for token, and the run has the same bits.

Such a play is never kept: it is in no checkpoint, and one that fails or is given up is simply played again when its
step is due, which raises what has to be raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Generic, TypeVar

from cotrain.core.errors import EngineLost
from cotrain.inference.contract import HoldingEngine
from cotrain.trainer.failures import Interrupted

Result = TypeVar("Result")  # of a play


class HeldRollout(Generic[Result]):
    """One play that has begun before its time. The engine is asked by its thread alone until it is over."""

    def __init__(self, engine: HoldingEngine, held: Collection[str]) -> None:
        self._engine = engine
        self._publish: Callable[[], None] | None = None  # what brings the new weights, once they are there
        self._is_learned = threading.Event()  # the new weights are there, or the play is given up
        self._is_settled = threading.Event()  # they are published, or the play is over
        self._is_published, self._is_given_up = False, False
        self._error: BaseException | None = None  # of publishing
        self._future: Future[Result] | None = None
        engine.hold(held)

    def begin(self, thread: ThreadPoolExecutor, collect: Callable[[], Result]) -> None:
        self._future = thread.submit(collect)
        self._future.add_done_callback(lambda future: self._is_settled.set())

    def advance(self) -> bool:
        """The engine's own, in the thread of the play; waits for new weights where the engine is paused. Raises
        Interrupted where the play is given up."""
        self._publish_once()
        has_worked = self._engine.advance()
        while self._engine.is_paused:
            self._is_learned.wait()
            self._publish_once()
            has_worked = self._engine.advance()
        return has_worked

    def _publish_once(self) -> None:
        """Publish what has been learned, if it was not yet, and let go of those that were held."""
        if self._is_given_up:
            raise Interrupted(1)
        if self._publish is None or self._is_published:
            return
        self._is_published = True
        try:
            self._publish()
            self._engine.release()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._is_settled.set()

    def publish(self, publish: Callable[[], None]) -> None:
        """The update is over: publish its weights, by the play's thread as long as it runs. Raises what that raises."""
        assert self._future is not None
        self._publish = publish
        self._is_learned.set()
        self._is_settled.wait()
        if self._future.done():
            with suppress(Interrupted):
                self._publish_once()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """The update has failed: the play ends as soon as it can."""
        self._is_given_up = True
        self._is_learned.set()

    def end(self) -> Result | None:
        """Wait for the play; None where it failed."""
        assert self._future is not None
        wait([self._future])
        with suppress(EngineLost):  # the next one that is begun holds nobody
            self._engine.hold(())
        return None if self._is_given_up or self._future.exception() is not None else self._future.result()
