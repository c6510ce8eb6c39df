r"""How often the grader is right: ``python benchmarks/grading_study.py --data DIR [--pairs 3000] [--seed 0]``, and
beside others: ``--each 100 [--before CHECKOUT] [--lm-eval PYTHON]``.

From the gold answers of every ``.jsonl`` file under a directory are made answers of which it is known by construction
whether they are right: the same value written in another way (right), and values that are nearly the same (wrong). As
many of each kind are drawn as there are, up to an equal share, evenly over the files. Printed are

- a table by kind: graded right, wrong, not graded (with reasons);
- every disagreement;
- for each file: gold answers that equal themselves when read by math-verify (without the shortcut for equal texts),
  worked solutions whose last answer is graded right, and the gold answer of another row, graded right (it should not
  be).

With ``--each N`` instead: N gold answers of each file, each against itself in five other notations and against five
neighbours that differ (``answer_rules.py``), graded by this checkout, by math-verify as it comes, and where they are
given by another checkout and by lm-evaluation-harness (``PYTHON``: an interpreter with ``lm-eval`` 0.4, ``sympy`` and
``antlr4-python3-runtime`` 4.11, of whose tasks the answer comparisons are taken: minerva_math, by value, and
hendrycks_math, by text). Each grader is a process of its own, asked in turns of 100 pairs. A false positive is a
neighbour that is called right, a false negative a notation that is not. Seconds are CPU time a pair.

The line printed last is JSON. Left out: answers with an allowed error, several correct golds, units that
convert.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from answer_rules import BESIDE, NEIGHBOURS, NOTATIONS, OTHER, SAME, WRAPPED, five

from cotrain.core.errors import DataError
from cotrain.core.types import Grade
from cotrain.data.columns import ANY, row_of
from cotrain.data.row_files import lines_of, object_of
from cotrain.formats.answers import final_answer
from cotrain.grading.compare_texts import quick_grade, read_answer, vote_key
from cotrain.grading.pool import GradingPool


def main() -> None:
    parser = argparse.ArgumentParser(description="How often the grader is right.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument(
        "--rows", type=int, default=500, help="rows of each file, at equal distances, for the table by file"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--deadline", type=float, default=5.0, help="CPU seconds of a grade; four times as long by the clock"
    )
    parser.add_argument("--each", type=int, metavar="N", help="beside other graders, on N gold answers of each file")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout of the project")
    parser.add_argument("--lm-eval", metavar="PYTHON", help="an interpreter that has lm-eval")
    given = parser.parse_args()
    files = dict(gold_answers(given.data))
    if given.each:
        compare_graders(files, given)
        return
    pairs = drawn(files, given.pairs, random.Random(given.seed))
    with (
        GradingPool(workers=given.workers, deadline_s=given.deadline) as pool,
        ThreadPoolExecutor(given.workers) as threads,
    ):
        start = time.perf_counter()
        grades = list(threads.map(lambda pair: pool.grade(pair[2], pair[3]), pairs))
        clock = time.perf_counter() - start
        kinds = table(pairs, grades)
        by_file = {name: of_file(rows, given.rows, pool, threads) for name, rows in files.items()}
    needed = sum(quick_grade(gold, answer) is None for _, _, gold, answer in pairs)
    right = sum(grade.value is expected for (_, expected, _, _), grade in zip(pairs, grades, strict=True))
    ungraded = sum(grade.value is None for grade in grades)
    print(f"\n{len(pairs)} pairs, {needed} by math-verify: {right} as expected, {ungraded} not graded, {clock:.0f} s")
    print(json.dumps({"pairs": len(pairs), "right": right, "ungraded": ungraded, "kinds": kinds, "files": by_file}))


def gold_answers(folder: Path) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The gold answers of each file, with the worked text that leads to them where there is one."""
    for path in sorted([*folder.rglob("*.jsonl"), *folder.rglob("*.jsonl.gz")]):
        rows, left_out = [], 0
        for count, line in lines_of(path):
            try:
                content = object_of(line, f"row {count}")
                gold = row_of(content, ANY.question, ANY.answer, f"row {count}").answer
            except DataError:
                left_out += 1
                continue
            worked = content.get("answer") if "####" in str(content.get("answer")) else content.get("solution")
            rows.append((gold, worked if isinstance(worked, str) and final_answer(worked) else None))
        name = str(path.relative_to(folder))
        if rows:
            yield name, rows
        if left_out:
            print(f"{name}: {left_out} rows without a question and an answer are left out")


def drawn(
    files: dict[str, list[tuple[str, str | None]]], count: int, rng: random.Random
) -> list[tuple[str, bool, str, str]]:
    """``count`` pairs (kind, right, gold, answer): kinds in turn, and for each kind files in turn, none twice."""
    queues: dict[str, dict[str, list[tuple[str, bool, str, str]]]] = defaultdict(dict)
    for name, rows in files.items():
        golds = sorted({gold for gold, _ in rows})
        rng.shuffle(golds)
        for expected, rules in ((True, SAME), (False, OTHER)):
            for kind, rule in rules.items():
                made = [(kind, expected, gold, answer) for gold in golds if (answer := rule(gold)) not in (None, gold)]
                queues[kind][name] = made[:count]
    chosen: list[tuple[str, bool, str, str]] = []
    seen: set[tuple[str, str]] = set()
    while len(chosen) < count and any(rest for by_file in queues.values() for rest in by_file.values()):
        for kind, by_file in queues.items():
            names = [name for name, rest in by_file.items() if rest]
            if not names or len(chosen) == count:
                continue
            name = names[0]
            pair = by_file[name].pop()
            queues[kind] = {other: rest for other, rest in by_file.items() if other != name} | {name: by_file[name]}
            if (kind, pair[2]) not in seen:
                seen.add((kind, pair[2]))
                chosen.append(pair)
    return chosen


def table(pairs: list[tuple[str, bool, str, str]], grades: list[Grade]) -> dict[str, list[int]]:
    """Print the table by kind and the disagreements; returns [expected, right, wrong, not graded] by kind."""
    found: dict[str, list[int]] = {}
    odd = []
    for (kind, expected, gold, answer), grade in zip(pairs, grades, strict=True):
        mine = found.setdefault(kind, [int(expected), 0, 0, 0])
        mine[1 if grade.value else 3 if grade.value is None else 2] += 1
        if grade.value is not expected:
            odd.append(f"  {kind:28s} gold {gold!r}, answer {answer!r}: {grade.value} {grade.reason or ''}")
    print(f"{'kind':28s} {'expected':>9s} {'right':>6s} {'wrong':>6s} {'none':>5s}")
    for kind, (expected, *counts) in found.items():
        print(f"{kind:28s} {'right' if expected else 'wrong':>9s} {counts[0]:6d} {counts[1]:6d} {counts[2]:5d}")
    print(f"\n{len(odd)} disagreements:")
    print("\n".join(sorted(odd)))
    return found


def of_file(
    rows: list[tuple[str, str | None]], most: int, pool: GradingPool, threads: ThreadPoolExecutor
) -> dict[str, list[int]]:
    """Counts [right, wrong, not graded] of a file: gold with itself, worked solutions, the gold of another row."""
    step = max(1, len(rows) // most)
    some = rows[::step][:most]
    golds = sorted({gold for gold, _ in some})
    worked = [(gold, final_answer(text) or "") for gold, text in some if text]
    others = [(a, b) for a, b in zip(golds, golds[1:] + golds[:1], strict=True) if vote_key(a) != vote_key(b)]
    asked = {
        "itself": list(threads.map(lambda gold: pool.grade_in_process(*[read_answer(gold).tex] * 2), golds)),
        "worked": list(threads.map(lambda pair: pool.grade(*pair), worked)),
        "another": list(threads.map(lambda pair: pool.grade(*pair), others)),
    }
    counts = {}
    for name, grades in asked.items():
        found = Counter(grade.value for grade in grades)
        counts[name] = [found[True], found[False], found[None]]
    for (gold, answer), grade in zip(worked, asked["worked"], strict=True):
        if grade.value is not True:
            print(f"  worked: gold {gold!r}, answer {answer!r}: {grade.value} {grade.reason or ''}")
    for gold, grade in zip(golds, asked["itself"], strict=True):
        if grade.value is not True:
            print(f"  itself: gold {gold!r}: {grade.value} {grade.reason or ''}")
    for (gold, answer), grade in zip(others, asked["another"], strict=True):
        if grade.value is not False:
            print(f"  another: gold {gold!r}, answer {answer!r}: {grade.value} {grade.reason or ''}")
    print(f"{len(rows)} rows, {len(some)} looked at: {counts}")
    return counts


# -- beside other graders

SERVE = """
import importlib.util, json, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
{grader}
for line in sys.stdin:
    began, values = time.process_time(), [grade(gold, answer) for gold, answer in json.loads(line)]
    print(json.dumps([values, spent() + time.process_time() - began]), flush=True)
"""
COTRAIN = """
sys.path.insert(0, {benchmarks!r})
from grading import cpu_seconds
from cotrain.grading.pool import GradingPool
pool, last = GradingPool(workers=1, deadline_s=10.0), 0.0
def spent():
    global last
    before, last = last, cpu_seconds(pool)
    return last - before
def grade(gold, answer):
    return pool.grade(gold, answer).value
grade("x+x", "2x")
spent()
"""
MATH_VERIFY = """
from math_verify import parse, verify
spent = lambda: 0.0
def grade(gold, answer):
    try:
        return verify(parse(chr(92) + "boxed{" + gold + "}"), parse(chr(92) + "boxed{" + answer + "}"))
    except Exception:
        return None
"""
LM_EVAL = """
where = Path(importlib.util.find_spec("lm_eval").origin).parent / "tasks" / {task!r} / "utils.py"
sys.modules.setdefault("datasets", type(sys)("datasets")).Dataset = object
spec = importlib.util.spec_from_file_location("task", where)
task = importlib.util.module_from_spec(spec)
spec.loader.exec_module(task)
spent, normal = lambda: 0.0, getattr(task, "normalize_final_answer", str)
def grade(gold, answer):
    return bool(task.is_equiv(normal(answer), normal(gold)))
"""
Pair = tuple[str, bool, str, str]  # kind, right, gold, answer


class Grader:
    """A grader in a process of its own, and the CPU seconds that it took."""

    def __init__(self, python: str, program: str, path: Path | None = None) -> None:
        environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
        command = [python, "-c", SERVE.format(grader=program)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=path
        )
        self.values: list[bool | None] = []
        self.seconds = 0.0

    def ask(self, pairs: list[Pair]) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([pair[2:] for pair in pairs]) + "\n")
        self._process.stdin.flush()
        values, seconds = json.loads(self._process.stdout.readline())
        self.values += values
        self.seconds += seconds

    def close(self) -> None:
        self._process.communicate()


def compare_graders(files: dict[str, list[tuple[str, str | None]]], given: argparse.Namespace) -> None:
    """Print a table of graders, of files and of kinds, and the disagreements of the first grader."""
    rng, pairs, of_pair = random.Random(given.seed), list[Pair](), list[str]()
    for name, rows in files.items():
        golds = sorted({gold for gold, _ in rows})
        rng.shuffle(golds)
        for gold in golds[: given.each]:
            for right, tables in ((True, (NOTATIONS | SAME, WRAPPED)), (False, (NEIGHBOURS | OTHER, BESIDE))):
                made = [(kind, right, gold, answer) for kind, answer in five(gold, tables, rng)]
                pairs += made
                of_pair += [name] * len(made)
    here = Path(__file__).resolve().parent
    ours, root = COTRAIN.format(benchmarks=str(here)), here.parent
    graders = {"this checkout": Grader(sys.executable, ours, root)}
    if given.before:
        graders["the checkout before"] = Grader(sys.executable, ours, given.before)
    graders["math-verify"] = Grader(sys.executable, MATH_VERIFY)
    for task in ("minerva_math", "hendrycks_math") if given.lm_eval else ():
        graders[f"lm-eval, {task}"] = Grader(given.lm_eval, LM_EVAL.format(task=task))
    for start in range(0, len(pairs), 100):
        for grader in list(graders.values())[:: 1 if start % 200 else -1]:
            grader.ask(pairs[start : start + 100])
    for grader in graders.values():
        grader.close()
    truth = [right for _, right, _, _ in pairs]
    mine = graders["this checkout"].values
    notations, neighbours = truth.count(True), truth.count(False)
    print(f"{len(pairs)} pairs: {notations} notations, {neighbours} neighbours")
    print(
        f"{'':24s} {'false positives':>16s} {'false negatives':>16s} {'no grade':>9s} {'agrees':>7s} {'ms a pair':>9s}"
    )
    found: dict[str, Any] = {}
    for name, grader in graders.items():
        wrong = Counter((right, value) for right, value in zip(truth, grader.values, strict=True))
        agrees = sum(a is b for a, b in zip(mine, grader.values, strict=True)) / len(pairs)
        positives, negatives = wrong[False, True], wrong[True, False]
        none, ms = wrong[True, None] + wrong[False, None], 1000 * grader.seconds / len(pairs)
        found[name] = [positives, negatives, none, round(agrees, 4), round(ms, 2)]
        shares = f"{positives:6d} ({positives / neighbours:6.2%}) {negatives:6d} ({negatives / notations:6.2%})"
        print(f"{name:24s} {shares} {none:9d} {agrees:7.1%} {ms:9.2f}")
    by_file: dict[str, dict[str, list[int]]] = {}
    for name, grader in graders.items():
        for file, right, value in zip(of_pair, truth, grader.values, strict=True):
            counts = by_file.setdefault(file, {}).setdefault(name, [0, 0, 0])
            counts[0] += value is True and not right
            counts[1] += value is not True and right
            counts[2] += 1
    for file, counts in by_file.items():
        print(f"{file:40s}", *(f"{name}: {a} and {b} of {n}; " for name, (a, b, n) in counts.items()))
    for pair, value in zip(pairs, mine, strict=True):
        if value is not pair[1]:
            print("  disagrees:", *map(repr, pair), value)
    print(json.dumps({"pairs": len(pairs), "notations": notations, "graders": found, "files": by_file}))


if __name__ == "__main__":
    main()
