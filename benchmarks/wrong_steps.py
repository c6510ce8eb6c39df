"""Which wrong steps a generator writes, and how many of them its verifier sees: a table from stored rollouts.

    python benchmarks/wrong_steps.py runs/studies/step-verdicts/all/frozen runs/studies/step-verdicts/all/outcome

Each folder is an arm of a comparison or study of word problems, and holds ``seed-N``. All steps of its sampled
solutions are counted, by ``--parts`` of a run, in kinds: right; a wrong relation, by the operation that is written; and
the reasons for which the truth calls other steps wrong (``data/word_problems/oracle.py``).

    share    steps of this kind, of all steps
    seen     of the verdicts on steps of this kind, those that say "wrong"; empty where nobody reviewed
    by seed  the share in each run
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.notes import VERDICTS
from cotrain.core.types import Episode
from cotrain.data.word_problems.oracle import parse_step
from cotrain.storage.jsonl import read_jsonl
from cotrain.storage.ledger import Ledger

WRONG_RELATION = "relation"
OPERATIONS = {"+": "adds wrongly", "-": "subtracts wrongly", "*": "multiplies wrongly"}
KINDS = ("right", *OPERATIONS.values())  # those that have rows of their own; the others are one row
OTHER = "wrong otherwise"

Counts = dict[str, Counter[str]]  # kind → "steps", "verdicts", "called wrong"


def kind_of(step: str, reason: str) -> str:
    """One of ``KINDS``, or ``OTHER``."""
    if not reason:
        return "right"
    read = parse_step(step)
    if reason != WRONG_RELATION or read is None:
        return OTHER
    return OPERATIONS[read.operator]


def steps_of(episode: Episode) -> Iterator[tuple[str, list[bool]]]:
    """The kind of each step of the solution, and what the readable reviews say of it."""
    solutions = [trace for trace in episode.traces if trace.role == "solver"]
    if len(solutions) != 1:
        return  # it broke off, or the protocol is not one of a single solution
    solution = solutions[0]
    steps = solution.findings.get("steps", [])
    reasons = solution.metadata.get("step_reasons", [])
    if len(reasons) != len(steps):
        return  # it could not be read
    verdicts = [VERDICTS.of(trace) for trace in episode.traces if trace.role == "verifier" and trace.failure is None]
    for position, (step, reason) in enumerate(zip(steps, reasons, strict=True)):
        said = [review[position] for review in verdicts if review is not None and len(review) == len(steps)]
        yield kind_of(step[2], reason), said


def count_steps(episodes: Sequence[Episode]) -> Counts:
    counts: Counts = {kind: Counter() for kind in (*KINDS, OTHER)}
    for episode in episodes:
        for kind, verdicts in steps_of(episode):
            counts[kind] += Counter(
                {"steps": 1, "verdicts": len(verdicts), "called wrong": sum(not is_right for is_right in verdicts)}
            )
    return counts


def count_run(run: Path, parts: int) -> list[Counts]:
    """The counts of each part of a run. Raises DataError where a part has no step that was judged."""
    steps = sorted({row["step"] for row in read_jsonl(run / "metrics.jsonl") if "kind" not in row and row["step"] >= 0})
    if len(steps) < parts:
        raise DataError(f"{run} has {len(steps)} training steps; expected {parts} or more, or lower --parts")
    ledger = Ledger(run / "episodes")
    ends = [part * len(steps) // parts for part in range(parts + 1)]
    counts = [count_steps([e for step in steps[a:b] for e in ledger.read(step)]) for a, b in pairwise(ends)]
    if not all(any(kind["steps"] for kind in part.values()) for part in counts):
        raise DataError(
            f"{run}: a part of it has no solution whose steps the truth judged; "
            "expected word problems with one solver, and rollouts that are stored"
        )
    return counts


def count_arm(arm: Path, parts: int) -> list[list[Counts]]:
    """``count_run`` of each run of an arm. Raises DataError where there is none."""
    runs = sorted(file.parent for file in arm.glob("seed-*/metrics.jsonl"))
    if not runs:
        raise DataError(f"{arm} holds no seed-N/metrics.jsonl; expected the folder of an arm")
    return [count_run(run, parts) for run in runs]


def rows(arm: str, runs: Sequence[Sequence[Counts]]) -> list[str]:
    """A line for each part and kind; shares are means over runs."""
    lines = []
    for part, counts_of_runs in enumerate(zip(*runs, strict=True), 1):
        for kind in (*KINDS, OTHER):
            shares = [counts[kind]["steps"] / sum(c["steps"] for c in counts.values()) for counts in counts_of_runs]
            total = sum((counts[kind] for counts in counts_of_runs), Counter())
            seen = f"{total['called wrong'] / total['verdicts']:.2f}" if total["verdicts"] else ""
            by_seed = ", ".join(f"{share:.2f}" for share in shares)
            lines.append(f"| {arm} | {part} | {kind} | {fmean(shares):.3f} | {seen} | {by_seed} |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arms", type=Path, nargs="+", help="folders of arms, each with seed-N")
    parser.add_argument("--parts", type=int, default=4)
    arguments = parser.parse_args(argv)
    try:
        tables = [rows(arm.name, count_arm(arm, arguments.parts)) for arm in arguments.arms]
    except CotrainError as error:
        parser.error(str(error))
    print("| arm | part | step | share | seen | by seed |\n|---|---|---|---|---|---|")
    print("\n".join(line for table in tables for line in table))


if __name__ == "__main__":
    main()
