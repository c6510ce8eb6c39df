"""Runs whose learners are several ranks in processes of their own: near the run of one process, the same run whatever
is killed, and gone on with by any number of ranks."""

import json
import time
from contextlib import nullcontext

import pytest
import torch

from cotrain.backend import learner_group
from cotrain.backend.learner_group import Group
from cotrain.backend.several import ENGINE, Several
from cotrain.core.errors import ConfigError, ProcessLost
from cotrain.disk import transaction
from cotrain.loop import run as loop
from cotrain.loop.guard import Diverged
from cotrain.loop.override import override
from tests.backend.processes import Apart, Here
from tests.backend.test_several import RECIPES, digest


def recipe(name):
    """With several micro-batches an update."""
    made = RECIPES[name]()
    trained = [policy for policy, spec in made.policies.items() if hasattr(spec, "micro_tokens")]
    return override(made, [f"policies.{policy}.micro_tokens=60" for policy in trained])


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


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_a_run_on_two_ranks_is_near_the_run_of_one_process(name, on_two):
    ranks, local = on_two(name)
    assert gap(ranks, local) < 2e-4
    assert (ranks / "metrics.jsonl").read_bytes() != (local / "metrics.jsonl").read_bytes()  # rounding: it was shared
    assert json.loads((ranks / "provenance.json").read_text())["backend"]["world"] == 2


KILLS = [(0, "update", 2), (1, "join", 2), (1, "tensors", 3)]


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_killed_ranks_change_nothing(name, on_two, tmp_path):
    kills = [*KILLS, (0, "gather", 6 if name == "adapters" else 7)]
    launcher = made(name, tmp_path / "run", kills)
    assert launcher.killed == len(kills), launcher.asked
    assert digest(tmp_path / "run") == digest(on_two(name)[0])


@pytest.mark.whole
def test_a_rank_that_is_lost_three_times_in_one_step_ends_the_run_with_the_reason(tmp_path):
    with pytest.raises(Diverged, match=r"rank 1 of 2\) is lost during update; 3 times in a row"):
        made("adapters", tmp_path / "run", [(1, "update", n) for n in (1, 2, 3)])


class Stop:
    """Ends a run after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def message(self, text): ...

    def update(self, row):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.whole
def test_a_run_goes_on_with_another_number_of_ranks(on_two, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        made("adapters", out, observer=Stop(2))  # step 1 is done, and not saved
    for world, steps in ((1, 2), (2, 9)):
        launcher = Mixed()
        try:
            with nullcontext() if steps > 3 else pytest.raises(KeyboardInterrupt):
                loop.resume(recipe("adapters"), out, backend=Several(launcher, world=world), observer=Stop(steps))
        finally:
            launcher.stop()
    assert gap(out, on_two("adapters")[1]) < 2e-4


class Odd:
    """In the place of ``RankHost``: fails, sleeps or answers as it is asked."""

    def __init__(self, rank, world, here, patience):
        self.rank = rank

    def address(self):
        return "here", 0

    def join(self, address, limits): ...

    def call(self, what):
        if what == "fail" and self.rank == 1:
            raise ConfigError("rank 1 has no room")
        if what == "cut" and self.rank == 0:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
        if what != "answer":
            time.sleep(60.0)
        return what if self.rank == 0 else None


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("fail", ConfigError, "rank 1 has no room"),
        ("cut", ProcessLost, "rank 0 has lost the others during cut: .*closed by peer"),
        ("sleep", ProcessLost, "rank 0 did not answer sleep within 1.5 seconds; all were killed"),
    ],
)
def test_one_rank_alone_ends_the_group(what, error, said, monkeypatch):
    monkeypatch.setattr(learner_group, "RankHost", Odd)
    monkeypatch.setattr(learner_group, "LOSS", 0.5)
    launcher = Apart()
    group = Group("the learners", launcher, 2, (), {})
    assert group.ask("answer") == "answer"
    group._deadline = 1.5
    with pytest.raises(error, match=said):
        group.ask(what)
    assert not any(process.process.is_alive() for process in launcher.processes)
