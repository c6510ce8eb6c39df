"""Says where a play stands still: a protocol that computes without end, or that waits for what does not come.

Both look alike from outside: a run that is silent. ``Ctrl-C`` ends it, but not whose line it was. So after ``AFTER``
seconds, and then each time twice as long, one line on stderr names it::

    note: mine.py, line 7 has computed for 60 s, and nothing else can go on meanwhile; is it an endless loop? …
    note: nothing has moved for 60 s; mine.py, line 9 waits (task 3, member 0, and 7 more); …
    note: nothing has moved for 60 s; mine.py, line 9 asks again and again (task 3, member 0); …

Nothing is stopped: a tool may be slow, and only its user knows. A thread watches, since a loop that computes looks at
nothing itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from cotrain.core.verbosity import shows_notes

AFTER = 60.0  # seconds until the first line

_WATCHED: weakref.WeakSet[StallWatch] = weakref.WeakSet()
_THREADS: dict[int, threading.Thread] = {}  # by process: a fork has none


class StallWatch:
    """What one event loop does, as it says itself: computes in a coroutine, waits, or something that is no trouble."""

    def __init__(self) -> None:
        self._thread = 0
        self._since: float | None = None  # a coroutine computes
        self._said = 0.0
        self._waits = 0.0  # seconds without an event
        self._polls: float | None = None  # since when coroutines go on without one
        _WATCHED.add(self)

    def note_computing(self) -> None:
        """A coroutine begins to run on, in this thread."""
        self._thread, self._since, self._said = threading.get_ident(), time.monotonic(), 0.0
        _start_thread()

    def note_resting(self) -> None:
        """No coroutine runs."""
        self._since = None

    def note_progress(self) -> None:
        """Something has come, the engine has worked, or an episode is over."""
        self._waits, self._polls = 0.0, None

    def note_waiting(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing has come for so long."""
        before, self._waits = self._waits, self._waits + seconds
        if _crosses_mark(before, self._waits) and (where := _who_waits(asyncio.all_tasks(loop), "waits")):
            print_note(f"nothing has moved for {self._waits:.0f} s; {where}; Ctrl-C ends the run")

    def note_poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Coroutines go on, and nothing has come. The models have no turn while one is ready to."""
        now = time.monotonic()
        if self._polls is None:
            self._polls = now
        before, self._waits = self._waits, now - self._polls
        if _crosses_mark(before, self._waits):
            ready = [task for task in asyncio.all_tasks(loop) if getattr(task, "_fut_waiter", None) is None]
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
        before, self._said = self._said, time.monotonic() - since
        if _crosses_mark(before, self._said) and (line := _user_line(_frames_below(self._thread))):
            print_note(
                f"{line} has computed for {self._said:.0f} s, and nothing else can go on meanwhile; "
                "is it an endless loop? Ctrl-C ends the run"
            )


def _user_line(frames: Iterator[FrameType] | list[FrameType]) -> str:
    from cotrain.core.user_code import first_user_line

    return first_user_line(_code_lines(frames))


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
    """Whether one of AFTER, 2 AFTER, 4 AFTER … lies between them."""
    mark = AFTER
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
        time.sleep(min(1.0, AFTER / 4))
        for watch in list(_WATCHED):
            watch.report_long_compute()


def _frames_below(thread: int) -> Iterator[FrameType]:
    """What a thread runs, innermost first."""
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


def _code_lines(frames: Iterator[FrameType] | list[FrameType]) -> list[tuple[str, int | None]]:
    return [(frame.f_code.co_filename, frame.f_lineno) for frame in frames]


def print_note(text: str) -> None:
    if shows_notes():
        with suppress(OSError, ValueError):  # a stream that is closed
            print(f"note: {text}", file=sys.stderr, flush=True)
