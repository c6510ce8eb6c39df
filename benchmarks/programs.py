"""What running a program costs in each kind of sandbox that works here: ``python benchmarks/programs.py [--data
KIND=FILE ...]``.

A trivial program with two tests, by one warm worker of each kind, in turn: milliseconds by the clock from asking to the
grade, with all that has to be done before the next one can be asked. With ``--data`` (mbpp=FILE, humaneval=FILE) the
reference programs are graded too, in the kind that a run would choose: each should be right.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from cotrain.data.program_tests import paper_of
from cotrain.data.programs import suite_tasks
from cotrain.grading.isolation import JUDGING, MEMORY_BYTES, sandbox_fault
from cotrain.grading.pool import GradingPool
from cotrain.grading.sandbox import KINDS, Kind

GOOD = "def twice(x):\n    return 2 * x\n"
PAPER = paper_of(before="", tests="assert twice(2) == 4\nassert twice(-1) == -2", solution=GOOD)
EACH = 25  # programs of a kind in one turn


def costs(rounds: int) -> dict[Kind, list[float]]:
    """Seconds of each program, for each kind that works."""
    pools: dict[Kind, GradingPool] = {}
    for kind in KINDS:
        if problem := sandbox_fault(kind):
            print(f"{kind:12s} not here: {problem}")
        else:
            pools[kind] = GradingPool(judging=(JUDGING,), memory=MEMORY_BYTES, sandbox=kind)
    taken: dict[Kind, list[float]] = {kind: [] for kind in pools}
    for turn in range(rounds + 1):  # the first warms up
        for kind, pool in pools.items():
            for _ in range(EACH):
                began = time.perf_counter()
                assert pool.grade_in_process(PAPER, GOOD).value is True
                if turn:
                    taken[kind].append(time.perf_counter() - began)
    for pool in pools.values():
        pool.close()
    return taken


def references(kind: str, path: str) -> None:
    """Grade the reference programs of a benchmark."""
    tasks = suite_tasks(kind, [path])
    began = time.perf_counter()
    wrong = [task.id for task in tasks if task.grade(f"<answer>{task.gold}</answer>").value is not True]
    each = (time.perf_counter() - began) / len(tasks)
    tasks[0].judge.close()
    print(
        f"{path}: {len(tasks) - len(wrong)} of {len(tasks)} reference programs are right, {1000 * each:.1f} ms each "
        f"{wrong}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data", nargs="*", default=[], metavar="KIND=FILE", help="mbpp=FILE or humaneval=FILE")
    given = parser.parse_args()
    for kind, seconds in costs(given.rounds).items():
        low, high = sorted(seconds)[len(seconds) // 10], sorted(seconds)[9 * len(seconds) // 10]
        print(
            f"{kind:12s} {1000 * median(seconds):6.1f} ms (a tenth below {1000 * low:.1f}, a tenth above "
            f"{1000 * high:.1f})"
        )
    for words in given.data:
        references(*words.split("=", 1))


if __name__ == "__main__":
    main()
