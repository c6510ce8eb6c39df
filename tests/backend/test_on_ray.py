"""Runs whose engine and learners are real processes of Ray, some of them killed."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from cotrain.backend.cluster_file import Cluster
from cotrain.backend.on_ray import Ray, RayProcess
from cotrain.backend.several import ENGINE, LEARNERS, Several
from cotrain.core.errors import ConfigError, ProcessLost
from cotrain.loop import run as loop
from tests.backend.test_several import RECIPES, digest, undisturbed  # noqa: F401  a fixture

pytestmark = pytest.mark.whole
CLUSTER = Cluster(cpus=2, object_store_mb=200, deadline=300.0)


@pytest.fixture(scope="module")
def ray_here():
    """One Ray for the tests of this file."""
    launcher = Ray(CLUSTER)
    try:
        launcher.start()
    except ConfigError as error:
        skip_where_late(str(error))
        raise
    yield
    launcher.stop()


def skip_where_late(said: str) -> None:
    """Ray gives its daemon 30 seconds to start, which no setting changes; that is no fault of what is tested here."""
    if "timed out during startup" in said:
        pytest.skip("this machine is too busy for Ray to start")


class Killing(Ray):
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
        pid = self._process.ask("pid") if due else 0
        reference = self._process.send(method, *arguments)
        if due:
            killing.killed += 1
            os.kill(pid, signal.SIGKILL)
        return reference


@pytest.mark.parametrize("what", [ENGINE, LEARNERS])
def test_kills_change_nothing(what, ray_here, undisturbed, tmp_path):  # noqa: F811
    launcher = Killing(what, (13, 20))  # fewer than an undisturbed run asks; torture/processes.py kills at more
    loop.start(RECIPES["adapters"](), tmp_path / "run", checkpoint_every=1, backend=Several(launcher))
    assert launcher.killed == 2
    assert digest(tmp_path / "run") == undisturbed("adapters")


def test_a_silent_process_is_killed_at_its_deadline(ray_here):
    class Sleeper:
        def pid(self):
            return os.getpid()

        def sleep(self):
            time.sleep(600)

    process = Ray(Cluster(deadline=30.0)).begin("the sleeper", Sleeper, ())
    pid = process.ask("pid")
    process._deadline = 1.0
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessLost, match="the sleeper did not answer sleep within 1 seconds and was killed"):
        process.ask("sleep")
    assert gone(pid)


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
