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

One loop serves many rollouts: connections to servers may outlive a rollout, its coroutines may not.

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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from cotrain.core.errors import CotrainError
from cotrain.core.verbosity import print_note

# -- Stall detection: a protocol computes without end, waits for what never comes, or asks for it again and again.


STALL_SECONDS = 60.0  # seconds without progress until the first note; the next come after 2, 4, 8 … times as long
POLLS = 10  # turns of each coroutine in that time, from which on the note says that one asks again and again

_WATCHED: weakref.WeakSet[StallDetector] = weakref.WeakSet()
_THREADS: dict[int, threading.Thread] = {}  # process id → its watching thread; a forked process has to start its own


class StallDetector:
    """Prints a note when an event loop makes no progress: one coroutine computes for long, or all of them wait."""

    def __init__(self) -> None:
        # A coroutine that computes, read by the watching thread:
        self._thread = 0  # id of the thread in which it does
        self._computes_since: float | None = None  # by the monotonic clock; None: no coroutine runs
        self._computed_s = 0.0  # when it was last looked at

        # No progress:
        self._stalled_s = 0.0  # seconds of waiting; while coroutines poll, of this thread's processor time
        self._polls_since: float | None = None  # thread time at which coroutines began to run on without an event
        self._n_polls = 0  # since then
        _WATCHED.add(self)

    def begin_collection(self) -> None:
        """Start anew: what was waited and computed before belongs to other rollouts, or to an update."""
        self.note_resting()
        self.note_progress()

    def note_computing(self) -> None:
        """A coroutine begins to run on, in this thread."""
        self._thread = threading.get_ident()
        self._computes_since = time.monotonic()
        self._computed_s = 0.0
        _start_thread()

    def note_resting(self) -> None:
        """No coroutine runs."""
        self._computes_since = None

    def note_progress(self) -> None:
        """There was an event, the engine has worked, or an episode is over."""
        self._stalled_s = 0.0
        self._polls_since = None

    def note_waiting(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """The loop waited for so long, without an event."""
        before = self._stalled_s
        self._stalled_s = self._stalled_s + seconds
        if not _crosses_mark(before, self._stalled_s):
            return
        where = _describe_stalled(asyncio.all_tasks(loop), "waits")
        if where:
            print_note(f"nothing has moved for {self._stalled_s:.0f} s; {where}; Ctrl-C ends the run")

    def note_poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Some coroutine is ready to run, and there was no event. While this goes on the engine never advances."""
        now = time.thread_time()  # time in which the process does not get the processor is not the coroutines' fault
        if self._polls_since is None:
            self._polls_since = now
            self._n_polls = 0
        before = self._stalled_s
        self._stalled_s = now - self._polls_since
        self._n_polls += 1
        if not _crosses_mark(before, self._stalled_s):
            return

        tasks = asyncio.all_tasks(loop)
        if self._n_polls < POLLS * len(tasks):  # few and long turns: they compute, and ask for nothing
            return
        ready = [task for task in tasks if getattr(task, "_fut_waiter", None) is None]  # those that await no future
        where = _describe_stalled(ready, "asks again and again")
        if where:
            print_note(
                f"nothing has moved for {self._stalled_s:.0f} s; {where}, and no model has a turn meanwhile; await "
                "what it looks for, as a role or an asyncio.Event; Ctrl-C, twice, ends the run"
            )

    def report_long_compute(self) -> None:
        """Print a note about a coroutine that has computed for long. Called by the watching thread."""
        since = self._computes_since
        if since is None:
            return
        before = self._computed_s
        self._computed_s = time.monotonic() - since
        if not _crosses_mark(before, self._computed_s):
            return
        line = _user_line(_frames_below(self._thread))
        if line:
            print_note(
                f"{line} has computed for {self._computed_s:.0f} s, and nothing else can go on meanwhile; "
                "is it an endless loop? Ctrl-C ends the run"
            )


def _user_line(frames: Iterable[FrameType]) -> str:
    """The first of these frames that is in a user's file, as "mine.py, line 9"; "" for none."""
    from cotrain.core.user_code import first_user_line

    return first_user_line([(frame.f_code.co_filename, frame.f_lineno) for frame in frames])


def _describe_stalled(tasks: Iterable[asyncio.Task[Any]], does: str) -> str:
    """Which tasks do not move: "mine.py, line 9 waits (task 3, and 7 more)". If any stands in a file of the user's,
    only such tasks are counted. "" for no task."""
    lines = [(task.get_name(), _user_line(_frames_of(task))) for task in tasks]
    in_user_code = [(name, line) for name, line in lines if line]
    stalled = sorted(in_user_code or lines)
    if not stalled:
        return ""
    name, line = stalled[0]
    more = f", and {len(stalled) - 1} more" if len(stalled) > 1 else ""
    if line:
        return f"{line} {does} ({name}{more})"
    return f"{name} {does}{more}"


def _crosses_mark(before: float, now: float) -> bool:
    """Whether STALL_SECONDS, or 2, 4, 8 … times as much, was passed between two times."""
    mark = STALL_SECONDS
    while mark <= before:
        mark *= 2
    return mark <= now


def _start_thread() -> None:
    """Start the watching thread, where this process has none."""
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
    """The frames of a thread, innermost first."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames_of(task: asyncio.Task[Any]) -> list[FrameType]:
    """The frames of a task that waits, innermost first: of its coroutine, of what this awaits, and so on."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        # Coroutines, asynchronous generators and generators each have names of their own for the same two things.
        for frame_name in ("cr_frame", "ag_frame", "gi_frame"):
            frame = getattr(awaited, frame_name, None)
            if frame is not None:
                frames.append(frame)
        awaited = (
            getattr(awaited, "cr_await", None)
            or getattr(awaited, "ag_await", None)
            or getattr(awaited, "gi_yieldfrom", None)
        )
    return frames[::-1]


# -- The event loop.


T = TypeVar("T")
_CANCELLED_HERE: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # other cancelled tasks were by a protocol
STOP_CHECK_S = 0.1  # while everyone waits for a server, seconds between two looks at whether the run shall stop


class Deadlock(CotrainError, RuntimeError):
    """Coroutines wait for something that neither the engine nor anything outside will ever bring."""

    code = "E_DEADLOCK"


class ProtocolStoppedLoop(CotrainError, RuntimeError):
    """A protocol ended what is not its own: the loop, or the tasks of others."""

    code = "E_LOOP_STOPPED"


class EngineEventLoop(asyncio.SelectorEventLoop):
    """A selector event loop that calls the engine's ``advance`` where it would block, unless the engine is paused."""

    def __init__(self) -> None:
        self.advance: Callable[[], bool] = _no_work
        self.n_pausing = 0  # coroutines inside of ``engine_paused``: they wait for short work, such as grading
        self.n_awaiting_server = 0  # coroutines inside of ``awaiting_server``
        self.given_up = False  # True: whoever waited for its result was interrupted, and its work shall end
        self.joint_calls: dict[object, JointCall] = {}  # key → the call that ``in_one_call`` prepares
        self.stall_detector = StallDetector()
        self._work: asyncio.Task[Any] | None = None  # what the loop runs now: asyncio stops the loop once it is done
        super().__init__(_EngineSelector(self))
        self.set_exception_handler(_report_error)

    def run_to_end(self, work: Coroutine[Any, Any, T], advance: Callable[[], bool] | None = None) -> T:
        """Run a coroutine to its end. Tasks that it leaves behind are cancelled, and have ended when this returns.

        ``advance``: does some of the engine's work and so makes a callback ready; returns False where there is none.
        """
        if asyncio._get_running_loop() is not None:  # as in a notebook: a thread can run only one loop
            return self._run_in_thread(work, advance)
        self.advance = advance or _no_work
        self.stall_detector.begin_collection()
        self._work = task = self.create_task(work)
        try:
            return self.run_until_complete(task)
        except asyncio.CancelledError as error:
            raise ProtocolStoppedLoop(
                "a protocol cancelled the rollouts it is part of, as by `asyncio.all_tasks()`; cancel only tasks of "
                "its own",
                code="E_PROTOCOL_CANCELS_PLAY",
            ) from error
        except SystemExit as error:  # raised in a task that a protocol started, or in a parser
            from cotrain.core.user_code import failure_of

            raise ProtocolStoppedLoop(
                f"{failure_of(error)}; a run does not end that way: return, or raise an exception",
                code="E_PROTOCOL_ENDS_RUN",
            ) from error
        finally:
            self._cancel_all()
            self._work = None
            self.stall_detector.note_resting()

    def stop(self) -> None:
        """asyncio calls it once the work is done. Raises ProtocolStoppedLoop where a protocol calls it before."""
        if self._work is not None and not self._work.done():
            raise ProtocolStoppedLoop(
                "a protocol cannot stop the loop it runs in; return, or raise an exception",
                code="E_PROTOCOL_STOPS_LOOP",
            )
        super().stop()

    def _run_in_thread(self, work: Coroutine[Any, Any, T], advance: Callable[[], bool] | None) -> T:
        """``run_to_end`` in a thread of its own, for which this thread waits. Signals still come to this thread; what
        they raise here ends the other thread's work too."""
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
            while not over.wait(STOP_CHECK_S):  # Python handles signals between two waits
                pass
        except RuntimeError:  # no thread could be started, so there is none to wait for
            raise
        except BaseException:  # a signal, perhaps while the thread was starting
            self.given_up = True
            over.wait()
            self.given_up = False
            raise
        return result.result()

    def close(self) -> None:
        """Close the loop. Tasks that are left are cancelled first, and have ended."""
        if self.is_running():
            raise ProtocolStoppedLoop(
                "a protocol cannot close the loop it runs in; return, or raise an exception",
                code="E_PROTOCOL_STOPS_LOOP",
            )
        if not self.is_closed():
            self._cancel_all()
        super().close()

    def start_joint_calls(self) -> bool:
        """Start the calls that ``in_one_call`` has prepared; False where there are none."""
        calls = list(self.joint_calls.values())
        self.joint_calls.clear()
        for call in calls:
            call.task = self.create_task(_answer_all(call))
        return bool(calls)

    def _cancel_all(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self.advance = _no_work
        self.joint_calls.clear()
        tasks = asyncio.all_tasks(self)
        _cancel_tasks(tasks)
        if tasks:
            self._work = self.create_task(asyncio.wait(tasks))
            self.run_until_complete(self._work)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # asyncio logs an exception that was never retrieved

    def __del__(self) -> None:
        if not self.is_closed() and not self.is_running():
            super().close()


def _no_work() -> bool:
    return False


def _report_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Print what asyncio finds out too late to raise it, such as a failure of a task that nobody awaited."""
    from cotrain.core.user_code import failure_of

    if closes_behind_its_loop(context):
        return
    note = str(context["message"])
    error = context.get("exception")
    if isinstance(error, BaseException):
        note += f": {failure_of(error)}"
    print_note(note)


def closes_behind_its_loop(context: Mapping[str, Any]) -> bool:
    """Whether asyncio reports a client that its owner never closed. Such a client is closed when it is collected as
    garbage, in whatever loop runs just then, and fails where its own loop is closed already. Nothing is lost by it."""
    error = context.get("exception")
    task = context.get("future")
    if not isinstance(task, asyncio.Task) or not isinstance(error, RuntimeError):
        return False
    coroutine_name = getattr(task.get_coro(), "__name__", "")
    return coroutine_name in ("aclose", "close") and str(error) == "Event loop is closed"


Events = list[tuple[selectors.SelectorKey, int]]


class _EngineSelector(selectors.DefaultSelector):
    """asyncio calls ``select`` before each round of callbacks. ``timeout``: 0 where a callback is ready already, else
    the seconds until the next timer, None where there is none."""

    def __init__(self, loop: EngineEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Events:
        if self._loop.given_up:
            self._loop.given_up = False
            raise KeyboardInterrupt
        stall_detector = self._loop.stall_detector
        stall_detector.note_resting()
        try:
            return self._select_or_advance(timeout)
        finally:
            stall_detector.note_computing()  # the loop now runs its callbacks

    def _select_or_advance(self, timeout: float | None) -> Events:
        """Do what happens between two rounds of callbacks: look at the sockets, advance the engine, or wait."""
        loop = self._loop
        is_callback_ready = timeout is not None and timeout <= 0
        is_waiting_outside = loop.n_pausing > 0 or loop.n_awaiting_server > 0
        if is_callback_ready and not is_waiting_outside:
            events = super().select(0)
            if events:
                loop.stall_detector.note_progress()
            else:
                loop.stall_detector.note_poll(loop)
            return events
        if is_callback_ready or loop.n_pausing:
            return self._wait_watched(timeout)

        # No coroutine can go on, so it is the engine's turn.
        if loop.advance():
            loop.stall_detector.note_progress()
            return super().select(0) if loop.n_awaiting_server else []
        if loop.n_awaiting_server:
            longest = STOP_CHECK_S if timeout is None else min(timeout, STOP_CHECK_S)
            return super().select(longest)  # not for longer: a stop of the run is noticed in ``advance``
        if timeout is not None:  # until the next timer
            return self._wait_watched(timeout)
        if loop.start_joint_calls():
            loop.stall_detector.note_progress()
            return []
        names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
        raise Deadlock(
            f"{len(names)} coroutines wait, but no request is open and nobody is busy: {', '.join(names[:4])}"
            f"{', …' if len(names) > 4 else ''}; wait for what is not a role inside `async with roles.busy()`",
            code="E_DEADLOCK",
        )

    def _wait_watched(self, timeout: float | None) -> Events:
        """Wait for events, at most until the stall detector would have something to say."""
        begun = time.monotonic()
        events = super().select(STALL_SECONDS if timeout is None else min(timeout, STALL_SECONDS))
        if events:
            self._loop.stall_detector.note_progress()
        else:
            self._loop.stall_detector.note_waiting(time.monotonic() - begun, self._loop)
        return events


@asynccontextmanager
async def engine_paused() -> AsyncIterator[None]:
    """While the block runs, the engine forms no batch. For awaiting anything but the engine."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, EngineEventLoop):
        raise RuntimeError("busy() belongs into a protocol that a RolloutRunner runs")
    loop.n_pausing += 1
    try:
        yield
    finally:
        loop.n_pausing -= 1


@dataclass(slots=True, kw_only=True)
class JointCall:
    """One call that answers several coroutines: ``call(items)`` gives a value for each of ``futures``."""

    call: Callable[[list[Any]], Awaitable[Sequence[Any]]]
    items: list[Any] = field(default_factory=list)
    futures: list[asyncio.Future[Any]] = field(default_factory=list)  # what the coroutines await, one for each item
    task: asyncio.Task[None] | None = None  # makes the call


async def in_one_call(call: Callable[[list[Any]], Awaitable[Sequence[Any]]], key: object, item: Any) -> Any:
    """The value of ``item``, where one call answers all coroutines that ask with this ``key``.

    The call is made when no coroutine can go on, the engine has nothing to do, and nobody waits for a server or a
    timer. Then all that can ask have asked, and what is called together follows from the work and not from the clock.
    ``call`` takes the items in the order in which they came, and returns a value for each. What it raises is raised in
    every coroutine.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, EngineEventLoop):
        raise RuntimeError("in_one_call() belongs into a protocol that a RolloutRunner runs")
    joint_call = loop.joint_calls.setdefault(key, JointCall(call=call))
    future: asyncio.Future[Any] = loop.create_future()
    joint_call.items.append(item)
    joint_call.futures.append(future)
    return await future


async def _answer_all(joint_call: JointCall) -> None:
    """Make a joint call, and give each coroutine its value or the failure."""
    try:
        async with engine_paused():
            values = await joint_call.call(joint_call.items)
        for future, value in zip(joint_call.futures, values, strict=True):
            if not future.done():
                future.set_result(value)
    except (KeyboardInterrupt, asyncio.CancelledError):
        for future in joint_call.futures:
            future.cancel()
        raise
    except BaseException as error:  # noqa: BLE001  a user's code, whose failure each coroutine has
        for future in joint_call.futures:
            if not future.done():
                future.set_exception(error)


@contextmanager
def awaiting_server() -> Iterator[None]:
    """For awaiting a server that answers when it likes: the engine goes on meanwhile. Does nothing in other loops."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, EngineEventLoop):
        yield
        return
    loop.n_awaiting_server += 1
    try:
        yield
    finally:
        loop.n_awaiting_server -= 1


def _cancel_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        _CANCELLED_HERE.add(task)
        task.cancel()


def is_cancelled_by_loop() -> bool:
    """Whether the running coroutine was cancelled by this module, or is thrown away; False: by a protocol."""
    try:
        return asyncio.current_task() in _CANCELLED_HERE
    except RuntimeError:  # no loop runs: Python closes a coroutine that nobody awaits any more
        return True


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]], names: Iterable[str] | None = None) -> list[T]:
    """Run all at once and return their results in order. ``names``: of their tasks.

    If one fails the others are cancelled, and have ended before its error is raised. Of several errors the first in
    order is raised.
    """
    coroutines = list(coroutines)
    labels = [None] * len(coroutines) if names is None else list(names)
    tasks = [asyncio.create_task(coroutine, name=label) for coroutine, label in zip(coroutines, labels, strict=True)]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        unfinished = [task for task in tasks if not task.done()]
        _cancel_tasks(unfinished)
        if unfinished:
            await asyncio.wait(unfinished)
        exceptions = [task.exception() for task in tasks if not task.cancelled()]
    for exception in exceptions:
        if exception is not None:
            raise exception
    return [task.result() for task in tasks]
