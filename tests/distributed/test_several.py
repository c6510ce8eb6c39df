"""Engine and learners in other processes: the same run, bit for bit, also when processes are lost."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.recipes.spin import spin
from cotrain.recipes.tango import tango
from cotrain.recipes.votes import co_rewarding
from cotrain.runs import run as loop
from cotrain.storage import checkpoints
from cotrain.storage.ledger import Ledger
from tests.distributed.processes import Here
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-3, "steps": 3}


def briefly(recipe):
    return replace(
        recipe, evaluation=replace(recipe.evaluation, group_size=2, greedy=False, frozen_roles={}, splits=())
    )


RECIPES = {
    "separate policies": lambda: briefly(tango(warmup=0, ratio=(1, 1), reviews=2, tasks=EASY, **SMALL)),
    "adapters": lambda: briefly(tango(warmup=0, ratio=(1, 1), reviews=2, lora=4, tasks=EASY, **SMALL)),
    "EMA teacher": lambda: briefly(
        co_rewarding(variant="II", rate=0.3, tasks=EASY, **{**SMALL, "tasks_per_step": 3, "group_size": 4})
    ),
}

ITERATED = {
    "iterations with a reset": lambda: briefly(
        spin(iteration=1, reset="weights", tasks=EASY, **{k: v for k, v in SMALL.items() if k != "group_size"})
    ),
}


def digest(directory: Path) -> dict[str, str]:
    """Of weights, optimiser and state in the last checkpoint, of the metrics, the ledger, and what was measured."""
    tensors, documents = checkpoints.latest_checkpoint(directory / "checkpoints").load()
    after = json.loads((directory / "summary.json").read_text())["after"]
    weights = hashlib.sha256()
    for policy in sorted(tensors):
        for name in sorted(tensors[policy]):
            weights.update(f"{policy}/{name}".encode() + tensors[policy][name].numpy().tobytes())
    with Ledger(directory / "episodes") as ledger:
        said = json.dumps([repr(episode) for step in ledger.steps() for episode in ledger.read(step)])
    return {
        "weights": weights.hexdigest(),
        "state": hashlib.sha256(json.dumps(documents["state"], sort_keys=True).encode()).hexdigest(),
        "metrics": hashlib.sha256((directory / "metrics.jsonl").read_bytes()).hexdigest(),
        "ledger": hashlib.sha256(said.encode()).hexdigest(),
        "figures": json.dumps(after, sort_keys=True),
        "after": hashlib.sha256((directory / "after_problems.json").read_bytes()).hexdigest(),
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The digest of a recipe's run in one process."""
    known = {}

    def of(name):
        if name not in known:
            out = tmp_path_factory.mktemp("local") / "run"
            loop.start_run((RECIPES | ITERATED)[name](), out, checkpoint_every=1)
            known[name] = digest(out)
            assert "/update_sparsity" in known[name]["figures"], "how much of each policy was changed"
        return known[name]

    return of


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """A recipe's run in three processes, none of them lost: its directory, and what was asked."""
    known = {}

    def of(name):
        if name not in known:
            launcher, out = Here(), tmp_path_factory.mktemp("hosted") / "run"
            loop.start_run((RECIPES | ITERATED)[name](), out, checkpoint_every=1, backend=MultiProcessBackend(launcher))
            known[name] = out, launcher
        return known[name]

    return of


@pytest.mark.cluster
@pytest.mark.whole
@pytest.mark.parametrize("name", [*RECIPES, *ITERATED])
def test_a_run_in_other_processes_is_the_run_of_one(name, undisturbed, hosted):
    out, launcher = hosted(name)
    assert digest(out) == undisturbed(name)
    assert launcher.begun == {LEARNERS: 1, ENGINE: 1}
    made = json.loads((out / "provenance.json").read_text())
    assert made["backend"] == {"kind": "here", "engine": "local", "device": "cpu"}


LOSSES = [  # of engines as they begin, play and take weights; of learners as they update and save
    *((ENGINE, method, n) for method, n in (("counts", 1), ("advance", 2), ("advance", 20), ("publish", 2))),
    *((LEARNERS, method, n) for method, n in (("update", 1), ("tensors", 3), ("update", 5))),
]


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_lost_processes_change_nothing(name, undisturbed, tmp_path):
    launcher = Here(LOSSES)
    loop.start_run(
        (RECIPES | ITERATED)[name](), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher)
    )
    assert launcher.lost == len(LOSSES)
    assert digest(tmp_path / "run") == undisturbed(name)


@pytest.mark.whole
def test_learners_that_are_lost_three_times_in_one_step_end_the_run_with_the_reason(tmp_path):
    launcher = Here((LEARNERS, "update", n) for n in range(1, 9))
    with refuses("E_DIVERGED", names=("the learners", "update", "3 times in a row")):
        loop.start_run(
            RECIPES["adapters"](), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher)
        )
    assert launcher.lost == launcher.begun[LEARNERS] == 3
