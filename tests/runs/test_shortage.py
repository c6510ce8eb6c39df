"""Too little memory or disk: a run computes in smaller parts, or waits for room, says so, and ends the same."""

import errno
import os
import signal
from dataclasses import replace

import pytest
import torch

from cotrain.recipes.grpo import grpo
from cotrain.runs import out_of_room
from cotrain.runs import run as loop
from cotrain.runs.out_of_room import DiskRetry, oom_messages
from cotrain.storage import file_ops as disk
from cotrain.storage.file_ops import DiskError
from cotrain.trainer.failures import Interrupted
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, Heard, is_documented
from tests.runs.test_run import digest
from tests.sentences import refuses


def full(times, error=errno.ENOSPC):
    """A write that fails so often and then works."""
    left = [times]

    def write(value):
        left[0] -= 1
        if left[0] >= 0:
            raise DiskError("disk full: nothing is lost", error)
        return value

    return write


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(out_of_room, "PAUSE_S", 0.0)


def test_a_write_waits_until_there_is_room_and_says_so_once():
    heard = Heard()
    assert DiskRetry(lambda: 0, heard.message)(full(3), "written") == "written"
    assert len(heard.lines) == 2
    assert heard.lines[0].startswith("paused: disk full: nothing is lost; the run goes on by itself")
    assert heard.lines[1].startswith("there is room again after 0 s")


def test_nothing_is_said_where_there_is_room():
    heard = Heard()
    assert DiskRetry(lambda: 0, heard.message)(full(0), "written") == "written" and not heard.lines


def test_another_error_is_not_waited_for():
    heard = Heard()
    with pytest.raises(DiskError):
        DiskRetry(lambda: 0, heard.message)(full(1, errno.EIO), "written")
    assert not heard.lines


def test_a_signal_ends_the_wait():
    with pytest.raises(Interrupted) as caught:
        DiskRetry(lambda: signal.SIGTERM, Heard().message)(full(10**9), "written")
    assert caught.value.signal == signal.SIGTERM


def test_a_disk_that_stays_full_ends_the_run(monkeypatch):
    monkeypatch.setattr(out_of_room, "PATIENCE_S", -1.0)
    heard = Heard()
    with refuses("E_DISK"):
        DiskRetry(lambda: 0, heard.message)(full(10**9), "written")
    assert len(heard.lines) == 1


def test_memory_that_ran_out_is_told_with_what_to_set():
    row = {"step": 3, "a/out_of_memory": 2.0, "a/micro_tokens": 128.0, "b/out_of_memory": 1.0, "tokens": 5}
    first, second = oom_messages(row)
    assert first.startswith("note: step 4: memory ran out 2 times for policy 'a'")
    assert first.endswith("set policies.a.micro_tokens=128") and second.endswith("parts of half the size")
    assert not list(oom_messages({"step": 3, "tokens": 5}))


def brief(**settings):
    made = grpo(
        steps=2, tasks=EASY, kl=0.0, model=TINY, tasks_per_step=2, group_size=4, evaluation_tasks=1, lr=1e-3, **settings
    )
    return replace(made, evaluation=replace(made.evaluation, group_size=2, greedy=False, frozen_roles={}, splits=()))


@pytest.mark.whole
@pytest.mark.parametrize("first", [4, 6, 7, 8, 11, 13, 20, 22])  # of 23 writes: start, rows, a checkpoint, the end
def test_a_run_on_a_full_disk_pauses_and_ends_the_same(first, tmp_path, monkeypatch):
    """No write is taken from one moment on, until the run has said that it waits."""
    loop.start_run(brief(), tmp_path / "peace", checkpoint_every=1)
    heard, count = Heard(), [0]
    write = disk.Files.write

    def refused(self, file, block):
        count[0] += 1
        if count[0] > first and not any(line.startswith("paused") for line in heard.lines):
            os.write(file.fileno(), block[: len(block) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, file, block)

    monkeypatch.setattr(disk.Files, "write", refused)
    loop.start_run(brief(), tmp_path / "full", checkpoint_every=1, observer=heard)
    assert count[0] > first
    assert digest(tmp_path / "full") == digest(tmp_path / "peace")


@pytest.mark.whole
def test_a_run_that_is_short_of_memory_says_so_and_learns_the_same(tmp_path):
    """One failure while it samples, one while the reference scores, one in the backward pass of the update."""
    rows = {}
    for name in ("peace", "short"):
        trainer = CoTrainer(grpo(steps=1, tasks=EASY, kl=0.01, model=TINY, tasks_per_step=2, group_size=4, lr=1e-3))
        if name == "short":
            _fail_once(trainer.policies["generator"].model, forward=2)
            _fail_once(trainer.policies["reference"].model, forward=2)
            _fail_once(trainer.policies["generator"].model, backward=0)
        row = trainer.step().row
        rows[name] = row, trainer.policies.tensors()["generator"]
    (peace, expected), (row, found) = rows["peace"], rows["short"]
    assert (row["generator/out_of_memory"], row["reference/out_of_memory"]) == (2.0, 1.0)
    assert not [key for key in peace if key.endswith("out_of_memory")]
    assert not [key for key in row if not is_documented(key)]
    lines = list(oom_messages(row))
    assert len(lines) == 2 and "policy 'generator'" in lines[0] + lines[1]
    for key, tensor in expected.items():
        if key.startswith("model."):
            assert (tensor - found[key]).abs().max() < 1e-5, key


def _fail_once(model, *, forward=None, backward=None):
    """At such a pass of its first layer."""
    count = [0, 0]

    def hook(layer, given, made):
        hidden = made if isinstance(made, torch.Tensor) else made[0]
        count[0] += 1
        if count[0] - 1 == forward:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if hidden.requires_grad:
            hidden.register_hook(fail_backward)

    def fail_backward(gradient):
        count[1] += 1
        if count[1] - 1 == backward:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    model.model.layers[0].register_forward_hook(hook)
