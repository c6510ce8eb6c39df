"""What a run has cost, from its files: batches of problems, sampled tokens, floating-point operations and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import CotrainError
from cotrain.disk.jsonl import read_jsonl
from cotrain.metrics.budget import flops_of

if TYPE_CHECKING:
    from cotrain.train.trainer import StepResult


def seconds_of(row: Mapping[str, Any]) -> float:
    """Seconds of one step, from its row of timings.jsonl: the stages, of which the engine's seconds are a part."""
    laps = (value for key, value in row.items() if key != "step" and "/" not in key)
    return float(sum(lap for lap in laps if isinstance(lap, int | float)))


def costs_of(folder: Path) -> list[dict[str, float]]:
    """What a run had spent before its first step and after each one. Every step is a batch, also one from which nothing
    could be learned."""
    seconds = {row["step"]: seconds_of(row) for row in read_jsonl(folder / "timings.jsonl")}
    now = {"batches": 0.0, "tokens": 0.0, "flops": 0.0, "seconds": 0.0}
    costs = [now]
    for row in read_jsonl(folder / "metrics.jsonl"):
        if "kind" not in row:
            now = {
                "batches": now["batches"] + 1,
                "tokens": float(row["tokens"]),
                "flops": now["flops"] + flops_of(row),
                "seconds": now["seconds"] + seconds.get(row["step"], 0.0),
            }
            costs.append(now)
    return costs


def latest_costs(folder: Path) -> dict[str, float]:
    """What a run that goes on had spent, for the time that is left; nothing where that cannot be read, which is told
    elsewhere."""
    try:
        return costs_of(folder)[-1]
    except (OSError, KeyError, CotrainError):
        return {}


def timings_row(result: StepResult) -> dict[str, float | str]:
    """A row of timings.jsonl."""
    return {"step": result.row["step"], **result.seconds, **result.engine_seconds, **result.processes}


def throughput_row(result: StepResult) -> dict[str, float | str]:
    """Tokens a second of each role while the protocol was played, and what each process did."""
    seconds = result.seconds["play"]
    sampled_tokens: dict[str, int] = {}
    for episode in result.episodes:
        for trace in episode.traces:
            sampled_tokens[trace.role] = sampled_tokens.get(trace.role, 0) + trace.sampled_count
    return {f"{role}/tokens_per_second": count / seconds for role, count in sampled_tokens.items()} | dict(
        result.processes
    )
