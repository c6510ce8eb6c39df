"""Interruptions of training: updates that are not finite, lost processes, and signals that ask a run to stop.

An update whose loss or gradient is not finite changes nothing (``learner/learner.py``). Its batch is written to
``skipped.jsonl``, as the addresses of its rollouts in the ledger. Three such updates among twenty of one policy, a
policy that computes no numbers any more, or weights that are not finite end the attempt: the run goes back to its
newest checkpoint and on from there with other draws. Where that comes to the same, or there is no checkpoint, it stops
with the reason and leaves the checkpoint. What is decided depends on the rows alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from cotrain.core.errors import CotrainError, EngineLost, ProcessLost, RankShort
from cotrain.core.verbosity import count_of, shows_notes
from cotrain.metrics.starved import NON_FINITE_SUFFIX

MAX_SKIPS = 3  # skipped updates of a policy that end an attempt
SKIP_WINDOW = 20  # the last updates of it, among which they are counted
MAX_LOSSES = 3  # losses of processes in a row, without a step between them, that end a run


class NotFinite(CotrainError):
    """A policy computes what is no number. In training the run goes back once; anywhere else it is the end."""

    code = "E_NOT_FINITE"


class Diverged(CotrainError):
    """Training cannot go on from where it is, or with the processes that it has; the checkpoint before is kept."""

    code = "E_DIVERGED"


class LostProcesses:
    """Counts processes that were lost since the run last got further than before."""

    def __init__(self) -> None:
        self._furthest = -1  # the most steps that were finished at a loss
        self._count = 0

    def count_loss_or_raise(self, finished: int, lost: ProcessLost) -> None:
        """One more, when so many steps were finished. Raises Diverged when it is enough. A rank that had too little
        memory does not count: passes get smaller each time, until one sequence does not fit."""
        if isinstance(lost, RankShort):
            return
        self._count = 1 if finished > self._furthest else self._count + 1
        self._furthest = max(self._furthest, finished)
        look = "look at the machine's memory and at the processes"
        advice = f"{look}, then `cotrain resume` goes on from the newest checkpoint"
        if isinstance(lost, EngineLost):  # which was started again and again before it is told
            raise Diverged(f"stopped after step {finished}: {lost}; {advice}") from lost
        if self._count >= MAX_LOSSES:
            times = f"{count_of(self._count, 'time')} in a row without a step between them"
            raise Diverged(f"stopped after step {finished}: {lost}; {times}; {advice}") from lost


class SkipGuard:
    """Counts the skipped updates of every policy."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[bool]] = {}

    def add_row(self, row: Mapping[str, Any]) -> None:
        """The next row of metrics.jsonl. Raises NotFinite when a policy has skipped too many."""
        for key in row:
            policy, slash, rest = key.partition("/")
            if not slash or rest != "skipped":
                continue
            recent = self._recent.setdefault(policy, deque(maxlen=SKIP_WINDOW))
            recent.append(policy + NON_FINITE_SUFFIX in row)
            if sum(recent) >= MAX_SKIPS:
                raise NotFinite(
                    f"policy {policy!r} skipped {sum(recent)} of its last {len(recent)} updates, as their gradients "
                    "were not finite",
                    code="E_UPDATES_SKIPPED",
                )


# -- Being asked to stop: the first signal is remembered, the second leaves at once.


class Interrupted(Exception):
    """The run was asked to stop; its state is that of the last finished step."""

    def __init__(self, signal: int = 0) -> None:
        self.signal = signal  # number of the signal that asked, 0 when it was none
        super().__init__(f"asked to stop (signal {signal})")


class StoppedBySignal(SystemExit):
    """Raised by ``cotrain.run`` and the other verbs when a signal asked them to stop and the run was saved.

    A script that does not catch it ends as commands do: without a traceback, with the exit code of the signal (143 for
    SIGTERM, 130 for Ctrl-C)."""

    def __init__(self, signal_number: int = 0) -> None:
        self.exit_code = 128 + (signal_number or signal.SIGINT)
        super().__init__(self.exit_code)


def _say_stopping() -> None:
    """Say at once that the signal was heard: what is under way may take a while to stop. It passes all buffers,
    since a signal may have come in the middle of another line."""
    if shows_notes():
        with suppress(OSError):
            os.write(2, b"\nstopping as soon as what is under way allows; once more, and it ends at once\n")


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], int]]:
    """While inside, the first SIGINT, SIGTERM or SIGHUP (a terminal that closes) is only remembered; the second raises
    KeyboardInterrupt. Yields a function that gives the signal's number, 0 before there was one. SIGHUP is left alone
    where it is ignored, as below ``nohup``."""
    received = [0]
    if threading.current_thread() is not threading.main_thread():
        yield lambda: received[0]
        return

    def remember_signal(number: int, frame: FrameType | None) -> None:
        if received[0]:
            raise KeyboardInterrupt
        received[0] = number
        _say_stopping()

    handled = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, remember_signal) for number in handled}
    try:
        yield lambda: received[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
