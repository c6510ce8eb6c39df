"""Runs whose engine and learners are real processes of Ray, some of them killed."""

import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from cotrain.distributed import ray_nodes
from cotrain.distributed.cluster_file import Cluster
from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.distributed.ray_processes import RayLauncher, RayProcess, inspect_remote_python
from cotrain.runs import run as loop
from tests.distributed.test_several import RECIPES, digest, undisturbed  # noqa: F401  a fixture
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

pytestmark = pytest.mark.whole
CLUSTER = Cluster(cpus=2, object_store_mb=200, deadline=300.0)


@pytest.fixture(scope="module")
def ray_here():
    """One Ray for the tests of this file. It fails where Ray does not start, also on a machine that is too busy: it is
    tried for three minutes."""
    launcher = RayLauncher(CLUSTER)
    launcher.start()
    yield
    launcher.stop()


class Killing(RayLauncher):
    """Kills a process of one kind at these of the questions to it: SIGKILL while that one is answered."""

    def __init__(self, what: str, at: Iterable[int], cluster: Cluster = CLUSTER) -> None:
        super().__init__(cluster)
        self.what, self.at, self.asked, self.killed = what, set(at), 0, 0

    def begin(self, what, host, settings):
        made = super().begin(what, host, settings)
        return _Watched(made, self) if what == self.what else made


class _Watched:
    def __init__(self, process: RayProcess, killing: Killing) -> None:
        self._process, self._killing = process, killing
        self.wait, self.kill = process.wait, process.kill

    def ask(self, method, *arguments):
        return self.wait(self.send(method, *arguments), method)

    def send(self, method, *arguments):
        killing = self._killing
        killing.asked += 1
        due = killing.asked in killing.at
        pid = pid_of(self._process) if due else 0
        reference = self._process.send(method, *arguments)
        if due:
            killing.killed += 1
            os.kill(pid, signal.SIGKILL)
        return reference


@pytest.mark.parametrize("what", [ENGINE, LEARNERS])
def test_kills_change_nothing(what, ray_here, undisturbed, tmp_path):  # noqa: F811
    launcher = Killing(what, (13, 20))  # fewer than an undisturbed run asks; torture/processes.py kills at more
    loop.start_run(RECIPES["adapters"](), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher))
    assert launcher.killed == 2
    assert digest(tmp_path / "run") == undisturbed("adapters")


@pytest.mark.cluster
def test_a_moving_average_by_ray_is_that_of_one_process(ray_here, undisturbed, tmp_path):  # noqa: F811
    """Undisturbed, as ``tango`` is by the command (``test_ray_command.py``)."""
    loop.start_run(
        RECIPES["EMA teacher"](),
        tmp_path / "run",
        checkpoint_every=1,
        backend=MultiProcessBackend(RayLauncher(CLUSTER)),
    )
    assert digest(tmp_path / "run") == undisturbed("EMA teacher")


def test_machines_that_do_not_answer_in_time_are_told(ray_here):
    (silent,) = ray_nodes.ask_machines(None, [TINY], patience=0.0)
    assert silent["error"] == "no answer within 0 seconds"
    (machine,) = ray_nodes.ask_machines(None, [TINY, "/no/model"], patience=300.0)
    (line,) = ray_nodes.machine_problems(machine, machine["python"], None)
    assert "'/no/model'" in line and TINY not in line
    with refuses("E_RAY_SILENT", names=("Ray here", "0 seconds", "/python")):
        inspect_remote_python("/python", "here", 0.0)


def test_a_machine_without_the_model_is_told_by_the_command_before_anything_is_loaded(
    ray_here, tmp_path, monkeypatch, capsys
):
    """A path that leads there from here alone."""
    import ray

    shutil.copytree(TINY, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    address = ray.get_runtime_context().gcs_address
    (tmp_path / "cluster.toml").write_text(f'address = "{address}"')
    flags = ["--backend", "ray", "--cluster", "cluster.toml", "--device", "cpu", "--model", "./model"]
    command_refuses(["run", "grpo", *flags, "--out", "run"], f"E_MACHINES_DIFFER: {address} | './model'", capsys)
    assert not (tmp_path / "run").exists() and ray.is_initialized()


def test_gpus_that_a_ray_does_not_have_are_not_waited_for(ray_here, monkeypatch):
    monkeypatch.setattr(ray_nodes, "ARRIVAL", 0.0)
    joined = RayLauncher(Cluster(address="auto", gpus={"LearnerHost": 99.0}))
    with refuses("E_TOO_FEW_GPUS", names=("[learner] gpus = 99", "--cluster", "at auto")):
        joined.start()


def test_a_silent_process_is_killed_at_its_deadline(ray_here):
    class Sleeper:
        def sleep(self):
            time.sleep(600)

    process = RayLauncher(Cluster(deadline=30.0)).begin("the sleeper", Sleeper, ())
    pid = pid_of(process)
    process._deadline = 1.0
    os.kill(pid, signal.SIGSTOP)
    with refuses("E_PROCESS_SILENT", names=("the sleeper", "sleep within 1 seconds")):
        process.ask("sleep")
    assert gone(pid)


def pid_of(process: RayProcess) -> int:
    import ray

    return ray.get(process.actor.pid.remote())


def gone(pid: int) -> bool:
    """Within a minute; one that nobody has waited for yet counts."""
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False
