"""Where no limit on processes holds, programs were run all the same."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sentences import check_line

ROW = {
    "task_id": 700,
    "text": "Twice.",
    "code": "def twice(x):\n    return 2 * x",
    "test_list": ["assert twice(1) == 2"],
}
ROOT = Path(__file__).resolve().parents[2]
PR_CAPBSET_DROP = 24


def without_rights():
    """Root that may do nothing that another user may not, as in a container without capabilities."""
    libc = ctypes.CDLL(None)
    for capability in range(41):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def run(*words):
    command = [sys.executable, *words]
    environment = {**os.environ, "PATH": "/nowhere"}  # no bwrap
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, preexec_fn=without_rights)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "mbpp.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    return str(path)


needs_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux")
REFUSED = """
import sys
from cotrain.core.errors import ConfigError
from cotrain.data.sources import task_source
try:
    task_source("mbpp", sys.argv[1])
except ConfigError as error:
    print(error.code, error)
"""


@pytest.mark.whole
@needs_root
def test_tasks_that_would_have_no_sandbox_are_refused(data):
    done = run("-c", REFUSED, data)
    assert done.stdout.startswith("E_NO_SANDBOX ") and "install bubblewrap" in done.stdout, done.stderr


@pytest.mark.whole
@needs_root
def test_a_run_that_would_have_no_sandbox_is_refused_before_it_begins(data, tmp_path):
    words = ["run", "grpo", "--tasks", "mbpp", "--data", data, "--out", str(tmp_path / "run"), "--log-level", "debug"]
    done = run("-m", "cotrain.cli.main", *words)
    assert done.returncode == 2
    check_line(done.stderr.splitlines()[-1], "E_NO_SANDBOX: install bubblewrap")
    assert not (tmp_path / "run").exists()
