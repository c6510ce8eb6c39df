"""Rollouts of the next step during this step's update, where the two need different policies; exact.

::

    rollouts t │ update verifier t              │ update …
               │ rollouts t+1: generator │ wait │ verifier … │

In Tango the verifier learns while the generator, on its own device, writes the next step's solutions. These rollouts
pause where they would compute with a policy that is *held*: one whose weights are being changed, or whose device
learns. Once the new weights are published they go on at that very place. So they are the rollouts that would have come
after the update, token for token, and the run has the same bits.

Early rollouts are in no checkpoint. If they fail or are given up, they are collected again when their step is due,
which raises what has to be raised.
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

Result = TypeVar("Result")  # result of collecting: a batch of rollouts


class HeldRollout(Generic[Result]):
    """Rollouts that begin before their time. Until they are over, only their thread advances the engine."""

    def __init__(self, engine: HoldingEngine, held: Collection[str]) -> None:
        self._engine = engine
        self._held = held  # policies that cannot be sampled from before the new weights are published
        self._publish: Callable[[], None] | None = None  # publishes the new weights, once they are there
        self._is_learned = threading.Event()  # the new weights are there, or the rollouts are given up
        self._is_settled = threading.Event()  # they are published, or the rollouts are over
        self._is_published = False
        self._is_given_up = False
        self._error: BaseException | None = None  # raised by publishing
        self._future: Future[Result] | None = None

    def begin(self, thread: ThreadPoolExecutor, collect: Callable[[], Result]) -> None:
        self._engine.hold(self._held)
        self._future = thread.submit(collect)
        self._future.add_done_callback(lambda future: self._is_settled.set())

    def advance(self) -> bool:
        """Advance the engine, in the thread of the rollouts; wait for new weights where it pauses before a held policy.
        Raises Interrupted where the rollouts are given up."""
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
        """The update is over: publish its weights, in the thread of the rollouts as long as it runs. Raises what that
        raises."""
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
        """The update has failed: the rollouts end as soon as they can."""
        self._is_given_up = True
        self._is_learned.set()

    def end(self) -> Result | None:
        """Wait for the rollouts; None where they failed."""
        assert self._future is not None
        wait([self._future])
        with suppress(EngineLost):  # an engine that is started again holds no policy
            self._engine.hold(())
        if self._is_given_up or self._future.exception() is not None:
            return None
        return self._future.result()
