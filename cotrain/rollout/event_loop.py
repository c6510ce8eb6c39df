"""An event loop that lets the engine work exactly when no coroutine can.

asyncio asks its selector to *block* only when no callback is ready to run. That moment is what a batching engine waits
for: every coroutine has gone as far as it can, so all requests that can be made have been made, and what shares a
batch follows from the work and not from the clock. There the selector calls ``advance`` instead of blocking.

There are two kinds of waiting for something outside.

    engine_paused()     short work whose result does not depend on when it comes (a grader's process, a timer). The
                        engine rests: no batch forms while a coroutine may yet run on, so batches follow from the work,
                        bit for bit.
    awaiting_server()   a server that answers when it likes. The engine goes on and the sockets are looked at between
                        two of its advances; neither waits for the other. What shares a batch then depends on the clock,
                        so a run is the same up to rounding at best, and is replayed from its ledger instead.

The loop lives as long as whoever plays: connections may outlive a play, coroutines may not.

``SIGINT`` needs no care: nothing installs a handler, so Python raises ``KeyboardInterrupt`` between two operations of
the engine, and it passes through the loop to whoever runs it.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar, cast

from cotrain.core.errors import CotrainError
from cotrain.core.verbosity import print_note

# -- Says where a play stands still: a protocol that computes without end, or that waits for what does not come.


STALL_SECONDS = 60.0  # seconds until the first line
POLLS = 10  # turns of a coroutine in that time, from which on it is said to ask again and again

_WATCHED: weakref.WeakSet[StallDetector] = weakref.WeakSet()
_THREADS: dict[int, threading.Thread] = {}  # process id → its watching thread; a fork has none


class StallDetector:
    """Warns when an event loop makes no progress: a coroutine that computes for long, or all of them waiting."""

    def __init__(self) -> None:
        self._thread = 0
        self._since: float | None = None  # a coroutine computes
        self._said = 0.0
        self._waits = 0.0  # seconds without an event
        self._polls: float | None = None  # since when coroutines go on without one
        self._times_polled = 0  # since then
        _WATCHED.add(self)

    def begin_play(self) -> None:
        """Start counting waits and polls anew: earlier ones belong to another batch or to the learners."""
        self.note_resting()
        self.note_progress()

    def note_computing(self) -> None:
        """A coroutine begins to run on, in this thread."""
        self._thread = threading.get_ident()
        self._since = time.monotonic()
        self._said = 0.0
        _start_thread()

    def note_resting(self) -> None:
        """No coroutine runs."""
        self._since = None

    def note_progress(self) -> None:
        """Something has come, the engine has worked, or an episode is over."""
        self._waits = 0.0
        self._polls = None

    def note_waiting(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing has come for so long."""
        before = self._waits
        self._waits = self._waits + seconds
        if not _crosses_mark(before, self._waits):
            return
        where = _who_waits(asyncio.all_tasks(loop), "waits")
        if where:
            print_note(f"nothing has moved for {self._waits:.0f} s; {where}; Ctrl-C ends the run")

    def note_poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Coroutines go on, and nothing has come. The models have no turn while one is ready to."""
        now = time.thread_time()  # a process that waits for the processor asks for nothing
        if self._polls is None:
            self._polls = now
            self._times_polled = 0
        before = self._waits
        self._waits = now - self._polls
        self._times_polled += 1
        if _crosses_mark(before, self._waits):
            tasks = asyncio.all_tasks(loop)
            if self._times_polled < POLLS * len(tasks):  # each has computed for long, and none asks again and again
                return
            ready = [task for task in tasks if getattr(task, "_fut_waiter", None) is None]
            if where := _who_waits(ready, "asks again and again"):
                print_note(
                    f"nothing has moved for {self._waits:.0f} s; {where}, and no model has a turn meanwhile; await "
                    "what it looks for, as a role or an asyncio.Event; Ctrl-C, twice, ends the run"
                )

    def report_long_compute(self) -> None:
        """Called by the thread that watches."""
        since = self._since
        if since is None:
            return
        before = self._said
        self._said = time.monotonic() - since
        if _crosses_mark(before, self._said) and (line := _user_line(_frames_below(self._thread))):
            print_note(
                f"{line} has computed for {self._said:.0f} s, and nothing else can go on meanwhile; "
                "is it an endless loop? Ctrl-C ends the run"
            )


def _user_line(frames: Iterable[FrameType]) -> str:
    from cotrain.core.user_code import first_user_line

    return first_user_line([(frame.f_code.co_filename, frame.f_lineno) for frame in frames])


def _who_waits(tasks: Iterable[asyncio.Task[Any]], does: str) -> str:
    """Who it is, by the first of them with a line of its user's own: "mine.py, line 9 waits (task 3, and 7 more)"."""
    found = [(task.get_name(), _user_line(_frames_of(task))) for task in tasks]
    named = sorted((name, line) for name, line in found if line) or sorted(found)
    if not named:
        return ""
    name, line = named[0]
    more = f", and {len(named) - 1} more" if len(named) > 1 else ""
    return f"{line} {does} ({name}{more})" if line else f"{name} {does}{more}"


def _crosses_mark(before: float, now: float) -> bool:
    """Whether one of STALL_SECONDS, 2 STALL_SECONDS, 4 STALL_SECONDS … lies between them."""
    mark = STALL_SECONDS
    while mark <= before:
        mark *= 2
    return mark <= now


def _start_thread() -> None:
    thread = _THREADS.get(os.getpid())
    if thread is None or not thread.is_alive():
        thread = threading.Thread(target=_watch_forever, name="cotrain-stuck", daemon=True)
        _THREADS[os.getpid()] = thread
        thread.start()


def _watch_forever() -> None:
    while True:
        time.sleep(min(1.0, STALL_SECONDS / 4))
        for stall_detector in list(_WATCHED):
            stall_detector.report_long_compute()


def _frames_below(thread: int) -> Iterator[FrameType]:
    """Return what a thread runs, innermost first."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames_of(task: asyncio.Task[Any]) -> list[FrameType]:
    """Where a coroutine that waits stands, innermost first."""
    frames: list[FrameType] = []
    at: Any = task.get_coro()
    while at is not None:
        for kind in ("cr", "ag", "gi"):
            if (frame := getattr(at, f"{kind}_frame", None)) is not None:
                frames.append(frame)
        at = getattr(at, "cr_await", None) or getattr(at, "ag_await", None) or getattr(at, "gi_yieldfrom", None)
    return frames[::-1]


T = TypeVar("T")
_ENDED: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # tasks that are cancelled here, and by no protocol
LOOK_UP = 0.1  # seconds between two looks at whether the run shall stop, while everyone waits for a server


class Deadlock(CotrainError, RuntimeError):
    """Coroutines wait for something that neither the engine nor anything outside will ever bring."""

    code = "E_DEADLOCK"


class ProtocolStoppedLoop(CotrainError, RuntimeError):
    """A protocol ended what is not its own: the loop, or the tasks of others."""

    code = "E_LOOP_STOPPED"


class EngineEventLoop(asyncio.SelectorEventLoop):
    """A selector event loop that calls the engine's ``advance`` whenever it would block and nobody is busy."""

    def __init__(self) -> None:
        self.advance: Callable[[], bool] = _no_work
        self.outside = 0  # number of coroutines that wait for short work outside, such as grading
        self.elsewhere = 0  # number of coroutines that wait for another server
        self.given_up = False  # True once nobody waits for its result any more
        self.collected: dict[object, Collected] = {}  # what ``in_one_call`` is to call
        self.stall_detector = StallDetector()
        self._until: asyncio.Future[Any] | None = None  # the future that it runs until
        super().__init__(_EngineSelector(self))
        self.set_exception_handler(_report_error)

    def run_to_end(self, work: Coroutine[Any, Any, T], advance: Callable[[], bool] | None = None) -> T:
        """Run a coroutine to its end. What it leaves behind is cancelled and has ended by then.

        ``advance``: does some work and makes at least one callback ready, or returns False as there is none.
        """
        if asyncio._get_running_loop() is not None:  # as in a notebook: of one thread, only one loop can run
            return self._run_in_thread(work, advance)
        self.advance = advance or _no_work
        self.stall_detector.begin_play()
        try:
            return self.run_until_complete(work)
        except asyncio.CancelledError as error:
            raise ProtocolStoppedLoop(
                "a protocol cancelled the play it is part of, as by `asyncio.all_tasks()`; cancel only tasks of "
                "its own",
                code="E_PROTOCOL_CANCELS_PLAY",
            ) from error
        except SystemExit as error:  # of a task that a protocol began, or of a parser
            from cotrain.core.user_code import failure_of

            raise ProtocolStoppedLoop(
                f"{failure_of(error)}; a run does not end that way: return, or raise an exception",
                code="E_PROTOCOL_ENDS_RUN",
            ) from error
        finally:
            self._cancel_all()
            self.stall_detector.note_resting()

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        before = self._until
        self._until = asyncio.ensure_future(cast("Awaitable[T]", future), loop=self)
        try:
            return super().run_until_complete(self._until)
        finally:
            self._until = before

    def stop(self) -> None:
        """Called when what it runs for is over. Raises ProtocolStoppedLoop where a protocol calls it before."""
        if self._until is not None and not self._until.done():
            raise ProtocolStoppedLoop(
                "a protocol cannot stop the loop it is played in; return, or raise an exception",
                code="E_PROTOCOL_STOPS_LOOP",
            )
        super().stop()

    def _run_in_thread(self, work: Coroutine[Any, Any, T], advance: Callable[[], bool] | None) -> T:
        """The same in a thread of its own, for which this one waits. Signals still come to this one, and what it raises
        ends the other one too."""
        over = threading.Event()
        result = Future[T]()

        def run_work() -> None:
            try:
                result.set_result(self.run_to_end(work, advance))
            except BaseException as error:  # noqa: BLE001  whoever waits raises it
                result.set_exception(error)
            finally:
                over.set()

        thread = threading.Thread(target=run_work, name="cotrain-loop", daemon=True)
        try:
            thread.start()
            while not over.wait(LOOK_UP):  # a signal is seen between two looks
                pass
        except RuntimeError:  # no thread could be started
            raise
        except BaseException:  # also while the thread starts
            self.given_up = True
            over.wait()
            self.given_up = False
            raise
        return result.result()

    def close(self) -> None:
        """Cancel the tasks that are left and wait until they have ended. Does nothing if the loop is closed."""
        if self.is_running():
            raise ProtocolStoppedLoop(
                "a protocol cannot close the loop it is played in; return, or raise an exception",
                code="E_PROTOCOL_STOPS_LOOP",
            )
        if not self.is_closed():
            self._cancel_all()
        super().close()

    def call_collected(self) -> bool:
        """Begin the calls of ``in_one_call`` that have been asked for; False where there are none."""
        calls = list(self.collected.values())
        self.collected.clear()
        for collected in calls:
            collected.task = self.create_task(_call_for_all(collected))
        return bool(calls)

    def _cancel_all(self) -> None:
        self.advance = _no_work
        self.collected.clear()
        left = asyncio.all_tasks(self)
        _cancel_tasks(left)
        if left:
            self.run_until_complete(asyncio.wait(left))
        for task in left:
            if not task.cancelled():
                task.exception()  # looked at, so that nothing is logged about it

    def __del__(self) -> None:
        if not self.is_closed() and not self.is_running():
            super().close()


def _no_work() -> bool:
    return False


def _report_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an error that asyncio finds too late to raise it, such as a failure of a task that nobody awaited."""
    from cotrain.core.user_code import failure_of

    error = context.get("exception")
    print_note(f"{context['message']}" + (f": {failure_of(error)}" if isinstance(error, BaseException) else ""))


class _EngineSelector(selectors.DefaultSelector):
    def __init__(self, loop: EngineEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.given_up:
            self._loop.given_up = False
            raise KeyboardInterrupt
        stall_detector = self._loop.stall_detector
        stall_detector.note_resting()
        try:
            return self._select_or_advance(timeout)
        finally:
            stall_detector.note_computing()

    def _select_or_advance(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        if timeout == 0 and not loop.elsewhere and not loop.outside:  # somebody goes on, and the engine is not asked
            events = super().select(0)
            if events:
                loop.stall_detector.note_progress()
            else:
                loop.stall_detector.note_poll(loop)
            return events
        if (timeout is None or timeout > 0) and not loop.outside:
            if loop.advance():
                loop.stall_detector.note_progress()
                return super().select(0) if loop.elsewhere else []
            if loop.elsewhere:  # not for long: ``advance`` may be asked to stop
                return super().select(LOOK_UP if timeout is None else min(timeout, LOOK_UP))
            if timeout is None and loop.call_collected():
                loop.stall_detector.note_progress()
                return []
            if timeout is None:  # no timer either
                names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
                raise Deadlock(
                    f"{len(names)} coroutines wait, but no request is open and nobody is busy: {', '.join(names[:4])}"
                    f"{', …' if len(names) > 4 else ''}; wait for what is not a role inside `async with roles.busy()`",
                    code="E_DEADLOCK",
                )
        return self._wait_watched(timeout)

    def _wait_watched(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """For events; not for longer than the watch, which says who waits where none come."""
        begun = time.monotonic()
        events = super().select(STALL_SECONDS if timeout is None else min(timeout, STALL_SECONDS))
        if events:
            self._loop.stall_detector.note_progress()
        else:
            self._loop.stall_detector.note_waiting(time.monotonic() - begun, self._loop)
        return events


@asynccontextmanager
async def engine_paused() -> AsyncIterator[None]:
    """While the block runs, the engine forms no batch. For waiting for anything but the engine."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, EngineEventLoop):
        raise RuntimeError("busy() belongs into a protocol that a RolloutRunner plays")
    loop.outside += 1
    try:
        yield
    finally:
        loop.outside -= 1


@dataclass(slots=True, kw_only=True)
class Collected:
    """One call that answers several coroutines."""

    call: Callable[[list[Any]], Awaitable[Sequence[Any]]]
    items: list[Any] = field(default_factory=list)
    futures: list[asyncio.Future[Any]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None  # which makes the call


async def in_one_call(call: Callable[[list[Any]], Awaitable[Sequence[Any]]], key: object, item: Any) -> Any:
    """Return what ``call`` gives for ``item``, where one call answers all coroutines that ask with this ``key``.

    It is made when no coroutine can go on, the engine has nothing to do and nobody waits for a server or a timer: then
    all that can ask have asked, and what is called together follows from the work and not from the clock. ``call``
    takes the items in the order in which they came, and gives a value for each. What it raises, each coroutine raises.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, EngineEventLoop):
        raise RuntimeError("in_one_call() belongs into a protocol that a RolloutRunner plays")
    collected = loop.collected.setdefault(key, Collected(call=call))
    future: asyncio.Future[Any] = loop.create_future()
    collected.items.append(item)
    collected.futures.append(future)
    return await future


async def _call_for_all(collected: Collected) -> None:
    try:
        async with engine_paused():
            values = await collected.call(collected.items)
        for future, value in zip(collected.futures, values, strict=True):
            if not future.done():
                future.set_result(value)
    except (KeyboardInterrupt, asyncio.CancelledError):
        for future in collected.futures:
            future.cancel()
        raise
    except BaseException as error:  # noqa: BLE001 - a user's code, whose failure each of them has
        for future in collected.futures:
            if not future.done():
                future.set_exception(error)


@contextmanager
def awaiting_server() -> Iterator[None]:
    """Around waiting for a server that answers when it likes: the engine goes on meanwhile. Does nothing in other
    loops."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, EngineEventLoop):
        yield
        return
    loop.elsewhere += 1
    try:
        yield
    finally:
        loop.elsewhere -= 1


def _cancel_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        _ENDED.add(task)
        task.cancel()


def is_cancelled_by_loop() -> bool:
    """Whether the coroutine that asks is ended by its play, or thrown away, and not by a protocol."""
    try:
        return asyncio.current_task() in _ENDED
    except RuntimeError:  # no loop runs
        return True


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]], names: Iterable[str] | None = None) -> list[T]:
    """Run all at once and return their results in order. If one fails the others are cancelled and have ended before
    its error is raised; of several errors, the first in order."""
    coroutines = list(coroutines)
    labels = [None] * len(coroutines) if names is None else list(names)
    tasks = [asyncio.create_task(c, name=n) for c, n in zip(coroutines, labels, strict=True)]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        unfinished = [task for task in tasks if not task.done()]
        _cancel_tasks(unfinished)
        if unfinished:
            await asyncio.wait(unfinished)
        errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if errors:
        raise errors[0]
    return [task.result() for task in tasks]
