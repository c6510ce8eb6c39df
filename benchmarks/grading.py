"""Throughput of grading with 5 % hostile answers against none: ``python benchmarks/grading.py [--data DIR] [--against
CHECKOUT]``.

One step's worth of answers that need algebra, all asked at once as the training loop does, by warm workers; in turn
without hostile ones and with those of each kind (``hostile_answers.py``), of which every family is there equally often.
``ratio`` is the throughput with over that without, the median over rounds: by the CPU time of the workers (they do
nothing else, so that on cores of their own it is the throughput), and by the clock. Good answers are fractions, or with
``--data`` (a folder of benchmarks, see ``grading_study.py``) their gold answers written in other ways. Each must be
graded right.

``--soak N``: as many answers on every side, so that what is learned once does not count. ``--against``: another
checkout of the project, measured in turn with this one. ``--families``: what one answer of each family costs and how it
ends, instead. The line printed last is JSON. Needs Linux, for the CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from hostile_answers import KNOWN, OTHERS, UNSEEN, Family

KINDS = {"known": KNOWN, "others": OTHERS, "unseen": UNSEEN}
Pair = tuple[str, str]  # gold and answer
KEPT: dict[Path, list[Pair]] = {}


def good_answers(count: int, data: Path | None, seed: int) -> list[Pair]:
    """Answers that are neither equal texts nor plain numbers, and right."""
    if data is None:
        return [
            ("\\frac{7}{2}x", f"\\frac{{{7 * (i + 1)}}}{{{2 * (i + 1)}}}x")
            for i in range(seed * count, (seed + 1) * count)
        ]
    pairs = list(KEPT.get(data, from_data(data)))
    random.Random(seed).shuffle(pairs)
    return [pairs[i % len(pairs)] for i in range(count)]


@cache
def from_data(folder: Path) -> tuple[Pair, ...]:
    from grading_study import drawn, gold_answers

    from cotrain.grading.compare_texts import quick_grade

    pairs = drawn(dict(gold_answers(folder)), 3000, random.Random(0))
    return tuple((gold, answer) for _, right, gold, answer in pairs if right and quick_grade(gold, answer) is None)


def cpu_seconds(pool: Any) -> float:
    """CPU time of all workers of a pool so far, and of what they have started and waited for."""
    mine = {worker._process.pid for worker in pool._idle.queue if worker is not None}
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) in mine:  # its session
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def warm_up(pool: Any, data: Path | None) -> None:
    """Let a pool grade good answers, and keep those of ``data`` that this grader knows to be right."""
    if data is None:
        measure(pool, good_answers(200, None, 99), (), 0)
        return

    async def grade_all() -> list[bool | None]:
        return [grade.value for grade in await asyncio.gather(*(pool.agrade(*pair) for pair in from_data(data)))]

    values = asyncio.run(grade_all())
    KEPT[data] = [pair for pair, value in zip(from_data(data), values, strict=True) if value]


def measure(pool: Any, good: Sequence[Pair], families: Sequence[Family], first: int) -> tuple[float, float, int]:
    """Seconds of CPU time and by the clock for as many answers as there are good ones, of which 5 % are replaced by
    hostile ones; and how many good ones were not graded right."""
    asked = list(good)
    for turn, i in enumerate(range(19, len(asked), 20) if families else ()):
        asked[i] = (asked[i][0], families[turn % len(families)](first + turn))

    async def grade_all() -> list[Any]:
        return await asyncio.gather(*(pool.agrade(*pair) for pair in asked))

    start, spent = time.perf_counter(), cpu_seconds(pool)
    grades = asyncio.run(grade_all())
    seconds, spent = time.perf_counter() - start, cpu_seconds(pool) - spent
    missed = [
        (*pair, grade) for grade, pair, one in zip(grades, asked, good, strict=True) if pair == one and not grade.value
    ]
    for one in missed:
        print("not right:", *one, file=sys.stderr, flush=True)
    return spent, seconds, len(missed)


def one_checkout(given: argparse.Namespace) -> dict[str, object]:
    """The medians of a checkout: the one that is imported."""
    from cotrain.grading.pool import WORKERS, GradingPool

    deadline = {} if given.deadline is None else {"deadline_s": given.deadline}
    sides = {"none": [], **{kind: list(KINDS[kind].values()) for kind in given.kinds}}
    cpu: dict[str, list[float]] = {side: [] for side in sides}
    clock: dict[str, list[float]] = {side: [] for side in sides}
    wrong = 0
    with GradingPool(workers=WORKERS, **deadline) as pool:
        warm_up(pool, given.data)
        for turn in range(given.rounds):
            for side, families in sides.items():
                count = given.soak or 20 * (len(families) or given.answers // 20)
                spent, seconds, missed = measure(
                    pool, good_answers(count, given.data, turn), families, 1 + turn * count // 20
                )
                cpu[side].append(1e3 * spent / count)
                clock[side].append(1e3 * seconds / count)
                wrong += missed
    return {
        "cpu_ms_for_each_answer": {side: round(median(each), 2) for side, each in cpu.items()},
        "ratio": {side: round(median(_ratios(cpu, side)), 3) for side in given.kinds},
        "ratios": {side: [round(one, 3) for one in _ratios(cpu, side)] for side in given.kinds},
        "ratio_by_the_clock": {side: round(median(_ratios(clock, side)), 3) for side in given.kinds},
        "good_answers_not_right": wrong,
    }


def _ratios(cost: dict[str, list[float]], side: str) -> list[float]:
    return [without / with_ for without, with_ in zip(cost["none"], cost[side], strict=True)]


def cost_of_families(given: argparse.Namespace) -> dict[str, object]:
    """Of each family, CPU seconds of one warm worker for an answer (the median of three), and how it ends."""
    from cotrain.grading.pool import GradingPool

    costs: dict[str, object] = {}
    deadline = {} if given.deadline is None else {"deadline_s": given.deadline}
    with GradingPool(workers=1, **deadline) as pool:
        warm_up(pool, given.data)
        good = good_answers(64, given.data, 99)
        for kind in given.kinds:
            for name, family in KINDS[kind].items():
                spent = []
                for i in (1, 2, 3):
                    gold, answer = good[i * 7]
                    before = cpu_seconds(pool)
                    grade = pool.grade(gold, family(i))
                    spent.append(cpu_seconds(pool) - before)
                    assert pool.grade_in_process(gold, answer).value is True, (
                        f"the answer after {name} was not graded right"
                    )
                ended = grade.reason or str(grade.value).lower()
                costs[f"{kind}: {name}"] = [round(median(spent), 3), ended]
                print(f"{kind:8s} {name:28s} {1e3 * median(spent):8.0f} ms  {ended}", flush=True)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput of grading with hostile answers.")
    parser.add_argument("--answers", type=int, default=400, help="without hostile ones; with them 20 for each family")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="N answers on every side, families in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deadline", type=float, help="CPU seconds of a grade (default: the checkout's own)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--families", action="store_true")
    given = parser.parse_args()
    if given.families:
        print(json.dumps(cost_of_families(given)))
        return
    if given.against is None:
        print(json.dumps(one_checkout(given)))
        return
    words = [word for word in sys.argv[1:] if word not in ("--against", str(given.against))] + ["--rounds", "1"]
    here = Path(__file__).resolve().parents[1]
    found: dict[str, list[dict[str, dict[str, float]]]] = {"this": [], "against": []}
    for _ in range(given.rounds):
        for name, root in (("this", here), ("against", given.against.resolve())):
            environment = {**os.environ, "PYTHONPATH": str(root)}
            done = subprocess.run(
                [sys.executable, __file__, *words], env=environment, capture_output=True, text=True, check=True
            )
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(name, done.stdout.splitlines()[-1], flush=True)
    print(
        json.dumps(
            {
                name: {
                    key: {side: median(one[key][side] for one in each) for side in each[0][key]}
                    for key in ("cpu_ms_for_each_answer", "ratio", "ratio_by_the_clock")
                }
                for name, each in found.items()
            }
        )
    )


if __name__ == "__main__":
    main()
