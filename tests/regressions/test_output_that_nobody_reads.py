"""``cotrain run … | head -2`` ended the run without a checkpoint, and a terminal in cp1252 ended it with
UnicodeEncodeError."""

import json
import os
import subprocess
import sys

import pytest

from cotrain.cli.main import main
from tests.helpers import TINY

COTRAIN = [sys.executable, "-m", "cotrain.cli.main"]
RUN = [*COTRAIN, "run", "grpo", "--model", TINY, "--steps", "3", "--tasks-per-step", "2", "--group-size", "2"]
RUN += ["--evaluation-tasks", "1", "--threads", "1", "--set", "evaluation.splits=[]", "--out"]

HOW = {"stdout": "strict", "stderr": "backslashreplace"}  # what Python does with characters that the encoding lacks


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


@pytest.mark.whole
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_no_encoding_ends_a_command(encoding, tmp_path, monkeypatch):
    """The line that says that the start is measured has an ellipsis, and the wrong model's name a block. Streams as
    Python makes them for a console of this encoding."""
    commands = {
        "ascii": [*RUN, str(tmp_path / "run")],
        "latin-1": [*COTRAIN, "list"],
        "cp1252": [*COTRAIN, "run", "grpo", "--model", "█", "--out", str(tmp_path / "run")],
    }
    files = {name: (tmp_path / name).open("w", encoding=encoding, errors=errors) for name, errors in HOW.items()}
    for name, file in files.items():
        monkeypatch.setattr(sys, name, file)
    monkeypatch.setattr(sys, "argv", commands[encoding][len(COTRAIN) - 1 :])
    code = main()
    for name in HOW:
        getattr(sys, name).flush()
    stdout, stderr = ((tmp_path / name).read_bytes() for name in HOW)
    for file in files.values():
        file.close()
    assert code == (2 if encoding == "cp1252" else 0), stderr
    assert b"Traceback" not in stderr and b"UnicodeEncodeError" not in stderr
    assert (rb"\u2026" in stdout) == (encoding == "ascii")
    assert (rb"\u2588" in stderr) == (encoding == "cp1252")


@pytest.mark.whole
def test_no_encoding_ends_the_process(tmp_path):
    command = [*COTRAIN, "run", "grpo", "--model", "█", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment("cp1252"), capture_output=True, check=False)
    assert done.returncode == 2 and rb"\u2588" in done.stderr and b"Traceback" not in done.stderr
