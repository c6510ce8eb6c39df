"""What a base can do, by the number of steps: the tables of ``docs/bases.md``.

    python benchmarks/base_table.py shipped [DIRECTORY …] [--lengths 1 9] [--problems 192] [--seed 0] [--split test]

Solving: accuracy at temperature 1 and greedy, one solution a problem, and the share that can be read. Checking, in the
words in which the role of the verifier is asked, at temperature 1 and greedy, one review a solution: balanced accuracy
of the answer's verdict and of the steps' verdicts, on solutions that the model wrote itself (at temperature 1) and on
solutions that were made (right half of the time, else with one to three errors of skill:
``data/word_problems/practice.py``, other problems). An unreadable review is wrong. Intervals (95 %) are over problems.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from cotrain import frozen, program
from cotrain.config.evaluation import held_out
from cotrain.core.seeding import seed_of
from cotrain.core.statistics import Estimate
from cotrain.core.types import Task
from cotrain.data.word_problems.practice import checked_solution
from cotrain.data.word_problems.source import study_problems
from cotrain.distributed.local import LocalBackend
from cotrain.metrics.heldout import measure_solver, measure_verifier
from cotrain.rollout.common_roles import solver, verifier
from cotrain.rollout.reviews import solve_then_verify
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.policy_store import PolicyStore

SHOWN = {
    "solving": ("solver/pass@1", "solver/greedy", "solver/parsed"),
    "checking its own solutions": (
        "own/answer", "own/answer greedy", "own/steps", "own/steps greedy", "own/right", "own/parsed",
    ),
    "checking made solutions": (
        "made/answer", "made/answer greedy", "made/steps", "made/steps greedy", "made/right", "made/parsed",
    ),
}  # fmt: skip


def measure(model: str, tasks: Sequence[Task], seed: int) -> dict[str, Estimate]:
    """All figures of one model on these problems."""
    written = {
        task.prompt: checked_solution(task.grader.problem, random.Random(seed_of("made", task.id))) for task in tasks
    }  # type: ignore[union-attr]

    def speak(fields: Mapping[str, Any], rng: random.Random) -> str:
        return written[fields["problem"]].text

    backend = LocalBackend("cpu")
    cast = PolicyStore(backend.open({"model": frozen(model), "made": program(speak)}, seed=seed))
    found: dict[str, Estimate] = {}
    for name, policy in (("own", "model"), ("made", "made")):
        for how, temperature in (("", 1.0), (" greedy", 0.0)):
            roles = {
                "solver": solver(policy, model),
                "verifier": verifier("model", model, temperature=temperature),
            }
            runner = RolloutRunner(backend.engine, cast.renderers, roles, seed_of("base table", seed))
            episodes = runner.collect(
                partial(solve_then_verify, step_rewards="none"), tasks, step=-1, split="test", group_size=1
            )
            figures = measure_verifier("verifier")(episodes)
            found[f"{name}/answer{how}"] = figures["verifier/balanced_accuracy"]
            found[f"{name}/steps{how}"] = figures["verifier/step_balanced_accuracy"]
            if not how:
                found[f"{name}/right"], found[f"{name}/parsed"] = (
                    figures["verifier/base_rate"],
                    figures["verifier/parsed"],
                )
                if name == "own":
                    solved = measure_solver("solver", 1)(episodes)
                    found |= {key: solved[key] for key in ("solver/pass@1", "solver/parsed", "solver/step_accuracy")}
    roles = {"solver": solver("model", model, temperature=0.0)}
    runner = RolloutRunner(backend.engine, cast.renderers, roles, seed_of("base table", seed))
    alone = runner.collect(
        partial(solve_then_verify, step_rewards="none", reviews=0), tasks, step=-1, split="test", group_size=1
    )
    found["solver/greedy"] = measure_solver("solver", 1)(alone)["solver/pass@1"]
    return found


def table(model: str, rows: Mapping[int, Mapping[str, Estimate]]) -> str:
    """Markdown, one table for each kind of figures."""
    parts = []
    for title, keys in SHOWN.items():
        heads = [key.partition("/")[2] for key in keys]
        lines = [f"{model}, {title}", "", f"| steps | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for steps, figures in rows.items():
            lines.append(f"| {steps} | {' | '.join(_cell(figures[key]) for key in keys)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(figure: Estimate) -> str:
    return "–" if figure.value != figure.value else f"{figure.value:.2f}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--lengths", type=int, nargs=2, default=(1, 9), metavar=("LOW", "HIGH"))
    parser.add_argument("--problems", type=int, default=192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", default="test")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    found: dict[str, dict[int, dict[str, Estimate]]] = {}
    for model in given.models:
        rows = found.setdefault(model, {})
        for steps in range(given.lengths[0], given.lengths[1] + 1):
            tasks = held_out(study_problems((steps, steps)), given.split, given.problems, given.seed)
            rows[steps] = measure(model, tasks, given.seed)
            print(model, steps, {key: round(value.value, 3) for key, value in rows[steps].items()}, flush=True)
        print(f"\n{table(model, rows)}\n", flush=True)
    print(
        json.dumps(
            {m: {n: {k: v.to_json() for k, v in row.items()} for n, row in rows.items()} for m, rows in found.items()}
        )
    )


if __name__ == "__main__":
    main()
