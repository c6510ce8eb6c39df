"""A run that was asked to stop while it measured its start could not be resumed: it saved a checkpoint without what it
had begun to measure, and then missed that ("before.json was lost")."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from cotrain.recipes.grpo import grpo
from cotrain.runs import run as loop
from cotrain.runs.log import SilentObserver
from cotrain.storage import checkpoints
from cotrain.trainer.failures import Interrupted
from tests.helpers import EASY, TINY, active_run
from tests.runs.test_run import digest


def brief():
    made = grpo(steps=1, tasks=EASY, kl=0.0, model=TINY, tasks_per_step=1, group_size=2, evaluation_tasks=1, lr=1e-3)
    return replace(made, evaluation=replace(made.evaluation, group_size=2, greedy=False, frozen_roles={}, splits=()))


class Stops(SilentObserver):
    def message(self, text):
        if text.startswith("measuring the start"):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.whole
def test_it_is_resumed_and_ends_the_same(tmp_path):
    torch.set_num_threads(1)
    loop.start_run(brief(), tmp_path / "peace")
    with pytest.raises(Interrupted):
        loop.start_run(brief(), tmp_path / "run", observer=Stops())
    assert not (tmp_path / "run" / "before.json").exists()
    with pytest.raises(Interrupted):
        loop.resume_run(brief(), tmp_path / "run", observer=Stops())
    assert checkpoints.latest_checkpoint(tmp_path / "run" / "checkpoints") is None  # there is nothing to save yet
    loop.resume_run(brief(), tmp_path / "run")
    assert digest(tmp_path / "run") == digest(tmp_path / "peace")


@pytest.mark.whole
def test_one_that_saved_its_start_is_resumed_too(tmp_path):
    """As runs have it that were stopped before this was mended."""
    loop.start_run(brief(), tmp_path / "peace")
    with pytest.raises(Interrupted):
        loop.start_run(brief(), tmp_path / "run", observer=Stops())
    trainer = loop.CoTrainer(brief())
    directory = loop.RunDirectory.open(tmp_path / "run")
    loop._save_checkpoint(active_run(directory, trainer))
    loop.resume_run(brief(), tmp_path / "run")
    assert digest(tmp_path / "run") == digest(tmp_path / "peace")
