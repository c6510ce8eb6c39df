"""A run that is lengthened is the longer run whose decays end where the shorter one's did."""

import json
from dataclasses import replace

import pytest
import torch

from cotrain import api
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.recipes.grpo import grpo
from cotrain.runs.changes import lengthen_run
from cotrain.storage import checkpoints
from tests.helpers import EASY, TINY
from tests.sentences import refuses


def small(steps, **settings):
    sizes = {"tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1}
    made = grpo(model=TINY, steps=steps, tasks=EASY, lr=1e-3, kl=0.0, **sizes, **settings)
    return override(made, ["evaluation.group_size=1", "evaluation.greedy=false", "evaluation.splits=[]"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of two steps."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("lengthen") / "run"
    api.run(small(2), folder)
    return folder


@pytest.mark.whole
def test_it_cannot_be_shortened_or_lengthened_past_a_budget(finished, tmp_path):
    with refuses("E_STEPS_NOT_MORE", names=("--steps 1", "2 steps")):
        lengthen_run(finished, 1)
    lengthen_run(finished, 2)
    assert (finished / "summary.json").exists()
    bought = tmp_path / "bought"
    api.run(replace(override(small(2), ["tokens=1"])), bought)
    with refuses("E_STEPS_WITH_BUDGET", names=("--steps 4", "1 tokens")):
        lengthen_run(bought, 4)


def test_resuming_a_finished_run_deletes_what_a_kill_left(finished, capsys):
    left = finished / "checkpoints" / ".trash-step-000001"
    left.mkdir()
    (left / "policy.safetensors").write_bytes(b"half")
    assert main(["resume", str(finished), "--threads", "1", "--device", "cpu"]) == 0
    assert not left.exists() and "is finished" in capsys.readouterr().out


@pytest.mark.whole
def test_it_cannot_be_lengthened_where_its_rates_have_fallen_to_zero(tmp_path):
    api.run(small(1, lr_decay="linear"), tmp_path / "falls")
    with refuses("E_STEPS_WITH_LR_DECAY", names=("--steps 4", "'generator'", "step 1")):
        lengthen_run(tmp_path / "falls", 4)


@pytest.mark.whole
def test_a_lengthened_run_is_the_longer_one(finished, tmp_path, capsys):
    whole = tmp_path / "whole"
    api.run(override(small(2), ["steps=4", "horizon=2"]), whole)
    assert main(["resume", str(finished), "--steps", "4", "--threads", "1", "--device", "cpu"]) == 0
    assert "resuming after step 2 of 4" in capsys.readouterr().out
    saved = json.loads((finished / "recipe.json").read_text())
    assert (saved["steps"], saved["settings"]["horizon"]) == (4, 2)
    assert (finished / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    ends = [checkpoints.latest_checkpoint(place / "checkpoints").load()[0]["generator"] for place in (finished, whole)]
    assert all(torch.equal(ends[0][name], tensor) for name, tensor in ends[1].items())
    assert json.loads((finished / "summary.json").read_text())["steps"] == 4
    assert main(["resume", str(finished)]) == 0  # finished again
