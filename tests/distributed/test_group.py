"""Runs whose learners are several ranks in processes of their own: near the run of one process, the same run whatever
is killed, and gone on with by any number of ranks."""

import errno
import json
import os
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.config.policies import trainable
from cotrain.core.errors import ConfigError
from cotrain.distributed import ranks
from cotrain.distributed.contract import ProcessStats
from cotrain.distributed.multi_process import ENGINE, MultiProcessBackend
from cotrain.distributed.ranks import RankGroup, RankGroupPolicy, RankHost, ShareSize, WriteFailure
from cotrain.distributed.remote_policies import PolicyInfo
from cotrain.runs import run as loop
from cotrain.storage import checkpoints
from cotrain.storage.tensor_files import is_finite, part_name, tensor_bytes, write_part
from cotrain.trainer.policy_store import PolicyStore
from tests.distributed.processes import Apart, Here
from tests.distributed.test_several import RECIPES, digest
from tests.helpers import TINY, LeaveAfter
from tests.sentences import refuses


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
        loop.start_run(
            recipe(name), out, checkpoint_every=1, backend=MultiProcessBackend(launcher, world=world), **settings
        )
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
            loop.start_run(recipe(name), known[name][1], checkpoint_every=1)
        return known[name]

    return of


def weights(directory):
    tensors, documents = checkpoints.latest_checkpoint(directory / "checkpoints").load()
    return {(p, n): t for p, group in tensors.items() for n, t in group.items()}, documents["state"]


def gap(one, other):
    (mine, my_state), (theirs, their_state) = weights(one), weights(other)
    assert mine.keys() == theirs.keys() and my_state == their_state
    return max(float((mine[k] - theirs[k]).abs().max()) for k in mine)


@pytest.mark.cluster
@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_a_run_on_two_ranks_is_near_the_run_of_one_process(name, on_two):
    ranks, local = on_two(name)
    assert gap(ranks, local) < 2e-4
    assert (ranks / "metrics.jsonl").read_bytes() != (local / "metrics.jsonl").read_bytes()  # rounding: it was shared
    assert json.loads((ranks / "provenance.json").read_text())["backend"]["world"] == 2


KILLS = [(0, "update", 2), (1, "join", 2), (1, "write", 3)]


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_killed_ranks_change_nothing(name, on_two, tmp_path):
    kills = [*KILLS, (0, "gather", 6 if name == "adapters" else 7)]
    launcher = made(name, tmp_path / "run", kills)
    assert launcher.killed == len(kills), launcher.asked
    assert digest(tmp_path / "run") == digest(on_two(name)[0])


@pytest.mark.whole
def test_a_rank_that_is_lost_three_times_in_one_step_ends_the_run_with_the_reason(tmp_path):
    with refuses("E_DIVERGED", names=("rank 1 of 2", "update", "3 times in a row")):
        made("adapters", tmp_path / "run", [(1, "update", n) for n in (1, 2, 3)])


def resumed(recipe, out, world, **settings):
    """Gone on with on so many ranks."""
    launcher = Mixed()
    try:
        loop.resume_run(recipe, out, backend=MultiProcessBackend(launcher, world=world), **settings)
    finally:
        launcher.stop()


def parts(directory):
    """Names of files of the newest checkpoint's tensors."""
    return {path.name for path in checkpoints.latest_checkpoint(directory / "checkpoints").path.glob("*.safetensors")}


@pytest.mark.cluster
@pytest.mark.whole
@pytest.mark.parametrize("name", ["adapters", "EMA teacher"])
def test_a_run_goes_on_with_another_number_of_ranks(name, tmp_path):
    """2, 1, 2 and 3 ranks; each is stopped with one step that is not saved."""
    made_of, out, local = override(recipe(name), ["steps=5"]), tmp_path / "run", tmp_path / "local"
    launcher, seen = Mixed(), []
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.start_run(
                made_of, out, checkpoint_every=1, backend=MultiProcessBackend(launcher, world=2), observer=LeaveAfter(2)
            )
    finally:
        launcher.stop()
    seen.append(parts(out))
    for world in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            resumed(made_of, out, world, observer=LeaveAfter(2))
        seen.append(parts(out))
    resumed(made_of, out, 3)
    seen.append(parts(out))
    loop.start_run(made_of, local, checkpoint_every=1)
    assert gap(out, local) < 2e-4
    for world, files in zip((2, 1, 2, 3), seen, strict=True):
        assert {file for file in files if file.startswith("generator")} == {
            part_name("generator", part, world) for part in range(1, world + 1)
        }, files


@pytest.mark.whole
def test_a_run_of_two_ranks_is_measured_and_exported_without_them(on_two, tmp_path):
    """As the same checkpoint in one part."""
    ranks, whole = on_two("adapters")[0], tmp_path / "whole"
    shutil.copytree(ranks, whole)
    found = checkpoints.latest_checkpoint(ranks / "checkpoints")
    shutil.rmtree(whole / "checkpoints")
    checkpoints.save_checkpoint(whole / "checkpoints", found.step, *found.load())
    assert parts(ranks) != parts(whole) == {"generator.safetensors", "verifier.safetensors"}
    for run, out in ((ranks, tmp_path / "a"), (whole, tmp_path / "b")):
        assert main(["export", str(run), "--role", "solver", "--out", str(out)]) == 0
        assert main(["eval", str(run), "--problems", "2"]) == 0
    one, other = (load_file(tmp_path / out / "adapter_model.safetensors") for out in "ab")
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert (ranks / "eval-test.json").read_bytes() == (whole / "eval-test.json").read_bytes()


class Dying(RankHost):
    """Its second rank dies when half of its part is on the disk, as often as a file beside the run says."""

    def write(self, policy, folder, stem):
        file = Path(folder).parents[2] / "left"
        if self._rank == 1 and folder.endswith("2") and (left := int(file.read_text())):
            file.write_text(str(left - 1))
            super().write(policy, folder, stem)
            mine = Path(folder) / part_name(stem, 2, 2)
            mine.write_bytes(mine.read_bytes()[: mine.stat().st_size // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(policy, folder, stem)


@pytest.mark.whole
@pytest.mark.parametrize("deaths", [1, 3])
def test_a_rank_that_dies_while_parts_are_written_leaves_the_checkpoint_before(deaths, on_two, tmp_path, monkeypatch):
    """Once: the run goes back to it. Three times: it ends, and the one before is the newest that verifies."""
    undisturbed = digest(on_two("adapters")[0])
    (tmp_path / "left").write_text(str(deaths))
    monkeypatch.setattr(ranks, "RankHost", Dying)
    out = tmp_path / "run"
    with nullcontext() if deaths == 1 else refuses("E_DIVERGED", names=("write", "3 times in a row")):
        made("adapters", out)
    assert (tmp_path / "left").read_text() == "0"
    if deaths == 3:
        found = checkpoints.latest_checkpoint(out / "checkpoints")
        assert found.step == 1 and found.newer_damaged == ()
        left = {path.name for path in (out / "checkpoints/.staging-step-000002").iterdir()}
        assert "generator.2-of-2.safetensors" in left and "manifest.json" not in left
        assert main(["export", str(out), "--role", "solver", "--out", str(tmp_path / "model")]) == 0
        resumed(recipe("adapters"), out, 2)
    assert not list((out / "checkpoints").glob(".*"))
    assert digest(out) == undisturbed


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

    def sees(self, folder):
        return None if self.rank == 0 else "node-7"

    def measure(self, policy):
        return ShareSize(bytes=4, finite=policy != "wild" or self.rank == 0)

    def write(self, policy, folder, stem):
        if policy == "full" and self.rank == 1:
            return WriteFailure(errno=errno.ENOSPC, why="No space left on device")
        return write_part(Path(folder), stem, {"w": torch.ones(1)}, part=self.rank + 1, parts=2)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("what", "deadline", "code"),
    [
        ("fail", 50.0, "E_CONFIG: rank 1 has no room"),
        ("cut", 50.0, "E_RANK_LOST: rank 0 | cut | closed by peer"),
        ("sleep", 0.3, "E_RANK_SILENT: rank 0 | sleep | 0.3 seconds"),
    ],
    ids=["fail", "cut", "sleep"],
)
def test_one_rank_alone_ends_the_group(what, deadline, code, monkeypatch):
    monkeypatch.setattr(ranks, "RankHost", Odd)
    monkeypatch.setattr(ranks, "LOSS", 0.1)
    launcher = Apart()
    group = RankGroup("the learners", launcher, (), {}, [ProcessStats(policies=()) for _ in range(2)])
    assert group.ask("answer") == "answer"
    group._deadline = deadline
    with refuses(code):
        group.ask(what)
    assert not any(process.process.is_alive() for process in launcher.processes)


@pytest.mark.whole
def test_what_ranks_say_of_a_checkpoint(tmp_path, monkeypatch):
    """A disk that is full for one of them ends no group; weights that are not finite are seen before anything is
    written; a folder that one does not see is refused."""
    monkeypatch.setattr(ranks, "RankHost", Odd)
    launcher = Apart()
    group = RankGroup("the learners", launcher, (), {}, [ProcessStats(policies=()) for _ in range(2)])

    def policy(name):
        opened = PolicyInfo(renderer=None, shape=None, changes=True)
        return RankGroupPolicy(name, trainable(TINY), opened, lambda: group)

    try:
        tried = {name: policy(name).checkpoint_tensors() for name in ("calm", "full", "wild")}
        assert [(tensor_bytes(parts), is_finite(parts)) for parts in tried.values()] == [
            (8, True),
            (8, True),
            (8, False),
        ]
        with refuses("E_WEIGHTS_NOT_FINITE", names="'wild'"):
            PolicyStore({"calm": policy("calm"), "wild": policy("wild")}).checkpoint_parts()
        with refuses("E_DISK_REFUSED", names=("step-000001", str(tmp_path))) as error:
            checkpoints.save_checkpoint(tmp_path, 1, {"full": tried["full"]}, {})
        assert error.value.full and not list(tmp_path.iterdir())
        checkpoints.save_checkpoint(tmp_path, 1, {"calm": tried["calm"]}, {})
        assert checkpoints.latest_checkpoint(tmp_path).load()[0]["calm"]["w"].tolist() == [1.0, 1.0]
        with refuses("E_CHECKPOINT_FOLDER_UNSEEN", names=("rank 1 on node-7", "--out")):
            policy("calm").check_folder(tmp_path)
    finally:
        launcher.stop()
