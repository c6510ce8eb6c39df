"""The two halves of grading a program, which run in different processes: the program and its tests, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cotrain.grading.channel import Channel

Verdict = tuple[bool | None, str | None]  # (value, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """The two halves, see ``program_server.py``."""

    inside: Callable[[int], None]  # in the sandbox: runs what comes over the channel with this descriptor
    outside: Callable[[Channel, str, str, float], Verdict]  # takes channel, paper, program and deadline in seconds
