"""Stopping a run by a signal: the first SIGINT or SIGTERM asks it to end at the next safe point, the second ends it at
once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """The run was asked to stop; its state is that of the last finished step."""

    def __init__(self, signal: int = 0) -> None:
        self.signal = signal  # number of the signal that asked, 0 when it was none
        super().__init__(f"asked to stop (signal {signal})")


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], int]]:
    """While inside, the first SIGINT, SIGTERM or SIGHUP (a terminal that closes) is only remembered; the second raises
    KeyboardInterrupt. Yields a function that gives the signal's number, 0 before there was one. SIGHUP is left alone
    where it is ignored, as below ``nohup``."""
    received = 0
    if threading.current_thread() is not threading.main_thread():
        yield lambda: received
        return

    def remember_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received:
            raise KeyboardInterrupt
        received = number

    handled = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, remember_signal) for number in handled}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
