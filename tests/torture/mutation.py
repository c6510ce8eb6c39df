"""Mutation testing: one fault at a time is put into the core; the tests that run the line must see it.

    python -m tests.torture.mutation --mutants 200          one table, and every mutant that no test saw
    python -m tests.torture.mutation --mutants 12 --seconds 150     the short form of the continuous checks

A mutant is one changed operator, comparison, constant, condition, return value or dropped call. Which line it changes
follows from the seed and the source, so the same commit gives the same mutants. All tests run once under coverage,
which notes the tests that reach each line; a mutant is killed when one of these fails. The fastest ones run, up to
``BUDGET_S`` seconds for a mutant.

Left out: docstrings, error messages, annotations, names at module level and lines that no test reaches, which are
counted apart ("not reached").
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from coverage.numbits import numbits_to_nums

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("functional", "learn", "play", "text", "disk", "loop", "metrics")
BUDGET_S = 40.0  # of tests for one mutant, by how long they took without a fault; at least one runs
DEADLINE_S = 180.0  # of one mutant's tests; a mutant that hangs is killed
AIM = 0.9

_COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault."""

    file: str  # relative to the root
    line: int
    what: str  # such as "< to <="
    source: str  # of the whole file with the fault


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of the source."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = _skipped(tree)
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for what, change in _changes(node):
            copy = deepcopy(tree)
            target = next(n for i, n in enumerate(ast.walk(copy)) if i == index)
            change(target)
            source = ast.unparse(ast.fix_missing_locations(copy))
            yield Mutant(file=str(file.relative_to(ROOT)), line=node.lineno, what=what, source=source)


def _changes(node: ast.AST):
    """The faults that fit a node: what they do, and a function that does it to a copy."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
        new = _COMPARE[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} to {new.__name__}", lambda n: n.ops.__setitem__(0, new())
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not isinstance(node.left, ast.JoinedStr):
        swapped = _ARITHMETIC[type(node.op)]
        yield f"{type(node.op).__name__} to {swapped.__name__}", lambda n: setattr(n, "op", swapped())
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield f"{type(node.op).__name__} to {other.__name__}", lambda n: setattr(n, "op", other())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield (
            "not dropped",
            lambda n: (
                setattr(n, "op", ast.UAdd())
                or setattr(n, "operand", ast.Call(func=ast.Name("bool", ast.Load()), args=[n.operand], keywords=[]))
            ),
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} to {not node.value}", lambda n: setattr(n, "value", not n.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} to {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)
    elif isinstance(node, ast.If | ast.IfExp):
        yield "condition negated", lambda n: setattr(n, "test", ast.UnaryOp(op=ast.Not(), operand=n.test))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call dropped", lambda n: setattr(n, "value", ast.Constant(value=None))
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "returns None", lambda n: setattr(n, "value", ast.Constant(value=None))


def _skipped(tree: ast.AST) -> set[int]:
    """Nodes that are left alone: annotations, raised messages, docstrings, imports, module-level names, decorators."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            parts = [node]
        elif isinstance(node, ast.AnnAssign | ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts = [node]
        for part in parts:
            if part is not None:
                found.update(id(child) for child in ast.walk(part))
    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.Assign | ast.Expr):
            found.update(id(child) for child in ast.walk(node))
    return found


def chosen(count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, as many of each folder as its share of all, drawn by the seed."""
    chance = random.Random(seed)
    places = [
        (file, number)
        for folder in FOLDERS
        for file in sorted((ROOT / "cotrain" / folder).glob("**/*.py"))
        for number in range(_count(file))
    ]
    drawn = sorted(chance.sample(range(len(places)), min(count, len(places))))
    wanted: dict[Path, set[int]] = {}
    for i in drawn:
        wanted.setdefault(places[i][0], set()).add(places[i][1])
    return [m for file, numbers in wanted.items() for n, m in enumerate(mutants_of(file)) if n in numbers]


def _count(file: Path) -> int:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = _skipped(tree)
    return sum(
        len(list(_changes(node))) for node in ast.walk(tree) if id(node) not in skipped and hasattr(node, "lineno")
    )


# -- which tests reach a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What the tests run without a fault."""

    lines: dict[str, dict[int, list[str]]]  # file → line → tests
    seconds: dict[str, float]  # of each test

    def tests(self, mutant: Mutant) -> list[str]:
        """The fastest tests that run the line."""
        found, spent = list[str](), 0.0
        for test in sorted(self.lines.get(mutant.file, {}).get(mutant.line, ()), key=lambda t: (self.seconds[t], t)):
            spent += self.seconds[test]
            if found and spent > BUDGET_S:
                break
            found.append(test)
        return found


def reached(cache: Path) -> Reached:
    """Of this source; found once and kept in ``cache``."""
    digest = hashlib.sha256()
    for file in sorted([*(ROOT / "cotrain").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        digest.update(file.read_bytes())
    kept = cache / f"reached-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        lines, seconds = _measure(cache)
        kept.write_text(json.dumps([lines, seconds]), encoding="utf-8")
    lines, seconds = json.loads(kept.read_text(encoding="utf-8"))
    return Reached(lines={f: {int(n): t for n, t in found.items()} for f, found in lines.items()}, seconds=seconds)


def _measure(cache: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    data, settings, durations = cache / "coverage", cache / "coveragerc", cache / "durations.json"
    settings.write_text(f"[run]\nsource = cotrain\ndata_file = {data}\n", encoding="utf-8")
    words = ["-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p", "tests.torture.contexts"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "COTRAIN_TEST_DURATIONS": str(durations)}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the tests fail without any fault:\n{done.stdout[-2000:]}")
    found: dict[str, dict[int, list[str]]] = {}
    with sqlite3.connect(data) as base:
        rows = base.execute(
            "select file.path, context.context, line_bits.numbits from line_bits "
            "join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
        )
        for path, context, bits in rows:
            if not context:
                continue
            lines = found.setdefault(str(Path(path).relative_to(ROOT)), {})
            for line in numbits_to_nums(bits):
                lines.setdefault(line, []).append(context)
    return found, json.loads(durations.read_text(encoding="utf-8"))


# -- running


class Copy:
    """A copy of the package in which a fault stands while its tests run."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        shutil.copytree(ROOT / "cotrain", directory / "cotrain", ignore=shutil.ignore_patterns("__pycache__", "assets"))
        (directory / "cotrain" / "assets").symlink_to(ROOT / "cotrain" / "assets")
        for name in ("tests", "docs", "benchmarks", "README.md", "CONTRIBUTING.md", "pyproject.toml", "Makefile"):
            (directory / name).symlink_to(ROOT / name)

    def killed(self, mutant: Mutant, tests: Sequence[str]) -> bool:
        place = self.root / mutant.file
        original = place.read_text(encoding="utf-8")
        place.write_text(mutant.source, encoding="utf-8")
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        try:
            done = subprocess.run(words, cwd=self.root, env=env, capture_output=True, timeout=DEADLINE_S, check=False)
            return done.returncode != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            place.write_text(original, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new mutant is begun after this")
    parser.add_argument("--cache", type=Path, default=ROOT / ".make" / "mutation")
    given = parser.parse_args(argv)
    began = time.monotonic()
    tested = reached(given.cache)
    mutants = chosen(given.mutants, given.seed)
    survived: list[Mutant] = []
    counts: Counter[str] = Counter()

    with tempfile.TemporaryDirectory() as place:
        copies = [Copy(Path(place) / str(n)) for n in range(given.workers)]
        free = list(copies)

        def judge(mutant: Mutant) -> tuple[Mutant, str]:
            tests = tested.tests(mutant)
            if not tests:
                return mutant, "not reached"
            if time.monotonic() - began > given.seconds:
                return mutant, "left out"
            copy = free.pop()
            try:
                return mutant, "killed" if copy.killed(mutant, tests) else "survived"
            finally:
                free.append(copy)

        with ThreadPoolExecutor(given.workers) as pool:
            for mutant, verdict in pool.map(judge, mutants):
                counts[verdict] += 1
                if verdict == "survived":
                    survived.append(mutant)
                    print(f"survived: {mutant.file}:{mutant.line}: {mutant.what}", flush=True)
                elif verdict == "not reached":
                    print(f"not reached: {mutant.file}:{mutant.line}: {mutant.what}", flush=True)
    tried = counts["killed"] + counts["survived"] + counts["not reached"]
    share = counts["killed"] / tried if tried else 0.0
    print(f"| mutants | killed | survived | not reached | left out | score |\n|{'---|' * 6}")
    row = (tried, counts["killed"], counts["survived"], counts["not reached"], counts["left out"], f"{share:.1%}")
    print("| " + " | ".join(map(str, row)) + " |")
    return 0 if share >= AIM else 1


if __name__ == "__main__":
    raise SystemExit(main())
