"""Finished runs, written as a run writes them: a comparison of them trains nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotrain.runs.directory import RunDirectory

PROBLEMS = 16


def made_run(
    folder: Path,
    after: Mapping[str, float],
    *,
    steps: int = 4,
    tokens: int = 100,
    before: Mapping[str, float] | None = None,
    alarms: Sequence[Mapping[str, object]] = (),
) -> None:
    """A run of ``steps`` steps that ends with these figures, alike on every problem; each step costs a second and, of
    operations, ten times its tokens."""
    folder.mkdir(parents=True)
    start = dict.fromkeys(after, 0.25) if before is None else dict(before)
    rows: list[dict[str, object]] = [{"step": -1, "kind": "evaluation", **{f"eval/{k}": v for k, v in start.items()}}]
    for step in range(steps):
        rows.append({"step": step, "tokens": tokens * (step + 1), "generator/flops/sampling": 10 * tokens})
    rows.append({"step": steps - 1, "kind": "evaluation", **{f"eval/{k}": v for k, v in after.items()}})
    _lines(folder / "metrics.jsonl", rows)
    _lines(folder / "timings.jsonl", [{"step": i, "rollout": 0.75, "update": 0.25} for i in range(steps)])
    said = {key: {str(i): value for i in range(PROBLEMS)} for key, value in after.items()}
    summary = {"tokens": tokens * steps, "steps": steps, "updates": {"generator": steps}, "alarms": list(alarms)}
    summary |= {
        "before": {k: {"value": v} for k, v in start.items()},
        "after": {k: {"value": v} for k, v in after.items()},
    }
    settings = {"steps": steps, "flops": None, "policies": {}}
    origin = {"target": "x", "arguments": {}, "overrides": []}
    recipe = {"name": "x", "steps": steps, "checkpoint_every": 1, "settings": settings, "origin": origin}
    RunDirectory(folder).write_with_hashes(
        {"after_problems.json": said, "summary.json": summary, "recipe.json": recipe}
    )


def _lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
