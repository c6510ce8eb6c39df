"""The Backend contract: who runs the policies of a run, and where. That of its processes: ``remote_policies.py``.

A recipe says *which* policies there are. A backend turns each into a handle (``policy_handles.py``), makes the engine
that they speak through, and tells that engine when weights have changed. The trainer knows handles and nothing below
them.

::

    recipe.policies ──open──▶ handles  ──▶ trainer: update, logprobs, state, load
                          └─▶ engine   ──▶ rollouts: sample, advance
    after an update: publish(policy, version) ──▶ the engine uses ``weights()`` from here on
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cotrain.algorithms.policy_loss import Bounds
from cotrain.core.types import Trace
from cotrain.distributed.policy_handles import PolicyHandle, PolicySpec, RoutingEngine


class Backend(Protocol):
    """Runs the policies of one run."""

    @property
    def engine(self) -> RoutingEngine:
        """Answers the requests of all policies; there once ``open`` has been called."""
        ...

    @property
    def bounds(self) -> Bounds | None:
        """How far the engine's log-probabilities may be from the learner's (``algorithms/policy_loss.py``); None: they
        are the learner's own."""
        ...

    def open(self, policies: Mapping[str, PolicySpec], *, seed: int) -> dict[str, PolicyHandle]:
        """Load or reach every policy. Called once. Raises ModelError and ConfigError for what cannot be used."""
        ...

    def publish(self, policy: str, version: int) -> None:
        """The weights of a policy have changed; whoever samples from it from here on samples from the new ones."""
        ...

    def lane_of(self, policy: str) -> str:
        """Where a policy's model is computed for learning: a device or a process. Policies of two lanes can be updated
        next to each other; those of one are updated one after the other."""
        ...

    def held_while_learning(self, touched: Collection[str], changed: Collection[str]) -> Collection[str] | None:
        """The policies that cannot be sampled from while learning is going on that asks ``touched`` for something and
        gives ``changed`` new weights; None where nobody can be."""
        ...

    def try_to_overlap(self) -> bool:
        """May requests be answered while policies are updated? Asked once, where a run wants that: from then on they
        are answered with the weights that were published last, also by a new engine."""
        ...

    def cache_remote_answers(self, traces: Iterable[Trace]) -> None:
        """Answers of remote policies that a ledger holds, in place of those remembered before: the same request is
        answered with them and not asked again."""
        ...

    def restart_lost_processes(self) -> None:
        """After ``ProcessLost``: every policy is at its start again, in new processes where old ones are gone."""
        ...

    def process_stats(self) -> Mapping[str, ProcessStats]:
        """The work of each process of the run so far, by its name; {} where there is none but the run's own."""
        ...

    def describe(self) -> dict[str, Any]:
        """The processes that run the policies, for the run's provenance: JSON values, no paths."""
        ...

    async def close(self) -> None:
        """Let go of processes and connections, in the loop in which they were asked. Nothing is asked any more."""
        ...


PROCESS = "process"  # prefix of the keys of metrics about processes


@dataclass(slots=True, kw_only=True)
class ProcessStats:
    """Time, tokens and bytes of one process, or of those that came in its place, since the run began; results do not
    depend on them."""

    policies: tuple[str, ...]  # that it holds
    busy: float = 0.0  # seconds in which something was asked of it: an engine generated, learners computed
    tokens: float | None = None  # that it sampled; None where that is not its work
    published_bytes: int = 0  # that it handed out, or took
    publish_seconds: float = 0.0  # in which new weights were on their way from learners to engine


def process_metrics(
    before: Mapping[str, ProcessStats], after: Mapping[str, ProcessStats], seconds: float
) -> dict[str, float | str]:
    """The metrics of each process in a step: ``process/{process}/…``; see ``docs/metrics_page.py: TIMINGS``.

    Args:
        before, after: by the names of the processes, at both ends of the step.
        seconds: of the step.
    """
    metrics: dict[str, float | str] = {}
    for name, now in after.items():
        was = before.get(name, ProcessStats(policies=(), tokens=None if now.tokens is None else 0.0))
        busy = now.busy - was.busy
        publishing = now.publish_seconds - was.publish_seconds
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
