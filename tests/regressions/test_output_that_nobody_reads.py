"""``cotrain run … | head -2`` ended the run without a checkpoint, and a terminal in cp1252 ended it with
UnicodeEncodeError."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers import TINY

COTRAIN = [sys.executable, "-m", "cotrain.cli"]
RUN = [*COTRAIN, "run", "grpo", "--model", TINY, "--steps", "3", "--tasks-per-step", "2", "--group-size", "2"]
RUN += ["--evaluation-tasks", "1", "--threads", "1", "--set", "evaluation.splits=[]", "--out"]


def environment(encoding):
    return {**os.environ, "PYTHONIOENCODING": encoding}


@pytest.mark.whole
def test_a_run_whose_reader_leaves_goes_on_to_its_end(tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*RUN, str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment("utf-8")
    )
    process.stdout.readline()
    process.stdout.close()
    told = process.stderr.read()
    assert (process.wait(), told) == (0, "")
    assert json.loads((out / "summary.json").read_text())["steps"] == 3
    assert (out / "checkpoints" / "step-000003").is_dir() and (out / "report.html").exists()
    assert (out / "run.log").read_text().count("nothing more is written to stdout (broken pipe)") == 1


@pytest.mark.whole
def test_a_run_without_any_output_goes_on_to_its_end(tmp_path):
    out = tmp_path / "run"
    closed = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *RUN, str(out)], check=False)
    assert closed.returncode == 0 and (out / "summary.json").exists()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_no_encoding_ends_a_command(encoding, tmp_path):
    """The line that says that the start is measured has an ellipsis, and the wrong model's name a block."""
    commands = {
        "ascii": [*RUN, str(tmp_path / "run")],
        "latin-1": [*COTRAIN, "list"],
        "cp1252": [*COTRAIN, "run", "grpo", "--model", "█", "--out", str(tmp_path / "run")],
    }
    done = subprocess.run(commands[encoding], env=environment(encoding), capture_output=True, check=False)
    assert done.returncode == (2 if encoding == "cp1252" else 0), done.stderr
    assert b"Traceback" not in done.stderr and b"UnicodeEncodeError" not in done.stderr
    assert (rb"\u2026" in done.stdout) == (encoding == "ascii")
    assert (rb"\u2588" in done.stderr) == (encoding == "cp1252")
