"""Runs whose learners are several ranks in processes of their own: near the run of one process, the same run whatever is
killed, and gone on with by any number of ranks."""

import json

import pytest
import torch

from cotrain.backend.several import ENGINE, Several
from cotrain.disk import transaction
from cotrain.loop import run as loop
from cotrain.loop.override import override
from tests.backend.processes import Apart, Here
from tests.backend.test_several import RECIPES, digest


def recipe(name):
    """With several micro-batches an update."""
    made = RECIPES[name]()
    trained = [policy for policy, spec in made.policies.items() if hasattr(spec, "micro_tokens")]
    return override(made, [f"policies.{policy}.micro_tokens=300" for policy in trained])


class Mixed(Apart):
    """The ranks apart, the engine here: it needs no others."""

    def __init__(self, kills=()):
        super().__init__(kills)
        self.near = Here()

    def begin(self, what, host, settings):
        return self.near.begin(what, host, settings) if what == ENGINE else super().begin(what, host, settings)


def made(name, out, kills=(), world=2, **settings):
    """A run, and its launcher."""
    launcher = Mixed(kills)
    try:
        loop.start(recipe(name), out, checkpoint_every=1, backend=Several(launcher, world=world), **settings)
    finally:
        launcher.stop()
    assert not any(process.process.is_alive() for process in launcher.processes)
    return launcher


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """A recipe's run on two ranks, and in one process: their directories."""
    torch.set_num_threads(1)
    known = {}

    def of(name):
        if name not in known:
            known[name] = tmp_path_factory.mktemp("ranks") / "run", tmp_path_factory.mktemp("local") / "run"
            made(name, known[name][0])
            loop.start(recipe(name), known[name][1], checkpoint_every=1)
        return known[name]

    return of


def weights(directory):
    tensors, documents = transaction.latest(directory / "checkpoints").load()
    return {(p, n): t for p, group in tensors.items() for n, t in group.items()}, documents["state"]


def gap(one, other):
    (mine, my_state), (theirs, their_state) = weights(one), weights(other)
    assert mine.keys() == theirs.keys() and my_state == their_state
    return max(float((mine[k] - theirs[k]).abs().max()) for k in mine)


WHOLE = [name if name == "adapters" else pytest.param(name, marks=pytest.mark.whole) for name in RECIPES]


@pytest.mark.parametrize("name", WHOLE)
def test_a_run_on_two_ranks_is_near_the_run_of_one_process(name, on_two):
    ranks, local = on_two(name)
    assert gap(ranks, local) < 2e-4
    assert (ranks / "metrics.jsonl").read_bytes() != (local / "metrics.jsonl").read_bytes()  # rounding: it was shared
    assert json.loads((ranks / "provenance.json").read_text())["backend"]["world"] == 2


KILLS = [(0, "update", 2), (1, "update", 5), (1, "tensors", 3), (0, "gather", 7), (1, "join", 2)]


@pytest.mark.parametrize("name", WHOLE)
def test_killed_ranks_change_nothing(name, on_two, tmp_path):
    launcher = made(name, tmp_path / "run", KILLS)
    assert launcher.killed == len(KILLS)
    assert digest(tmp_path / "run") == digest(on_two(name)[0])
