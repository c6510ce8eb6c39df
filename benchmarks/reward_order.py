"""How well rewards order the answers to one problem: a table from the rollouts that runs have stored.

    python benchmarks/reward_order.py runs/studies/labels-few/all --signal pay --parts 4

GRPO compares the answers of a group, so what a judge is worth as a reward is how it orders a right and a wrong answer
to one problem. Counted are such pairs, by ``--parts`` of a run: ties, which teach nothing, and of the others those in
which the right answer has the higher reward. Each folder below the given one is an arm and holds ``seed-N``; figures
are means over seeds. Problems that are sampled in a tenth of the batches or more are left out: they have labels.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from cotrain.core.errors import DataError
from cotrain.core.notes import CORRECT
from cotrain.core.types import Episode
from cotrain.storage.jsonl import read_jsonl
from cotrain.storage.ledger import Ledger

Groups = dict[str, list[tuple[float, bool]]]  # problem → (reward, is it right) of its answers


def groups_of(episodes: Sequence[Episode], signal: str) -> Groups:
    found: Groups = defaultdict(list)
    for episode in episodes:
        for trace in episode.traces:
            right, given = CORRECT.of(trace), [reward.value for reward in trace.rewards if reward.name == signal]
            if right is not None and given:
                found[episode.task_id].append((given[0], right))
    return dict(found)


def count_pairs(groups: Groups) -> Counter[str]:
    """``pairs`` of a right and a wrong answer to one problem, ``ties`` among them, and those in ``order``."""
    total: Counter[str] = Counter()
    for answers in groups.values():
        for better in (reward for reward, right in answers if right):
            for worse in (reward for reward, right in answers if not right):
                total += Counter(pairs=1, ties=int(better == worse), order=int(better > worse))
    return total


def count_run(run: Path, signal: str, parts: int) -> list[Counter[str]]:
    """The pairs of each part of a run, whose steps without the signal are left out. Raises DataError where none has
    it."""
    steps = sorted({row["step"] for row in read_jsonl(run / "metrics.jsonl") if "kind" not in row and row["step"] >= 0})
    ledger = Ledger(run / "episodes")
    sampled_steps = [groups for step in steps if (groups := groups_of(ledger.read(step), signal))]
    if not sampled_steps:
        raise DataError(f"{run}: no answer was given the signal {signal!r}; expected one of this run's signals")
    times = Counter(task for groups in sampled_steps for task in groups)
    often = {task for task, count in times.items() if 10 * count >= len(sampled_steps)}
    unlabelled = [{task: answers for task, answers in groups.items() if task not in often} for groups in sampled_steps]
    ends = [i * len(sampled_steps) // parts for i in range(parts + 1)]
    return [sum((count_pairs(groups) for groups in unlabelled[a:b]), Counter()) for a, b in pairwise(ends)]


def rows(arms: dict[str, list[list[Counter[str]]]]) -> list[str]:
    """A line an arm and part: means over its seeds; an arm without a pair, as one that plays its labels alone, has
    none."""
    lines = ["| arm | part | pairs | ties | of the others in order | by seed |", "|---|---|---|---|---|---|"]
    for arm, seeds in arms.items():
        for part, counts in enumerate(zip(*seeds, strict=True), 1):
            some = [c for c in counts if c["pairs"] > c["ties"]]
            if some:
                order = [c["order"] / (c["pairs"] - c["ties"]) for c in some]
                ties, pairs = sum(c["ties"] / c["pairs"] for c in some) / len(some), sum(c["pairs"] for c in some)
                by_seed = ", ".join(f"{value:.2f}" for value in order)
                lines.append(f"| {arm} | {part} | {pairs} | {ties:.2f} | {sum(order) / len(order):.2f} | {by_seed} |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="folder of arms, each with seed-N")
    parser.add_argument("--signal", default="pay")
    parser.add_argument("--parts", type=int, default=4)
    arguments = parser.parse_args(argv)
    arms = {
        arm.name: [count_run(run.parent, arguments.signal, arguments.parts) for run in runs]
        for arm in sorted(arguments.study.glob("*/"))
        if (runs := sorted(arm.glob("seed-*/metrics.jsonl")))
    }
    print("\n".join(rows(arms)))


if __name__ == "__main__":
    main()
