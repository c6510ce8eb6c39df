"""Mutation testing: one fault at a time is put into the core; the tests that run the line must see it.

    python -m tests.torture.mutation --mutants 200           one table, and every mutant that no test saw
    python -m tests.torture.mutation --by own --mutants 12   the short form

A mutant is one changed operator, comparison, constant, condition, return value or dropped call. Which ones are made
follows from the seed and the text of their lines, so that a change elsewhere leaves the choice as it is. It is killed
when a test fails:

    --by folder      of the tests of its folder: first those in the file of its name
    --by own         of those alone; only files that have such tests are changed
    --by coverage    of all tests that run the line, the fastest ones up to 40 seconds. All tests run once
                     under coverage before, which takes long; a line that no test runs is "not reached"

Tests marked ``whole`` run in no other form than the last. A server imports torch once and forks a child for every
mutant; each child has the changed file in a copy of the package. The log has one line a mutant: where the script is
stopped, the next call goes on behind it. What ``EQUIVALENT`` names can be seen by no test and is left out of the score.

Left out: docstrings, error messages, annotations and names at module level.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.reached import Reached, reached

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("algorithms", "learner", "rollout", "formats", "storage", "config", "trainer", "runs")
DEADLINE_S = 900.0  # of one mutant's tests; a mutant that hangs is killed
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
    name: str  # such as "cotrain/runs/run.py: if recipe.evaluate_every: condition negated"; lines may move
    source: str  # of the whole file with the fault


def mutants_of(file: Path, wanted: Mapping[int, str]) -> Iterator[Mutant]:
    """The mutants of a file with these numbers and names, in the order of the source."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped, number = _skipped(tree), -1
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for _, change in _changes(node):
            number += 1
            if number not in wanted:
                continue
            copy = deepcopy(tree)
            target = next(n for i, n in enumerate(ast.walk(copy)) if i == index)
            change(target)
            source = ast.unparse(ast.fix_missing_locations(copy))
            yield Mutant(file=str(file.relative_to(ROOT)), line=node.lineno, name=wanted[number], source=source)


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


def own_tests(file: str | Path) -> Path:
    """Where the tests of a file stand, if they have a file of their own."""
    return ROOT / "tests" / Path(file).parent.name / f"test_{Path(file).stem}.py"


def has_own(file: Path) -> bool:
    """Has a file such tests, and are they not all marked ``whole``?"""
    tests = own_tests(file)
    return tests.exists() and "\npytestmark = pytest.mark.whole" not in tests.read_text(encoding="utf-8")


def chosen(count: int, seed: int, *, near: bool = False) -> list[Mutant]:
    """``count`` mutants, those whose places come first by a hash of seed and name; so an edit moves no choice
    elsewhere. ``near``: of files with tests of their own."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / "cotrain" / folder).glob("**/*.py"))]
    places = [
        (hashlib.sha256(f"{seed} {name}".encode()).hexdigest(), file, number, name)
        for file in files
        if not near or has_own(file)
        for number, name in enumerate(_names(file))
    ]
    drawn = sorted(places)[:count]
    found: dict[str, Mutant] = {}
    for file in {file for _, file, _, _ in drawn}:
        numbers = {number: name for _, other, number, name in drawn if other == file}
        found |= {mutant.name: mutant for mutant in mutants_of(file, numbers)}
    return [found[name] for *_, name in drawn]


def _names(file: Path) -> list[str]:
    """Of every mutant of a file: the file, the text of the line, the fault, and which one it is of those that are
    alike."""
    text = file.read_text(encoding="utf-8")
    tree, lines, alike, names = ast.parse(text), text.splitlines(), Counter[str](), []
    skipped = _skipped(tree)
    for node in ast.walk(tree):
        if id(node) not in skipped and hasattr(node, "lineno"):
            for what, _ in _changes(node):
                name = f"{file.relative_to(ROOT)}: {lines[node.lineno - 1].strip()}: {what}"
                alike[name] += 1
                names.append(f"{name} ({alike[name]})" if alike[name] > 1 else name)
    return names


# -- running

PRELOADED = (
    "torch", "transformers", "transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3",
    "pytest", "hypothesis.strategies", "safetensors.torch", "peft", "sympy", "math_verify",
)  # fmt: skip
EQUIVALENT = {  # name of a mutant → why no test can see it
    "cotrain/prompts/decoding.py: return None if width < 0 else width: condition negated":
        "offsets are the same, by the slow way",
    'cotrain/algorithms/functional/reductions.py: if normalise == "constant" and constant is not None:: And to Or':
        "ten lines above one is refused without the other",
    "cotrain/algorithms/functional/aggregate.py: if meta is not None and top is not None:: And to Or":
        "two lines above one is refused without the other",
}  # fmt: skip


class Copy:
    """A copy of the package in which a fault stands while its tests run."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        shutil.copytree(ROOT / "cotrain", directory / "cotrain", ignore=shutil.ignore_patterns("__pycache__", "assets"))
        for assets in (ROOT / "cotrain").glob("**/assets"):
            (directory / assets.relative_to(ROOT)).symlink_to(assets)
        for name in (
            "tests",
            "docs",
            "bases",
            "benchmarks",
            "README.md",
            "CONTRIBUTING.md",
            "pyproject.toml",
            "Makefile",
        ):
            (directory / name).symlink_to(ROOT / name)

    def killed(self, mutant: Mutant, words: Sequence[str]) -> bool:
        place = self.root / mutant.file
        original = place.read_text(encoding="utf-8")
        place.write_text(mutant.source, encoding="utf-8")
        try:
            return not self.passes(words)
        finally:
            place.write_text(original, encoding="utf-8")

    def passes(self, words: Sequence[str]) -> bool:
        """Do these tests pass, and end in time? In a child of this process, which has imported neither package nor
        tests."""
        child = os.fork()
        if child == 0:
            _test(self.root, words)
        until = time.monotonic() + DEADLINE_S
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return False
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what a test left behind
        return os.waitstatus_to_exitcode(ended[1]) in (0, 5)  # 5: all of them are marked ``whole``


def _test(root: Path, words: Sequence[str]) -> None:
    code = 1
    try:
        os.setsid()
        os.chdir(root)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "cotrain")]:
            del sys.modules[name]
        sys.path.insert(0, str(root))
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words]))
    finally:
        os._exit(code)


def words_for(mutant: Mutant, by: str, tested: Reached | None) -> list[list[str]]:
    """Arguments of pytest, one call after the other; none where no test reaches the line."""
    if tested is not None:
        found = tested.tests(mutant.file, mutant.line)
        return [found] if found else []
    own = own_tests(mutant.file)
    calls = [[own]] if own.exists() else []
    if by == "folder":
        others = [file for file in sorted(own.parent.glob("test_*.py")) if file != own]
        calls += [others] if others else []
    return [["-m", "not whole", *(str(file.relative_to(ROOT)) for file in files)] for files in calls]


def work(part: int, given: argparse.Namespace, mutants: Sequence[Mutant], tested: Reached | None) -> None:
    """Every ``workers``-th mutant that the log does not have."""
    began, done, fine = time.monotonic(), {line["mutant"] for line in lines(given.log)}, set[tuple[str, ...]]()
    with tempfile.TemporaryDirectory(prefix="torture-mutation-") as place:
        copy = Copy(Path(place) / "copy")
        for mutant in mutants[part :: given.workers]:
            if mutant.name in done or mutant.name in EQUIVALENT:
                continue
            if time.monotonic() - began > given.seconds:
                return
            started, calls = time.monotonic(), words_for(mutant, given.by, tested)
            verdict = "survived" if calls else "not reached"
            for words in calls:
                if copy.killed(mutant, words):
                    if tuple(words) not in fine and not copy.passes(words):
                        raise SystemExit(f"these tests fail without any fault: {' '.join(words)}")
                    fine.add(tuple(words))
                    verdict = "killed"
                    break
            line = {"mutant": mutant.name, "verdict": verdict, "seconds": round(time.monotonic() - started, 1)}
            with given.log.open("ab") as file:
                os.write(file.fileno(), json.dumps(line).encode() + b"\n")


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def told(mutants: Sequence[Mutant], log: Path) -> tuple[str, float]:
    """The table of these mutants, and the share that was killed of those that tests could see."""
    verdicts = {line["mutant"]: line["verdict"] for line in lines(log)}
    counts: dict[str, Counter[str]] = {folder: Counter() for folder in (*FOLDERS, "all")}
    seen = []
    for mutant in mutants:
        verdict = "equivalent" if mutant.name in EQUIVALENT else verdicts.get(mutant.name, "left out")
        for group in (Path(mutant.file).parts[1], "all"):
            counts[group][verdict] += 1
        if verdict in ("survived", "not reached"):
            seen.append(f"{verdict}: {mutant.name} (line {mutant.line})")
    columns = ("killed", "survived", "not reached", "equivalent", "left out")
    rows = [f"| folder | {' | '.join(columns)} | score |", "|---|---|---|---|---|---|---|"]
    share = 0.0
    for folder, found in counts.items():
        tried = found["killed"] + found["survived"] + found["not reached"]
        share = found["killed"] / tried if tried else 0.0
        rows.append(f"| {folder} | {' | '.join(str(found[c]) for c in columns)} | {share:.1%} |")
    return "\n".join([*seen, *rows]), share


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new mutant is begun after this")
    parser.add_argument("--by", choices=("folder", "own", "coverage"), default="folder", help="which tests run")
    parser.add_argument("--least", type=float, default=AIM, help="score below which the command fails")
    parser.add_argument("--cache", type=Path, default=ROOT / ".make" / "mutation", help="of what tests reach")
    parser.add_argument("--log", type=Path, default=None, help="to go on from; none: one that is thrown away")
    parser.add_argument("--told", action="store_true", help="only the table of what the log has")
    given = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    mutants = chosen(given.mutants, given.seed, near=given.by == "own")
    with tempfile.TemporaryDirectory(prefix="torture-mutation-") as place:
        given.log = given.log or Path(place) / "log.jsonl"
        given.log.parent.mkdir(parents=True, exist_ok=True)
        codes = [] if given.told else _work(given, mutants)
        table, share = told(mutants, given.log)
    print(table)
    return 0 if share >= given.least and not any(codes) else 1


def _work(given: argparse.Namespace, mutants: Sequence[Mutant]) -> list[int]:
    """In forked workers; their exit codes."""
    tested = reached(given.cache) if given.by == "coverage" else None
    for name in PRELOADED:
        with suppress(ImportError):
            __import__(name)
    workers = []
    for part in range(given.workers):
        if (worker := os.fork()) == 0:
            code = 1
            try:
                work(part, given, mutants, tested)
                code = 0
            except BaseException:  # noqa: BLE001 - the worker ends
                traceback.print_exc()
            finally:
                os._exit(code)
        workers.append(worker)
    return [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]


if __name__ == "__main__":
    raise SystemExit(main())
