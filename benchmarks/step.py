"""One GRPO step and one Tango step, side by side, with where the time goes.

    python benchmarks/step.py [--rounds 5] [--threads 2] [--json]

Both recipes run on the embedded model with the same problems, group size and learning rate, step after step in turn
(A B A B), so that a noisy machine slows both alike. Printed are medians over the rounds and their spread. The Tango
step is a generator step: G solutions a problem and one review of each; its verifier step stands beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence

import torch

from cotrain.loop.trainer import CoTrainer
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango

STAGES = ("play", "annotate", "credit", "update")


def measure(rounds: int, tasks: int, group: int) -> dict[str, list[dict[str, float]]]:
    """Seconds by stage of every step, and tokens sampled in it."""
    shared = {"steps": 4 * rounds + 8, "tasks_per_step": tasks, "group_size": group}
    runs = {"grpo": CoTrainer(grpo(**shared)), "tango": CoTrainer(tango(warmup=0, ratio=(1, 1), **shared))}
    found: dict[str, list[dict[str, float]]] = {"grpo": [], "tango generator step": [], "tango verifier step": []}
    before = dict.fromkeys(runs, 0)
    for turn in range(rounds + 1):  # the first one warms up
        for name in ("grpo", "tango", "tango"):
            result = runs[name].step()
            tokens, before[name] = runs[name].tokens - before[name], runs[name].tokens
            label = name if name == "grpo" else f"tango {result.row['phase']} step"
            if turn:
                found[label].append({**result.seconds, "all": sum(result.seconds.values()), "tokens": tokens})
    return found


def table(found: dict[str, list[dict[str, float]]]) -> list[str]:
    lines = [
        f"{'':22s}" + "".join(f"{s:>10s}" for s in (*STAGES, "all")) + f"{'spread':>16s}{'tokens':>9s}{'tok/s':>9s}"
    ]
    for label, rows in found.items():
        middle = {s: statistics.median(r.get(s, 0.0) for r in rows) for s in (*STAGES, "all", "tokens")}
        spread = f"{min(r['all'] for r in rows):.2f}–{max(r['all'] for r in rows):.2f}"
        seconds = "".join(f"{middle[s]:10.2f}" for s in (*STAGES, "all"))
        lines.append(f"{label:22s}{seconds}{spread:>16s}{middle['tokens']:9.0f}{middle['tokens'] / middle['all']:9.0f}")
    pairs = zip(found["tango generator step"], found["grpo"], strict=True)
    ratios = sorted(a["all"] / b["all"] for a, b in pairs)
    lines.append(
        f"tango generator step / grpo step: {statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f}, {len(ratios)} pairs)"
    )
    return lines


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time one GRPO step and one Tango step side by side.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=16, help="problems a step")
    parser.add_argument("--group", type=int, default=8, help="solutions a problem")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    found = measure(given.rounds, given.tasks, given.group)
    print(json.dumps(found, indent=1) if given.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
