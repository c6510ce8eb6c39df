"""What the processes of a run did in a step, by the clock: nothing of it enters a result.

busy     something was asked of it: an engine played, learners computed
bringing new weights were on their way from learners to engine
asleep   the rest of the step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

PROCESS = "process"  # begins the keys of all that is told of processes


@dataclass(slots=True, kw_only=True)
class Worked:
    """Of one process, or of those that came in its place, since the run began."""

    policies: tuple[str, ...]  # that it holds
    busy: float = 0.0  # seconds
    tokens: float | None = None  # that it sampled; None where that is not its work
    published_bytes: int = 0  # that it handed out, or took
    publish_seconds: float = 0.0

    def now(self) -> Worked:
        """As it stands."""
        return replace(self)


def told(before: Mapping[str, Worked], after: Mapping[str, Worked], seconds: float) -> dict[str, float | str]:
    """What of a step is told, of each process: ``process/{process}/…``; see ``metrics/table_timings.py``.

    Args:
        before, after: by the names of the processes, at both ends of the step.
        seconds: of the step.
    """
    found: dict[str, float | str] = {}
    for name, now in after.items():
        was = before.get(name, Worked(policies=(), tokens=None if now.tokens is None else 0.0))
        busy, publishing = now.busy - was.busy, now.publish_seconds - was.publish_seconds
        here = f"{PROCESS}/{name}"
        found[f"{here}/policies"] = " ".join(now.policies)
        if now.tokens is not None and was.tokens is not None:
            found[f"{here}/tokens_per_second"] = (now.tokens - was.tokens) / busy if busy > 0 else 0.0
        found[f"{here}/published_bytes"] = now.published_bytes - was.published_bytes
        found[f"{here}/publish_seconds"] = publishing
        found[f"{here}/asleep_seconds"] = max(0.0, seconds - busy - publishing)
    return found


def short(what: str) -> str:
    """How a process is called in figures, of how messages name it: "engine 1 of 2", "rank 0 of 2"."""
    name = what.removeprefix("the ").replace("engine's process", "engine").replace("learners' process", "learners")
    return name.replace("learners (rank", "rank").replace("(replica ", "").removesuffix(")")
