"""``--async-steps 1`` as users call it: the same run in one process and by Ray, whatever is lost or stopped on its
way."""

import json
import os
import signal
import subprocess

import pytest

from tests.distributed.commands import COMMAND, FLAGS, RAY, after_a_step, begun, below, lines, named
from tests.distributed.test_several import digest
from tests.sentences import check_line

pytestmark = pytest.mark.whole
ASYNC = ["--async-steps", "1"]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The run in one process."""
    out = tmp_path_factory.mktemp("local") / "run"
    said = subprocess.run([*COMMAND, "run", "tango", *ASYNC, *FLAGS, "--out", out], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "note: one process samples and updates in turn, so that --async-steps saves no time here" in said.stdout
    return out


def test_a_run_by_ray_whose_processes_are_killed_is_the_one_of_one_process(local, tmp_path):
    out = tmp_path / "run"
    process = begun("run", "tango", *ASYNC, *RAY, *FLAGS, "--out", out)
    after_a_step(process, out)
    for pid in (pid for pid in below(process.pid) if "ray::Hosting" in named(pid)):
        os.kill(pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert digest(out) == digest(local)


def test_a_stopped_run_by_ray_goes_on_in_one_process(local, tmp_path):
    out = tmp_path / "run"
    process = begun("run", "tango", *ASYNC, *RAY, *FLAGS, "--out", out)
    after_a_step(process, out)
    os.kill(process.pid, signal.SIGTERM)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, text
    assert lines(out / "metrics.jsonl") < 3
    assert any((folder / "ahead.json").exists() for folder in (out / "checkpoints").iterdir())
    words = ["resume", out, "--async-steps", "0", "--log-level", "debug"]
    said = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert said.returncode == 2
    check_line(said.stderr.splitlines()[-1], "E_ASYNC_STEPS_CHANGED: --async-steps 1")
    said = subprocess.run([*COMMAND, "resume", out], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert digest(out) == digest(local)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert any(row.get("generator/updates_behind") is not None for row in rows)
