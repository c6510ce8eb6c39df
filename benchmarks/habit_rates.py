"""How often a base follows its taught habits, by temperature: a table of ``docs/bases.md``.

    python benchmarks/habit_rates.py [MODEL …] [--problems 256]
    python benchmarks/habit_rates.py MODEL … --lengths 2 3 --temperatures 0 --families plain owner

One solution to each held-out problem. Counted are the steps that trigger a habit, judged by what the solver wrote
itself:

    carry      followed where the sum lacks ten
    fewer      followed where a value is added that should be subtracted
    opposite   followed where the operation is the opposite one
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

from cotrain import frozen
from cotrain.config.evaluation import held_out
from cotrain.core.notes import CORRECT
from cotrain.core.types import Task
from cotrain.data.word_problems.corrupt import FEWER_FAMILY, HABITS, OPPOSITE
from cotrain.data.word_problems.fact import OPERATOR
from cotrain.data.word_problems.source import study_problems
from cotrain.distributed.local import LocalBackend
from cotrain.rollout.common_roles import solver
from cotrain.rollout.protocols import solve
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.policy_store import PolicyStore

LENGTHS = ((5, 6), (8, 9))
TEMPERATURES = (1.0, 0.5, 0.0)
STEP = re.compile(r"\s*(\w+)=.*?=(-?\d+)([-+*])(-?\d+)=(-?\d+) ")


def followed(problem: object, text: str) -> list[tuple[str, bool]]:
    """(habit, was it followed?) of each step that triggers one; a step that cannot be read triggers none."""
    found = []
    for step in re.findall(r"<step>(.*?)</step>", text):
        read = STEP.match(step)
        fact = problem.relations.get(read[1]) if read else None  # type: ignore[attr-defined]
        if read is None or fact is None:
            continue
        left, operator, right, result = int(read[2]), read[3], int(read[4]), int(read[5])
        if fact.operator == operator == "+" and left >= 0 and right >= 0 and left % 10 + right % 10 >= 10:
            found.append(("carry", result == left + right - 10))
        if fact.kind == "minus" and problem.family == FEWER_FAMILY:  # type: ignore[attr-defined]
            found.append(("fewer", operator == "+"))
        found.append(("opposite", operator == OPERATOR[OPPOSITE[fact.kind]]))
    return found


def measure(model: str, tasks: list[Task], temperature: float) -> tuple[float, dict[str, list[bool]]]:
    """The share of right answers, and what was done at each trigger."""
    backend = LocalBackend("cpu")
    store = PolicyStore(backend.open({"model": frozen(model)}, seed=0))
    roles = {"solver": solver("model", model, temperature=temperature)}
    runner = RolloutRunner(backend.engine, store.renderers, roles, 0)
    seen: dict[str, list[bool]] = {habit: [] for habit in HABITS}
    right = 0
    for episode in runner.collect(solve, tasks, step=-1, group_size=1):
        (trace,) = episode.traces
        right += bool(CORRECT.of(trace))
        for habit, was in followed(tasks[episode.task].grader.problem, trace.text):  # type: ignore[union-attr]
            seen[habit].append(was)
    return right / len(tasks), seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", default=["shipped-habits"])
    parser.add_argument("--problems", type=int, default=256)
    parser.add_argument("--lengths", type=int, nargs=2, help="fewest and most steps of one row")
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument("--families", nargs="+", help="wordings, by default all of them")
    given = parser.parse_args()
    heads = ["model", "steps", "temperature", "right", *(f"{habit} followed, of" for habit in HABITS)]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    families = tuple(given.families) if given.families else None
    for model in given.model:
        for length in [tuple(given.lengths)] if given.lengths else LENGTHS:
            tasks = held_out(replace(study_problems(length), families=families), "test", given.problems, 0)
            for temperature in given.temperatures:
                right, seen = measure(model, tasks, temperature)
                rates = " | ".join(f"{sum(was) / max(1, len(was)):.2f} of {len(was)}" for was in seen.values())
                print(f"| {model} | {length[0]}–{length[1]} | {temperature:g} | {right:.2f} | {rates} |", flush=True)


if __name__ == "__main__":
    main()
