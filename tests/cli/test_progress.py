"""What takes longer than five seconds says how much is done and how much time is left; here after no time at all."""

import json
import os
import signal

import pytest
import torch

from cotrain import api
from cotrain.analysis.attack.verifier_attack import attack
from cotrain.analysis.attack.xplay import xplay
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.reports.summary import summary_keys, summary_lines
from cotrain.runs.choose_formats import probe_answers, probe_tasks
from cotrain.trainer.failures import stop_on_signal
from tests.helpers import EASY, TINY

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 2}
BRIEF = ["evaluation.splits=[]", "evaluation.group_size=1"]


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr("cotrain.core.verbosity.PACE_SECONDS", 0.0)


def left(said, what, ending=" left"):
    """The lines of one count, which grow, and each of which says the time that is left."""
    lines = [line for line in said if what in line and line.endswith(ending) and " of " in line]
    counts = [int(line.split(" of ")[0].split()[-1].replace(",", "")) for line in lines]
    assert counts == sorted(set(counts)) and 0 < len(counts) <= 10, said
    return lines


@pytest.mark.whole
def test_cross_play_and_attacks(tmp_path):
    recipe = tango(steps=2, warmup=0, ratio=(1, 1), reviews=1, **SMALL)
    api.run(override(recipe, BRIEF), tmp_path / "run")
    said = []
    xplay([tmp_path / "run"], every=1, problems=8, n=2, say=said.append)
    assert left(said, "solutions drawn") and left(said, "solutions judged")
    said = []
    attack(tmp_path / "run", problems=16, say=said.append)
    assert left(said, "64 solutions drawn") and left(said, "changed solutions")


@pytest.mark.whole
def test_a_look_at_the_answers_of_a_model():
    recipe = grpo(**SMALL)
    said = []
    probe_answers(recipe, recipe.roles["solver"], probe_tasks(recipe), fixed=True, device="cpu", say=said.append)
    assert left(said, " answers", ending=" answers")  # of one batch, of which no time left is told


def test_a_check_of_data(tmp_path, capsys):
    rows = [{"question": f"What is {n} and 1?", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["check", "data", str(tmp_path / "rows.jsonl")]) == 0
    assert left(capsys.readouterr().out.splitlines(), "gold answers tried")
    assert main(["check", "data", str(tmp_path / "rows.jsonl"), "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_what_the_figures_leave_out_stands_beside_them_and_never_alone():
    assert summary_keys(["solver/failed", "solver/metadata/rollout_reward"]) == [
        "solver/metadata/rollout_reward",
        "solver/failed",
    ]
    assert summary_keys(["broken_off", "solver/pass@1", "solver/read"]) == ["solver/pass@1", "broken_off"]


def test_how_many_weights_changed_is_no_figure_of_held_out_problems():
    """It came first in the table of a run without headlines, and a run that measured nothing did not say so."""
    sparsity = ["generator/update_sparsity", "generator/update_sparsity_1e-5"]
    assert summary_keys([*sparsity, "solver/metadata/rollout_reward"]) == ["solver/metadata/rollout_reward"]
    after = {key: {"value": 1.0, "low": 1.0, "high": 1.0, "n": 9} for key in sparsity}
    (_, said) = summary_lines({"recipe": "agent", "steps": 2, "seed": 0, "before": {}, "after": after})
    assert said.startswith("nothing was measured")


def test_a_signal_is_answered_at_once(capfd):
    """What is under way may take minutes to stop; until then nobody knew that the signal was heard."""
    with stop_on_signal() as stopping:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping() == signal.SIGINT
        assert "stopping as soon as what is under way allows" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert capfd.readouterr().err == ""
