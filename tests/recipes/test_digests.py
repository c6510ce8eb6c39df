"""Every recipe's first three steps are those that were stored: weights, optimizer state, metrics and ledger, bit for
bit. Products of matrices differ between processors, so digests are stored for one kind of machine and skipped on
others. After a change that is meant to change results: ``python -m tests.recipes.test_digests``."""

import gzip
import hashlib
import json
import multiprocessing
import sys
from pathlib import Path

import pytest
import torch

from cotrain.config.recipe import Recipe
from cotrain.config.registry import find_recipe
from cotrain.recipes import NAMES as SHIPPED
from cotrain.storage.ledger import encode_member
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY
from tests.recipes.test_recipes import CASES, SMALL, built

STEPS = 3
STORED = Path(__file__).parents[1] / "assets" / "digests.json"
OTHERS = {
    "grpo": {},
    "tango": {"warmup": 1, "reviews": 2},
    "demo": {"warmup": 1},
}  # recipes that CASES leaves to others


def machine() -> str:
    """What the bits of a product depend on."""
    names = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    }
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {', '.join(sorted(names))}"


def digest_of(name: str) -> str:
    if name in OTHERS:
        arguments = {"tasks": EASY, **SMALL, **OTHERS[name]}
        if name == "demo":
            del arguments["tasks"]
        recipe = find_recipe(name)(**arguments)
    else:
        recipe = built(name)
    return digest_of_steps(recipe)


def digest_of_steps(recipe: Recipe) -> str:
    torch.set_num_threads(1)
    trainer = CoTrainer(recipe)
    found = hashlib.sha256()
    for step in range(STEPS):
        done = trainer.step()
        found.update(json.dumps(done.row, sort_keys=True).encode())
        found.update(gzip.decompress(encode_member(step, done.episodes, done.advantages)))
    found.update(json.dumps(trainer.state(), sort_keys=True).encode())
    for policy, tensors in sorted(trainer.policies.tensors().items()):
        for key, tensor in sorted(tensors.items()):
            found.update(f"{policy} {key}".encode() + tensor.numpy().tobytes())
    return found.hexdigest()[:32]


@pytest.mark.whole
@pytest.mark.parametrize("name", SHIPPED)
def test_the_first_steps_of_a_recipe_are_the_stored_ones(name):
    stored = json.loads(STORED.read_text()).get(machine(), {})
    if name not in stored:
        pytest.skip(f"no digest of {name} is stored for {machine()}")
    assert digest_of(name) == stored[name]


def store(names: list[str], path: Path) -> None:
    stored = json.loads(path.read_text()) if path.exists() else {}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        stored[machine()] = dict(zip(names, pool.map(digest_of, names, chunksize=1), strict=True))
    path.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("-"):
        sys.exit(
            "python -m tests.recipes.test_digests [FILE]: the digests of this machine, or in FILE with every variant"
        )
    if len(sys.argv) > 1:  # a file: every variant too, to compare two states of the code
        store([*SHIPPED, *(case for case in CASES if ":" in case)], Path(sys.argv[1]))
    else:
        store(list(SHIPPED), STORED)
