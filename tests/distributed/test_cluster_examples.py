"""The example jobs of a cluster: the script of Slurm between stand-ins of what it calls, and the file of KubeRay."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from cotrain.cli.main import main
from cotrain.distributed.cluster_file import read_cluster_file

yaml = pytest.importorskip("yaml")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples/cluster"
STANDINS = {
    "scontrol": 'case "$1" in show) printf "node1\\nnode2\\n";; *) echo "$@" >> "$SAID/scontrol.said";; esac',
    "srun": 'while [ "${1#-}" != "$1" ]; do [ "$1" = -w ] && shift; shift; done; exec "$@"',
    "hostname": "echo 10.0.0.1 10.0.0.2",
    "ray": 'echo "$@" >> "$SAID/ray.said"; echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> "$SAID/token.said"',
    "cotrain": 'echo "$@" >> "$SAID/cotrain.said"; mkdir -p "$RUN"; touch "$RUN/recipe.json"; '
    'until [ "$(cat "$SAID/token.said" | wc -l)" -ge $((2 * $(wc -l < "$SAID/cotrain.said"))) ]; do sleep 0.02; done; '
    '[ -e "$SAID/short" ] && exit 0; '
    "trap 'sleep 0.2; exit 143' TERM; touch \"$SAID/began\"; while true; do sleep 0.05; done",
}


@pytest.fixture
def job(tmp_path):
    """Begins the script as Slurm would."""
    for name, body in STANDINS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    place = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(tmp_path), "RUN": str(tmp_path / "runs/mine"),
        "WAIT": "0", "SLURM_JOB_NAME": "mine", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "7",
    }  # fmt: skip
    script = ["bash", str(EXAMPLES / "slurm.sbatch"), "tango", "--model", "x"]
    return lambda: subprocess.Popen(script, env=place, cwd=tmp_path)


def told(place: Path, name: str) -> list[str]:
    return (place / f"{name}.said").read_text().splitlines() if (place / f"{name}.said").exists() else []


@pytest.mark.whole
def test_a_job_at_its_end_saves_is_queued_again_and_goes_on(job, tmp_path):
    first = job()
    while not (tmp_path / "began").exists():
        time.sleep(0.02)
        assert first.poll() is None
    first.send_signal(signal.SIGTERM)  # to the script alone, as --signal=B: does
    assert first.wait(timeout=300) == 143
    assert told(tmp_path, "scontrol") == ["requeue 7"]
    assert re.fullmatch("token [0-9a-f]{64}", "\n".join(set(told(tmp_path, "token"))))  # one for both machines
    (tmp_path / "short").touch()
    assert job().wait(timeout=300) == 0 and told(tmp_path, "scontrol") == ["requeue 7"]
    begun, resumed = map(shlex.split, told(tmp_path, "cotrain"))
    assert begun[:3] == ["run", "tango", "--model"] and begun[-2:] == ["--out", str(tmp_path / "runs/mine")]
    assert resumed[:2] == ["resume", str(tmp_path / "runs/mine")]
    assert read_cluster_file(begun[begun.index("--cluster") + 1]).address == "10.0.0.1:6379"
    started = told(tmp_path, "ray")
    assert len(started) == 4 and sum("--head" in one for one in started) == 2
    assert sum("--address=10.0.0.1:6379" in one for one in started) == 2


def test_the_file_of_kuberay_begins_runs_that_the_command_line_knows(capsys):
    made = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())
    entry = made["spec"]["entrypoint"]
    cluster = tomllib.loads(re.findall(r"""printf "(.*?)" >""", entry)[0].encode().decode("unicode_escape"))
    assert cluster == {"address": "auto", "learner": {"gpus": 1}, "engine": {"gpus": 1}}
    workers = made["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert sum(group["replicas"] for group in workers) == 2  # as many GPUs as processes ask for
    for words in re.findall(r"cotrain (\w+) ([^;]*)", entry):
        flags = {word for word in shlex.split(words[1]) if word.startswith("--")}
        with pytest.raises(SystemExit):
            main(["run", "tango", "--help", "all"] if words[0] == "run" else [words[0], "--help"])
        assert flags <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
