"""A run that changes its backend on its way."""

import os
import signal
import subprocess

import pytest

from tests.distributed.commands import (
    COMMAND,
    FLAGS,
    RAY,
    after_a_step,
    begun,
    lines,
)
from tests.distributed.test_several import digest

pytestmark = pytest.mark.whole
ASKED = [([], RAY, os.kill, signal.SIGTERM), (RAY, [], os.kill, signal.SIGTERM), (RAY, RAY, os.killpg, signal.SIGINT)]


@pytest.mark.parametrize(("first", "then", "ask", "by"), ASKED, ids=["local, Ray", "Ray, local", "Ray, Ctrl-C, Ray"])
def test_a_stopped_run_goes_on_with_either_backend(first, then, ask, by, local, left_over, tmp_path):
    out = tmp_path / "run"
    process = begun("run", "tango", *first, *FLAGS, "--out", out)
    after_a_step(process, out)
    ask(process.pid, by)  # a terminal's Ctrl-C reaches every process of the group
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + by, text
    assert f"cotrain resume {out}" in text
    assert left_over(60) == {}
    assert lines(out / "metrics.jsonl") < 3
    said = subprocess.run([*COMMAND, "resume", out, *then], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert digest(out) == local[0]
    assert left_over(60) == {}
