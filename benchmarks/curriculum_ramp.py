"""The problems of ``curriculum-ramp.toml``, and what its runs say of problems of each length.

    python benchmarks/curriculum_ramp.py problems runs/curriculum-ramp/problems.jsonl
    python benchmarks/curriculum_ramp.py lengths docs/results/curriculum-ramp/all/problems.json.gz
    python benchmarks/curriculum_ramp.py shares runs/studies/curriculum-ramp/all

``problems`` writes the problems that are trained on as a file for `cotrain eval`, whose samples order them. ``lengths``
prints the greedy accuracy of each arm at its end by the number of steps of a test problem, over all seeds. ``shares``
prints, by quarters of the runs, among which share of the problems the arms drew and how often they were right.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.config.evaluation import held_out
from cotrain.core.types import Task
from cotrain.data.word_problems.source import study_problems
from cotrain.storage.jsonl import read_jsonl

PROBLEMS = 1024
STEPS = (1, 8)  # fewest and most steps of a problem
GREEDY = "solver/greedy"


class ManyLengths:
    """Word problems of 1 to 8 steps, ``PROBLEMS`` of them to train on."""

    name = "many-lengths"

    def __init__(self) -> None:
        self.problems = study_problems(STEPS)

    def get(self, split: str, index: int) -> Task:
        """A problem. Raises IndexError past the last one to train on."""
        size = self.size(split)
        if size is not None and not 0 <= index < size:
            raise IndexError(f"{self.name}: index {index} of split {split!r}, which has {size} problems")
        return self.problems.get(split, index)

    def size(self, split: str) -> int | None:
        """Endless, but for the problems to train on. Raises UnknownName for a split that there is not."""
        held_out_size = self.problems.size(split)
        return PROBLEMS if split == "train" else held_out_size

    def describe(self) -> dict[str, Any]:
        """It has no settings."""
        return {"kind": self.name, "settings": {}}


def write_problems(path: Path) -> None:
    """The problems to train on, one row each."""
    source = ManyLengths()
    tasks = [source.get("train", index) for index in range(PROBLEMS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"question": task.prompt, "answer": task.gold}) + "\n" for task in tasks))


def print_lengths(path: Path) -> None:
    """A table of greedy accuracy by steps, from the ``problems.json.gz`` of a comparison."""
    source = ManyLengths()
    lengths = range(STEPS[0], STEPS[1] + 1)
    print("| arm | " + " | ".join(map(str, lengths)) + " |")
    print("|---|" + "---|" * len(lengths))
    for arm, seeds in json.loads(gzip.decompress(path.read_bytes())).items():
        right = defaultdict[int, list[float]](list)  # steps → of each test problem
        for seed, figures in seeds.items():
            tasks = held_out(source, "test", len(figures[GREEDY]), int(seed))
            for place, task in enumerate(tasks):
                right[int(task.difficulty)].append(figures[GREEDY][str(place)])
        print(f"| {arm} | " + " | ".join(f"{mean(right[steps]):.2f}" for steps in lengths) + " |")
    print("| problems | " + " | ".join(str(len(right[steps])) for steps in lengths) + " |")


def print_shares(folder: Path) -> None:
    """A table of what the arms of a comparison drew and solved, by quarters of each run, means over seeds."""
    print("| arm | share of the problems | right solutions | solutions without spread | batches |")
    print("|---|---|---|---|---|")
    for arm in sorted(path for path in folder.iterdir() if path.is_dir()):
        runs = [training_rows(run) for run in sorted(arm.glob("seed-*")) if run.is_dir()]
        shares = quarters([[row.get("ramp/share", 1.0) for row in rows] for rows in runs])
        right = quarters([[row["solver/accuracy"] for row in rows] for rows in runs])
        flat = quarters([[flat_share(row) for row in rows] for rows in runs])
        batches = mean(len(rows) for rows in runs)
        print(f"| {arm.name} | {shares} | {right} | {flat} | {batches:.0f} |")


def training_rows(directory: Path) -> list[Mapping[str, Any]]:
    return [row for row in read_jsonl(directory / "metrics.jsonl") if row.get("kind") != "evaluation"]


def flat_share(row: Mapping[str, Any]) -> float:
    """The share of the solutions from which nothing was learned: all to their problem earned the same."""
    return row.get("generator/dropped/zero_spread", 0) / row["solver/traces"]


def quarters(runs: Sequence[Sequence[float]]) -> str:
    """The mean of a figure of each step in each quarter of the runs."""
    values: list[list[float]] = [[], [], [], []]
    for steps in runs:
        for place, value in enumerate(steps):
            values[4 * place // len(steps)].append(value)
    return ", ".join(f"{mean(quarter):.2f}" for quarter in values)


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"problems": write_problems, "lengths": print_lengths, "shares": print_shares}
    parser.add_argument("command", choices=list(commands))
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    commands[given.command](given.path)


if __name__ == "__main__":
    main()
