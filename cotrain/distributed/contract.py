"""The Backend contract: who runs the policies of a run, and where. Contract of its processes: ``remote_policies.py``.

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
        """Announce that the weights of a policy have changed: from here on the engine samples from the new ones."""
        ...

    def lane_of(self, policy: str) -> str:
        """The device or the process in which a policy learns. Policies of different lanes can be updated at once, those
        of one lane one after the other."""
        ...

    def held_while_learning(self, computing: Collection[str], changed: Collection[str]) -> Collection[str] | None:
        """The policies that cannot be sampled from during an update. None: no policy can be.

        Args:
            computing: policies that compute in the update, because they learn or because they score tokens.
            changed: those among them that get new weights.
        """
        ...

    def try_to_overlap(self) -> bool:
        """Switch to answering requests while policies are updated; False if this backend cannot. From then on requests
        are answered with the weights that were published last, also by an engine that is started again."""
        ...

    def cache_remote_answers(self, traces: Iterable[Trace]) -> None:
        """Remember the answers of remote policies in these traces, and forget those remembered before. A request that
        has an answer here is not sent to its server again."""
        ...

    def restart_lost_processes(self) -> None:
        """Start processes again after ``ProcessLost``. Every policy then has its initial weights."""
        ...

    def process_stats(self) -> Mapping[str, ProcessStats]:
        """Process → its work so far; {} if the run has no process but its own."""
        ...

    def describe(self) -> dict[str, Any]:
        """The processes that run the policies, for the run's provenance: JSON values, no paths."""
        ...

    async def close(self) -> None:
        """End processes and close connections, in the event loop in which requests were made. No request may follow."""
        ...


PROCESS = "process"  # prefix of the keys of metrics about processes


@dataclass(slots=True, kw_only=True)
class ProcessStats:
    """Time, tokens and bytes of one process since the run began, with those of processes that it took the place of.
    Results do not depend on them."""

    policies: tuple[str, ...]  # the policies that it holds
    busy: float = 0.0  # seconds in which it worked: an engine generated, or learners computed
    tokens: float | None = None  # tokens that it sampled; None for a process of learners
    published_bytes: int = 0  # bytes of weights that it sent or received
    publish_seconds: float = 0.0  # seconds in which new weights were on their way from learners to engine


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
