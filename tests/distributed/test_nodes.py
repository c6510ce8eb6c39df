"""Runs on a Ray of two machines, which are two raylets of this one: a machine that dies takes its processes with it."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cotrain.core.errors import ConfigError
from cotrain.distributed.cluster_file import Cluster
from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.distributed.ray_join import check_address
from cotrain.distributed.ray_processes import PATIENCE, RayLauncher
from cotrain.runs import run as loop
from tests.distributed.commands import below
from tests.distributed.test_several import RECIPES, digest, undisturbed  # noqa: F401  a fixture

pytestmark = pytest.mark.whole
STORE = 100 * 2**20  # bytes of each machine's object store


class Nodes:
    """Ray's head, and another machine beside it."""

    def __init__(self):
        RayLauncher(Cluster())  # sets what Ray reads when it is imported
        from ray.cluster_utils import Cluster as Raylets

        self._raylets = Raylets()
        self.head = self.add(include_dashboard=False)
        self.address = self._raylets.address
        self.other = self.add()

    def add(self, **settings):
        """One more. Ray gives it 30 seconds, which a busy machine does not keep: then once more, for three minutes."""
        until, before = time.monotonic() + PATIENCE, set(below(os.getpid()))
        while True:
            try:
                return self._raylets.add_node(num_cpus=1, object_store_memory=STORE, **settings)
            except Exception as error:
                for pid in set(below(os.getpid())) - before:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if "timed out" not in str(error) or time.monotonic() > until:
                    raise

    def lose(self):
        """At once, as a machine whose power fails."""
        self._raylets.remove_node(self.other, allow_graceful=False)

    def end(self):
        self._raylets.shutdown()


@pytest.fixture
def nodes(left_over):
    made = Nodes()
    yield made
    made.end()
    assert left_over(60) == {}


class Losing(RayLauncher):
    """Puts one process on the other machine, as long as there is one, which is lost with one of the questions to it."""

    def __init__(self, nodes, what, at):
        super().__init__(Cluster(address=nodes.address, deadline=120.0))
        self.nodes, self.what, self.at, self.asked, self.lost = nodes, what, at, 0, 0

    def begin(self, what, host, settings):
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self.nodes.other if what == self.what else self.nodes.head
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        self.where = "DEFAULT" if self.lost else there  # then it is for Ray to find one
        made = super().begin(what, host, settings)
        return Watched(made, self) if what == self.what else made

    def actor_options(self, what, host):
        return {**super().actor_options(what, host), "scheduling_strategy": self.where}


class Watched:
    """Of a process whose machine is lost."""

    def __init__(self, process, losing):
        self._process, self._losing = process, losing
        self.wait, self.kill = process.wait, process.kill

    def ask(self, method, *arguments):
        return self.wait(self.send(method, *arguments), method)

    def send(self, method, *arguments):
        losing = self._losing
        losing.asked += 1
        reference = self._process.send(method, *arguments)
        if losing.asked == losing.at:
            losing.lost += 1
            losing.nodes.lose()
        return reference


@pytest.mark.parametrize(("what", "at"), [(ENGINE, 20), (LEARNERS, 20)])
def test_a_machine_that_is_lost_changes_nothing(what, at, nodes, undisturbed, tmp_path):  # noqa: F811
    launcher = Losing(nodes, what, at)
    loop.start_run(RECIPES["adapters"](), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher))
    assert launcher.lost == 1
    assert digest(tmp_path / "run") == undisturbed("adapters")


JOIN = """
import sys
import ray
from cotrain.distributed.cluster_file import Cluster
from cotrain.distributed.ray_processes import RayLauncher
RayLauncher(Cluster(address=sys.argv[1])).start()
print(ray.get(ray.remote(lambda: "joined").remote()))
"""


class RayWithToken:
    """A Ray head that asks for a token. On a busy machine a head may end soon after it began, as it has not heard from
    its own processes in time; then another is begun."""

    def __init__(self, home: Path) -> None:
        self.log = home / "ray.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""
        (home / ".ray").mkdir()
        (home / ".ray/auth_token").write_text("ab" * 32)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
        self.environment |= {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def begin(self, until: float) -> None:
        """Begin a head, and wait until it can be reached."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        ray = Path(sys.executable).parent / "ray"
        command = [ray, "start", "--head", "--block", "--include-dashboard", "false", "--port", str(port)]
        sizes = ["--num-cpus", "1", "--object-store-memory", str(STORE)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *sizes], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        while not self.has_ended():
            assert time.monotonic() < until, self.log.read_text()
            with suppress(ConfigError):
                check_address(self.address)
                return
            time.sleep(0.5)

    def join(self, **settings: str) -> str:
        """What a program that joins prints, or the last line of its error."""
        until = time.monotonic() + PATIENCE
        while True:
            if self.has_ended():
                assert time.monotonic() < until, self.log.read_text()
                self.begin(until)
            command = [sys.executable, "-c", JOIN, self.address]
            joined = subprocess.run(command, env=self.environment | settings, capture_output=True, text=True)
            output = joined.stdout.strip() or joined.stderr.strip().splitlines()[-1]
            is_late = "Failed to connect" in output  # a head on a busy machine answers late
            if not (is_late or self.has_ended()) or time.monotonic() > until:
                return output

    def end(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture
def ray_with_token(left_over, tmp_path):
    ray_head = RayWithToken(tmp_path)
    try:
        yield ray_head
    finally:
        ray_head.end()


def test_a_ray_that_asks_for_a_token_is_joined_with_it_alone(ray_with_token, tmp_path):
    joined = ray_with_token.join
    assert joined() == "joined"
    assert "refuses that of RAY_AUTH_TOKEN" in joined(RAY_AUTH_TOKEN="cd" * 32)
    assert "there is none here" in joined(HOME=str(tmp_path / "elsewhere"))
