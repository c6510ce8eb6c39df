"""Descriptions of the figures in ``timings.jsonl``. They are no part of ``table.py``: no alarm watches them."""

from __future__ import annotations

from cotrain.metrics.metric import COUNT, SECONDS, Metric

TIMINGS = (
    Metric(key="step", meaning="the step, from 0", unit=COUNT),
    Metric(key="{stage}", meaning="seconds of `play`, `annotate`, `credit`, `reference` and `update`", unit=SECONDS),
    Metric(
        key="{policy}/seconds", unit=SECONDS,
        meaning="of `play`, what the engine (all replicas) spent on this policy; a role's share is its policy's",
    ),
    Metric(
        key="process/{process}/policies", unit="",
        meaning="of `--backend ray`, for each process of the run (engines, replicas, learners, ranks): what it holds",
    ),
    Metric(
        key="process/{process}/tokens_per_second", unit="tokens",
        meaning="of an engine: tokens sampled in the step, by the seconds in which it played",
    ),
    Metric(
        key="process/{process}/published_bytes", unit=COUNT,
        meaning="of weights in the step: that learners (of ranks the first) handed out, each once; that an engine took",
    ),
    Metric(
        key="process/{process}/publish_seconds", unit=SECONDS,
        meaning="in which these weights were on their way",
    ),
    Metric(
        key="process/{process}/asleep_seconds", unit=SECONDS,
        meaning="of the step in which nothing was asked of the process",
    ),
)  # fmt: skip
