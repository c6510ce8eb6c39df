"""The two halves of grading a program, which run in different processes: one runs the program, in a sandbox; the other
has the tests and gives the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cotrain.grading.channel import Channel

Verdict = tuple[bool | None, str | None]  # value and reason of a ``Grade`` (``core/types.py``)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """The functions of the two processes, which ``program_server.py`` starts."""

    runner: Callable[[int], None]  # in the sandbox: runs the program that comes over the channel on this descriptor
    examiner: Callable[[Channel, str, str, float], Verdict]  # (channel, gold, program, deadline_s) → verdict
