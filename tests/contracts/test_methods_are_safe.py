"""What makes a method safe to interrupt, delay and repeat is read from its code: it draws by address alone, asks no
clock, and walks over no set, whose order differs between processes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cotrain

ROOT = Path(cotrain.__file__).parent
FOLDERS = ("recipes", "envs", "rollout")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
CLOCKS = {"time", "datetime", "secrets", "uuid"}
DRAWS = {"choice", "choices", "randint", "random", "randrange", "sample", "shuffle", "uniform", "gauss"}
MEASURES_SECONDS = {  # files that wait, or that say how long something took
    "envs/agent/keeper.py",
    "envs/agent/rollout.py",
    "envs/agent/server.py",
    "rollout/event_loop.py",
    "rollout/http_server.py",
}
MAKES_SETS = (ast.Set, ast.SetComp)


def is_set(node: ast.expr) -> bool:
    if isinstance(node, MAKES_SETS):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")


def unsafe_places(tree: ast.AST, *, may_ask_clocks: bool) -> Iterator[tuple[int, str]]:
    """(line, what is unsafe there)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            asked = CLOCKS & {module or "", *names}
            if asked and not may_ask_clocks:
                yield node.lineno, f"imports {', '.join(sorted(asked))}"
            if module == "random" and names != ["Random"]:
                yield node.lineno, "draws from a generator that has no address"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "random" and node.attr in DRAWS:
                yield node.lineno, f"random.{node.attr} has no address; use rng_of"
            if node.value.id == "torch" and node.attr in ("rand", "randn", "randint", "multinomial"):
                yield node.lineno, f"torch.{node.attr} has no address; use rng_of"
        walked = [node.iter] if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) else []
        if any(is_set(iterated) for iterated in walked):
            yield node.iter.lineno, "walks over a set; sort it"


def test_every_folder_of_methods_is_read():
    assert {"tango.py", "server.py", "reviews.py"} <= {file.name for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_a_method_draws_by_address_and_asks_no_clock(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    may_ask_clocks = str(file.relative_to(ROOT)) in MEASURES_SECONDS
    assert not [*unsafe_places(tree, may_ask_clocks=may_ask_clocks)]


@pytest.mark.parametrize(
    "code",
    [
        "import time",
        "from time import perf_counter",
        "from random import choice",
        "import random\nrandom.shuffle(answers)",
        "for name in {'a', 'b'}: print(name)",
        "texts = [t for t in set(texts)]",
        "import torch\ntorch.rand(3)",
    ],
)
def test_what_is_unsafe_is_found(code):
    assert [*unsafe_places(ast.parse(code), may_ask_clocks=False)]
