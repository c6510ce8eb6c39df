"""A reward of the user's own was turned round between a run and its resumption, and the run went on without a word."""

from __future__ import annotations

import json

import pytest

import cotrain
from cotrain.cli.main import main
from cotrain.runs.directory import CODE, RunDirectory
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

REWARD = """
import weights

def paid(task, answer, correct):
    return weights.SIGN * float(len(answer.text) % 2)
"""
FLAGS = ["--model", TINY, "--steps", "1", "--tasks-per-step", "2", "--group-size", "2", "--evaluation-tasks", "1"]
SMALL = [*FLAGS, "--threads", "1", "--kl", "0", "--set", "evaluation.splits=[]"]


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run of one step whose reward imports a module beside it."""
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "weights.py").write_text("SIGN = 1\nTOKEN = 'sk-abcdefghijklmnopqrstuvwxyz0123456789'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "weights", raising=False)
    out = tmp_path / "run"
    assert main(["run", "grpo", "--reward", f"{tmp_path / 'reward.py'}:paid", *SMALL, "--out", str(out)]) == 0
    return out


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.whole
def test_a_module_beside_the_reward_is_noticed_shown_and_recorded(begun, capsys):
    home = begun.parent
    record = json.loads((begun / CODE).read_text())
    assert set(record["versions"][0]["files"]) == {str(home / "reward.py"), str(home / "weights.py")}
    assert REWARD in record["texts"].values() and CODE in RunDirectory(begun).recorded_hashes()
    assert "abcdefghijklmnop" not in (begun / CODE).read_text()  # what looks like a key

    (home / "weights.py").write_text("SIGN = -1\n")
    before = contents(begun)
    capsys.readouterr()
    code = f"E_CODE_CHANGED: {home / 'weights.py'} | --changed-code | `cotrain diff {begun}`"
    said = command_refuses(["resume", begun, "--steps", "2"], code, capsys)
    assert "reward.py" not in said and contents(begun) == before

    assert main(["diff", str(begun)]) == 0
    shown = capsys.readouterr().out
    assert "measured at the end" not in shown
    assert "A, and the disk now" in shown and "-SIGN = 1" in shown and "+SIGN = -1" in shown

    assert main(["resume", str(begun), "--steps", "2", "--changed-code"]) == 0
    assert "from step 1 on with other code" in (begun / "run.log").read_text()
    assert [version["from_step"] for version in json.loads((begun / CODE).read_text())["versions"]] == [0, 1]
    assert main(["diff", str(begun), str(begun)]) == 0
    shown = capsys.readouterr().out
    assert "A before step 1, and from then on" in shown and "the disk now" not in shown
    assert main(["resume", str(begun), "--steps", "3"]) == 0  # what was said yes to is the run's code now


@pytest.mark.whole
def test_from_python_too(begun):
    RunDirectory(begun).extend({"steps": 2})
    (begun.parent / "reward.py").write_text(REWARD + "\n# another\n")
    with refuses("E_CODE_CHANGED", names="reward.py has changed"):
        cotrain.resume(begun)
    assert cotrain.resume(begun, changed_code=True).summary["steps"] == 2


@pytest.mark.whole
def test_a_finished_run_that_is_asked_again_says_what_it_said_before(begun, capsys):
    (begun.parent / "reward.py").write_text(REWARD + "\n# another\n")
    assert main(["resume", str(begun)]) == 0
    assert main(["eval", str(begun), "--problems", "1"]) == 0
    assert f"{begun.parent / 'reward.py'} has changed" in capsys.readouterr().err


@pytest.mark.whole
def test_a_run_of_code_that_moved_goes_on(begun, monkeypatch):
    from cotrain.runs.code_record import code_changes

    other = begun.parent / "other"
    other.mkdir()
    (begun.parent / "weights.py").rename(other / "weights.py")
    monkeypatch.syspath_prepend(str(other))
    assert code_changes(RunDirectory(begun)) == []
    (other / "weights.py").unlink()
    assert code_changes(RunDirectory(begun)) == [f"{begun.parent / 'weights.py'} is gone"]


@pytest.mark.whole
def test_a_comparison_refuses_to_mix_two_codes(tmp_path, capsys):
    (tmp_path / "reward.py").write_text("def paid(task, answer, correct):\n    return 1.0\n")
    words = ["compare", f"grpo:reward={tmp_path / 'reward.py'}:paid", "--batches", "1", "--out", str(tmp_path / "c")]
    words += ["--set", "evaluation.tasks=1", "--set", "evaluation.splits=[]", "--set", "tasks_per_step=2"]
    words += ["--set", "group_size=2", "--evaluate-every", "0", "--workers", "1"]
    assert main([*words, "--seeds", "1"]) == 0
    (tmp_path / "reward.py").write_text("def paid(task, answer, correct):\n    return -1.0\n")
    command_refuses([*words, "--seeds", "2"], "E_CODE_CHANGED", capsys, names=str(tmp_path / "reward.py"))
    assert not list((tmp_path / "c").rglob("seed-1/recipe.json"))
