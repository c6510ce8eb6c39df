"""Memory that ran out in the first step: what is done at a time from then on is part of the checkpoint."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from cotrain.config.policies import frozen
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.multi_process import ENGINE, MultiProcessBackend
from cotrain.inference.local import LocalEngine
from cotrain.recipes.grpo import grpo
from cotrain.runs import run as loop
from cotrain.runs.log import SilentObserver
from cotrain.runs.out_of_room import LIMITS, memory_limits, restore_memory_limits
from cotrain.storage import checkpoints
from cotrain.trainer.failures import Interrupted
from cotrain.trainer.policy_store import PolicyStore
from tests.distributed.processes import Here
from tests.helpers import EASY, TINY
from tests.runs.test_run import digest
from tests.sentences import refuses


def brief():
    made = grpo(steps=3, tasks=EASY, kl=0.05, model=TINY, tasks_per_step=3, group_size=4, evaluation_tasks=1, lr=1e-3)
    return replace(made, evaluation=replace(made.evaluation, group_size=2, greedy=False, frozen_roles={}, splits=()))


class Scarce:
    """Around the engine of training: at its third turn one pass of the generator fails, and one of the reference."""

    def __init__(self, engine, backend):
        self.engine, self.backend, self.turns = engine, backend, 0
        self.sample, self.publish, self.counts = engine.sample, engine.publish, engine.counts

    def advance(self):
        self.turns += 1
        if self.turns == 3:
            for name in ("generator", "reference"):
                fail_once(self.backend._handles[name].model)
        return self.engine.advance()


def fail_once(model):
    def fail(layer, given):
        if given[0].shape[:2].numel() > 4:  # not where a scorer looks at its model
            hook.remove()
            raise torch.OutOfMemoryError("CUDA out of memory.")

    hook = model.model.layers[0].register_forward_pre_hook(fail)


class Stopped(SilentObserver):
    """Asks the run to stop after its second step."""

    def update(self, row):
        if row["step"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def begun(out, observer=None):
    backend = LocalBackend()
    return loop.start_run(
        brief(), out, checkpoint_every=1, backend=backend, observer=observer, wrap_engine=lambda e: Scarce(e, backend)
    )


@pytest.mark.whole
def test_a_resumed_run_computes_in_the_parts_of_the_one_that_was_short(tmp_path):
    torch.set_num_threads(1)
    begun(tmp_path / "peace")
    with pytest.raises(Interrupted):
        begun(tmp_path / "run", Stopped())
    held = checkpoints.latest_checkpoint(tmp_path / "run" / "checkpoints").load()[1][LIMITS]
    assert held["scoring"]["reference"] < 2048 and 0 < held["sampling"]["generator"] < 12
    assert set(held["scoring"]) == {"reference"} and set(held["sampling"]) == {"generator"}
    loop.resume_run(brief(), tmp_path / "run", backend=LocalBackend())
    assert digest(tmp_path / "run") == digest(tmp_path / "peace")
    assert checkpoints.latest_checkpoint(tmp_path / "run" / "checkpoints").load()[1][LIMITS] == held


def opened(backend):
    store = PolicyStore(backend.open({"judge": frozen(TINY)}, seed=0))
    return store, backend.engine


@pytest.mark.whole
@pytest.mark.parametrize("make", [LocalBackend, lambda: MultiProcessBackend(Here())])
def test_limits_are_given_back_and_taken_away(make):
    """In one process, and where engine and learners have theirs."""
    store, engine = opened(make())
    assert memory_limits(store, engine) == {}
    made = {LIMITS: {"scoring": {"judge": 300}, "sampling": {"judge": 5}}}
    restore_memory_limits(store, engine, made)
    assert memory_limits(store, engine) == made
    restore_memory_limits(store, engine, {})
    assert memory_limits(store, engine) == {}
    with refuses("E_STATE_MISFIT", names=("limits", "sampling")):
        restore_memory_limits(store, engine, {LIMITS: {"scoring": {}}})


@pytest.mark.whole
def test_an_engine_in_the_place_of_a_lost_one_has_its_limits():
    backend = MultiProcessBackend(Here())
    store, engine = opened(backend)
    restore_memory_limits(store, engine, {LIMITS: {"scoring": {}, "sampling": {"judge": 5}}})
    hosted = engine.engine._engines[0]
    hosted.drop_process()
    assert hosted.ask("counts")["judge/requests"] == 0.0
    process = backend._engine_processes[ENGINE]
    assert process._host._engine.limits() == {"judge": 5}
    assert isinstance(process._host._engine, LocalEngine)
