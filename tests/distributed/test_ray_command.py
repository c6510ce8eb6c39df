"""``--backend ray`` as users call it: what it prints, and what it leaves."""

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
    below,
    named,
)
from tests.distributed.test_several import digest
from tests.sentences import check_line

pytestmark = pytest.mark.whole


@pytest.mark.cluster
def test_the_command_ends_with_the_local_run_and_without_processes(local, left_over, tmp_path):
    out = tmp_path / "run"
    said = subprocess.run([*COMMAND, "run", "tango", *RAY, *FLAGS, "--out", out], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert left_over(60) == {}
    assert digest(out) == local[0]
    assert said.stderr == local[1].stderr  # Ray says nothing of its own
    one, other = (  # how far a measurement is, is told where it takes long
        [line for line in text.splitlines() if not line.startswith("  measured ")]
        for text in (said.stdout, local[1].stdout)
    )
    assert len(one) == len(other)


def test_the_terminal_shows_a_lost_engine_in_the_words_of_the_run_alone(local, left_over, tmp_path):
    out = tmp_path / "run"
    process = begun("run", "tango", *RAY, *FLAGS, "--out", out)
    after_a_step(process, out)
    hosts = [pid for pid in below(process.pid) if "ray::Hosting" in named(pid)]
    assert len(hosts) == 2  # learners, engine
    for pid in hosts:
        os.kill(pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert digest(out) == local[0]
    assert "is lost during" in text
    assert "raylet" not in text
    assert left_over(60) == {}


def test_a_killed_command_leaves_no_process_after_two_minutes(left_over, tmp_path):
    process = begun("run", "tango", *RAY, *FLAGS, "--out", tmp_path / "run")
    after_a_step(process, tmp_path / "run")
    process.kill()
    process.communicate(timeout=300)
    assert left_over(300) == {}  # a busy machine takes longer


@pytest.mark.cluster
def test_learners_of_their_own_by_ray_have_the_bits_of_the_local_run(local, left_over, tmp_path):
    out, cluster = tmp_path / "run", tmp_path / "cluster.toml"
    cluster.write_text("[learner.verifier]\nworld = 1\n")
    words = ["run", "tango", *RAY, "--cluster", cluster, *FLAGS, "--out", out]
    said = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert left_over(60) == {}
    assert digest(out) == local[0]
    assert "learners of verifier" in (out / "timings.jsonl").read_text()


def test_a_table_of_no_policy_is_one_line(tmp_path):
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("[learner.verifyer]\ngpus = 0\n")
    words = ["run", "tango", *RAY, "--cluster", cluster, *FLAGS, "--out", tmp_path / "run", "--log-level", "debug"]
    said = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert said.returncode == 2
    check_line(said.stderr.splitlines()[-1], "E_CLUSTER_POLICY: 'verifier' | [learner.verifyer]")
