"""Time, tokens and bytes of each process of a run in a step; results do not depend on them.

busy     something was asked of it: an engine played, learners computed
bringing new weights were on their way from learners to engine
asleep   the rest of the step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROCESS = "process"  # begins the keys of all that is told of processes


@dataclass(slots=True, kw_only=True)
class ProcessStats:
    """Of one process, or of those that came in its place, since the run began."""

    policies: tuple[str, ...]  # that it holds
    busy: float = 0.0  # seconds
    tokens: float | None = None  # that it sampled; None where that is not its work
    published_bytes: int = 0  # that it handed out, or took
    publish_seconds: float = 0.0


def process_metrics(
    before: Mapping[str, ProcessStats], after: Mapping[str, ProcessStats], seconds: float
) -> dict[str, float | str]:
    """What of a step is told, of each process: ``process/{process}/…``; see ``metrics/table_timings.py``.

    Args:
        before, after: by the names of the processes, at both ends of the step.
        seconds: of the step.
    """
    metrics: dict[str, float | str] = {}
    for name, now in after.items():
        was = before.get(name, ProcessStats(policies=(), tokens=None if now.tokens is None else 0.0))
        busy, publishing = now.busy - was.busy, now.publish_seconds - was.publish_seconds
        prefix = f"{PROCESS}/{name}"
        metrics[f"{prefix}/policies"] = " ".join(now.policies)
        if now.tokens is not None and was.tokens is not None:
            metrics[f"{prefix}/tokens_per_second"] = (now.tokens - was.tokens) / busy if busy > 0 else 0.0
        metrics[f"{prefix}/published_bytes"] = now.published_bytes - was.published_bytes
        metrics[f"{prefix}/publish_seconds"] = publishing
        metrics[f"{prefix}/asleep_seconds"] = max(0.0, seconds - busy - publishing)
    return metrics


def short_name(what: str) -> str:
    """How a process is called in figures, of how messages name it: "engine 1 of 2", "rank 0 of 2"."""
    name = what.removeprefix("the ").replace("engine's process", "engine").replace("learners' process", "learners")
    return name.replace("learners (rank", "rank").replace("(replica ", "").removesuffix(")")
