"""Of two runs that were begun in one directory within a second, the refused one deleted the other's recipe.json and
provenance.json: the one that went on ended well and nothing could read it. Of two comparisons at once each stopped the
runs of the other. Of two exports into one directory each removed what the other one had half written."""

import os
import subprocess
import sys

import pytest

from cotrain.core.errors import UserError
from cotrain.recipes.grpo import grpo
from cotrain.runs import opening
from cotrain.runs import run as loop
from cotrain.storage.file_ops import filled_directory
from cotrain.storage.kept_work import claimed_directory
from cotrain.storage.lock import RunLock
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "steps": 1}


def test_the_second_run_is_refused_before_it_does_anything(tmp_path):
    out = tmp_path / "run"
    with RunLock(out):
        held = (out / ".lock").read_bytes()
        with refuses("E_RUN_DIRECTORY_IN_USE", names=f"process {os.getpid()} since "):
            loop.start_run(grpo(tasks=EASY, **SMALL), out, wrap_engine=pytest.fail)  # the lock is asked for before a
            # model is
        assert [file.name for file in out.iterdir()] == [".lock"] and (out / ".lock").read_bytes() == held


def test_a_run_that_is_refused_leaves_no_directory(tmp_path):
    with pytest.raises(UserError):
        loop.start_run(grpo(tasks=EASY, **{**SMALL, "model": str(tmp_path / "nothing")}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.whole
def test_of_two_commands_at_once_one_runs_and_can_be_read(tmp_path):
    command = [
        sys.executable,
        "-m",
        "cotrain.cli.main",
        "run",
        "grpo",
        "--model",
        TINY,
        "--steps",
        "1",
        "--tasks-per-step",
        "2",
    ]
    command += ["--group-size", "2", "--evaluation-tasks", "1", "--threads", "1", "--out", str(tmp_path / "run")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=600) for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 2], said
    winner, (_, told) = codes.index(0), said[codes.index(2)]
    assert f"in use by process {both[winner].pid} since" in told or "already holds a run" in told, told
    assert len(told.splitlines()) == 1
    opening.evaluate(tmp_path / "run")


def test_a_second_comparison_is_refused_before_it_stops_runs_of_the_first(tmp_path, capsys):
    out = tmp_path / "comparison"
    words = ["compare", "grpo", "--smoke", "--out", str(out)]
    with RunLock(out):
        command_refuses(words, "E_RUN_DIRECTORY_IN_USE: comparison", capsys)
    (out / ".lock").unlink()
    out.rmdir()
    command_refuses([*words[:1], "gropo", *words[2:]], "E_UNKNOWN_RECIPE: gropo", capsys)
    assert not out.exists()
    out.write_text("a file")
    command_refuses(words, "E_OUT_NOT_COMPARISON: comparison", capsys)


COMMANDS_THAT_MAKE_A_DIRECTORY = {
    "export": ["export", TINY, "--role", "solver"],
    "merge": ["export", TINY, "--role", "solver", "--merged"],
    "convert": ["convert", "nanochat", TINY],
    "tokenizer": ["tokenizer"],
}


@pytest.mark.parametrize("command", COMMANDS_THAT_MAKE_A_DIRECTORY)
@pytest.mark.parametrize("place", ["new", "empty"])
def test_the_second_command_that_fills_a_directory_is_refused(command, place, tmp_path, capsys):
    out = tmp_path / "model"
    if place == "empty":
        out.mkdir()  # as the volume of a container
    words = [*COMMANDS_THAT_MAKE_A_DIRECTORY[command], "--out", str(out)]
    with claimed_directory(out), filled_directory(out) as folder:
        (folder / "half.safetensors").write_bytes(b"half")
        command_refuses(words, f"E_RUN_DIRECTORY_IN_USE: {out} is in use by process {os.getpid()} since ", capsys)
        assert (folder / "half.safetensors").read_bytes() == b"half"
    assert [path.name for path in out.iterdir()] == ["half.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    command_refuses(words, "E_OUT_NOT_EMPTY: model", capsys)


def test_a_command_that_was_killed_leaves_its_place_free(tmp_path):
    for out in (tmp_path / "beside", tmp_path / "within"):
        if out.name == "within":
            out.mkdir()
        lock = (out if out.is_dir() else tmp_path) / (".partial.lock" if out.is_dir() else f".{out.name}.partial.lock")
        lock.write_text("1 since 2026-01-31 12:00:00\n")  # as a kill leaves it
        with claimed_directory(out), filled_directory(out) as folder:
            (folder / "config.json").write_text("{}")
        assert not lock.exists() and [path.name for path in out.iterdir()] == ["config.json"]
