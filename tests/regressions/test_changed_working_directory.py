"""An agent changed the working directory, and its run was written into two places and ended with a traceback."""

from __future__ import annotations

import os
import threading

import pytest

from cotrain.cli.main import main
from tests.helpers import TINY

ELSEWHERE = """
import os, tempfile
GONE = tempfile.mkdtemp()
os.chdir(GONE)

def paid(task, answer, correct):
    os.makedirs(GONE, exist_ok=True)
    os.chdir(GONE)
    os.rmdir(GONE)
    return float(len(answer.text) % 2)
"""
FLAGS = ["--model", TINY, "--steps", "2", "--tasks-per-step", "2", "--group-size", "2", "--evaluation-tasks", "1"]
SMALL = [*FLAGS, "--threads", "1", "--kl", "0", "--set", "evaluation.splits=[]"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that is the working directory, whatever happens to it."""
    (tmp_path / "reward.py").write_text(ELSEWHERE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.whole
def test_a_run_with_a_relative_out_stays_in_its_directory(here):
    assert main(["run", "grpo", "--reward", "reward.py:paid", *SMALL, "--out", "run"]) == 0
    assert (here / "run" / "report.html").is_file() and (here / "run" / "summary.json").is_file()
    os.chdir(here)  # the user's shell is where it was
    assert main(["resume", "run", "--steps", "3"]) == 0
    os.chdir(here)
    assert main(["eval", "run", "--problems", "1"]) == 0
    assert (here / "run" / "eval-test.json").is_file()
    assert sorted(path.name for path in here.iterdir() if path.name != "__pycache__") == ["reward.py", "run"]


def test_a_command_is_found_where_it_was_given(here):
    (here / "agent.py").write_text("print(4)\n")
    from cotrain.envs.agent.program import ProgramRun, find_program

    command = find_program(None, "python3 agent.py")
    folder = os.getcwd()
    os.chdir("/")
    ended = threading.Event()
    run = ProgramRun(command, "2 + 2", "http://127.0.0.1:9/v1", "key", ended.set, folder)
    assert ended.wait(60) and run.answer() == "4"


def test_a_file_that_is_loaded_leaves_the_working_directory_as_it_was(here):
    from cotrain.core.user_code import load_file

    load_file("reward.py", "reward")
    assert os.getcwd() == str(here)
