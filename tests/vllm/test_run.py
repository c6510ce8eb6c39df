"""Runs by the command, with Ray and vLLM in another Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm.worker import PYTHON

SMALL = [
    *("--warmup", "0", "--ratio", "1", "1", "--tasks-per-step", "2", "--group-size", "2"),
    *("--evaluation-tasks", "1", "--reviews", "2", "--steps", "2"),
]


def command(folder, *words, replicas=1):
    cluster = folder / "cluster.toml"
    cluster.write_text(f"[engine]\npython = {PYTHON!r}\ncache_mb = 256\nreplicas = {replicas}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "cotrain", *words, "--cluster", str(cluster)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("flags", [[], ["--lora", "4"]], ids=["models", "adapters"])
def test_tango_is_trained_and_the_same_twice(flags, tmp_path):
    found = []
    for number in "12":
        out = tmp_path / number
        command(tmp_path, "run", "tango", *SMALL, *flags, "--backend", "ray", "--engine", "vllm", "--out", str(out))
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        gaps = [value for row in rows for name, value in row.items() if name.endswith("sampler_trainer_diff")]
        masked = [value for row in rows for name, value in row.items() if name.endswith("mismatch_masked")]
        assert len(gaps) == len(masked) == 2 and max(gaps) < 1e-4 and set(masked) == {0.0}
        found.append((out / "metrics.jsonl").read_bytes())
    assert json.loads((out / "provenance.json").read_text())["backend"]["engine"] == "vllm"
    assert found[0] == found[1]


@pytest.mark.parametrize(("replicas", "flags"), [(2, ()), (1, ("--world", "2"))], ids=["two replicas", "two ranks"])
def test_several_engines_and_several_ranks(replicas, flags, tmp_path):
    """Each replica answers, and what the learners make of the answers agrees with what the engines said of them."""
    out = tmp_path / "run"
    words = ["run", "tango", *SMALL, "--backend", "ray", "--engine", "vllm", *flags, "--out", str(out)]
    command(tmp_path, *words, replicas=replicas)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    gaps = [value for row in rows for name, value in row.items() if name.endswith("sampler_trainer_diff")]
    assert len(gaps) == 2 and max(gaps) < 1e-4
    timings = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    spoke = {name for row in timings for name in row if name.endswith("/tokens_per_second") and row[name] > 0.0}
    assert len(spoke) == 2 * replicas, sorted(spoke)  # of the generator and of the verifier


def test_killed_engines_change_nothing(tmp_path):
    """SIGKILL of the generator's process, twice; weights, metrics and rollouts are those of an undisturbed run."""
    from cotrain.algorithms.policy_loss import LOOSE
    from cotrain.distributed.cluster_file import Cluster
    from cotrain.distributed.multi_process import MultiProcessBackend
    from cotrain.distributed.placement import VllmPlacement
    from cotrain.inference.vllm import VllmSettings
    from cotrain.recipes.tango import tango
    from cotrain.runs import run as loop
    from tests.distributed.test_on_ray import Killing
    from tests.distributed.test_several import briefly, digest

    cluster = Cluster(cpus=2, object_store_mb=200, deadline=600.0, pythons={"VllmHost": PYTHON})
    sizes = {"tasks_per_step": 2, "group_size": 2, "reviews": 2, "evaluation_tasks": 1, "steps": 2}
    found = []
    for number, at in enumerate(((), (14, 24))):
        recipe = briefly(tango(model="shipped", warmup=0, ratio=(1, 1), lora=4, **sizes))
        launcher = Killing("the engine's process of generator and verifier and reference", at, cluster)
        placing = VllmPlacement(settings=VllmSettings(cache_mb=256))
        backend = MultiProcessBackend(launcher, placing=placing, kind="vllm", bounds=LOOSE)
        loop.start_run(recipe, tmp_path / str(number), checkpoint_every=1, backend=backend)
        assert launcher.killed == len(at)
        found.append(digest(tmp_path / str(number)))
    assert found[0] == found[1]


def test_the_doctor_sees_that_weights_arrive(tmp_path):
    said = command(tmp_path, "doctor")
    assert "publishing    weights arrive" in said and "publishing    adapters arrive" in said
    assert "vllm 0.32" in said and "WRONG" not in said
