"""``--world`` as users call it: a run on two ranks, its directory, one that loses a rank, and one that changes their
number on its way."""

import os
import signal
import subprocess
import time

import pytest

from tests.distributed.commands import (
    COMMAND,
    FLAGS,
    after_a_step,
    begun,
    below,
    lines,
    named,
)
from tests.distributed.test_group import gap
from tests.distributed.test_several import digest

pytestmark = pytest.mark.whole
SHARED = [*FLAGS, *(f"--set=policies.{policy}.micro_tokens=60" for policy in ("generator", "verifier"))]
TWO = ["--backend", "ray", "--world", "2"]


def done(*arguments):
    said = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return said.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of the same flags: in one process, and on two ranks."""
    local, ranks = tmp_path_factory.mktemp("local") / "run", tmp_path_factory.mktemp("ranks") / "run"
    done("run", "tango", *SHARED, "--out", local)
    done("run", "tango", *SHARED, *TWO, "--out", ranks)
    return local, ranks


def test_two_ranks_end_near_one_process_and_their_run_is_read_without_them(runs, left_over, tmp_path):
    local, ranks = runs
    assert gap(ranks, local) < 1e-4
    assert digest(ranks)["metrics"] != digest(local)["metrics"]  # both ranks had a share
    assert "solver" in done("eval", ranks, "--problems", "2")
    done("export", ranks, "--role", "solver", "--out", tmp_path / "model")
    assert (tmp_path / "model" / "config.json").exists()
    assert "step" in done("chat", ranks, "--once", "Tom has 2 apples and finds 3 more. How many has he?").lower()
    assert left_over(60) == {}


def test_a_killed_rank_changes_nothing(runs, left_over, tmp_path):
    process = begun("run", "tango", *SHARED, *TWO, "--out", tmp_path / "run")
    after_a_step(process, tmp_path / "run")
    hosts = [pid for pid in below(process.pid) if "ray::Hosting" in named(pid)]
    assert len(hosts) == 3  # two ranks, the engine
    os.kill(hosts[1], signal.SIGKILL)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert "is lost" in text or "has lost the others" in text
    assert digest(tmp_path / "run") == digest(runs[1])
    assert left_over(60) == {}


def test_a_run_begun_on_two_ranks_goes_on_in_one_process_and_on_two_again(runs, left_over, tmp_path):
    out = tmp_path / "run"
    process = begun("run", "tango", *SHARED, *TWO, "--out", out)
    after_a_step(process, out)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, text
    if lines(out / "metrics.jsonl") < 2:
        process = begun("resume", out)
        while lines(out / "metrics.jsonl") < 2 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=300)
        assert "was begun with --world 2 and goes on with --world 1" in text
    done("resume", out, *TWO)
    assert gap(out, runs[0]) < 1e-4
    assert left_over(60) == {}
