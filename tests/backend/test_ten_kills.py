"""Ten kills of each kind of process: the engine, the learners, ranks, and the command itself. Runs end as undisturbed.

Half of the points are killed before a question reaches the process, half while it answers. Processes are begun by a
server that has torch loaded (``processes.Apart``); ``test_on_ray.py`` kills those of Ray.
"""

import os
import signal
import sys
import time
from multiprocessing import forkserver, get_context
from pathlib import Path

import pytest
import torch

from cotrain.backend.several import Several
from cotrain.loop import run as loop
from tests.backend.processes import Apart
from tests.backend.test_group import recipe as in_parts
from tests.backend.test_several import RECIPES, digest, undisturbed  # noqa: F401  a fixture

pytestmark = pytest.mark.whole

ENGINES = (  # before, amid
    ([(-1, "counts", 1), (-1, "advance", 3), (-1, "advance", 19)], [(-1, "advance", 11), (-1, "publish", 2)]),
    ([(-1, "advance", 7), (-1, "publish", 1)], [(-1, "advance", 1), (-1, "advance", 15), (-1, "advance", 23)]),
)
LEARNERS = (
    ([(-1, "opened", 1), (-1, "update", 2), (-1, "state", 6)], [(-1, "logprobs", 1), (-1, "tensors", 4)]),
    ([(-1, "weights", 2), (-1, "logprobs", 3)], [(-1, "update", 1), (-1, "tensors", 1), (-1, "update", 5)]),
)
RANKS = (
    ([(1, "join", 1), (0, "update", 1), (1, "write", 3)], [(1, "gather", 2), (0, "measure", 3)]),
    ([(0, "address", 1), (1, "update", 4), (0, "write", 2)], [(0, "join", 4), (1, "logprobs", 2)]),
)
COMMAND = (1, 2, 4, 7, 10, 13, 16, 19, 22, 26)  # which question of a command is its last one


def made(recipe, out, kills, amid, world=1):
    """A run in which each of these is killed."""
    torch.set_num_threads(1)
    launcher = Apart(kills, amid)
    try:
        loop.start(recipe, out, checkpoint_every=1, backend=Several(launcher, world=world))
    finally:
        launcher.stop()
    assert launcher.killed == len(kills) + len(amid), launcher.asked
    assert not any(process.process.is_alive() for process in launcher.processes)


@pytest.mark.parametrize("part", [0, 1])
def test_ten_kills_of_the_engine_and_ten_of_the_learners(part, undisturbed, tmp_path):  # noqa: F811
    """Five of each in a run."""
    (before, amid), (others, others_amid) = ENGINES[part], LEARNERS[part]
    made(RECIPES["adapters"](), tmp_path / "run", before + others, amid + others_amid)
    assert digest(tmp_path / "run") == undisturbed("adapters")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """The digest of the run on two ranks, none of them lost."""
    out = tmp_path_factory.mktemp("ranks") / "run"
    made(in_parts("adapters"), out, [], [], world=2)
    return digest(out)


@pytest.mark.parametrize("part", [0, 1])
def test_ten_kills_of_ranks(part, on_two, tmp_path):
    made(in_parts("adapters"), tmp_path / "run", *RANKS[part], world=2)
    assert digest(tmp_path / "run") == on_two


class Ending(Apart):
    """Ends the command itself with its question of this number, to whichever process."""

    def __init__(self, last):
        super().__init__()
        self.left, self.answered = last, last % 2 == 0

    def begin(self, what, host, settings):
        made = super().begin(what, host, settings)
        send = made.send

        def counted(method, *arguments):
            self.left -= 1
            if self.left:
                return send(method, *arguments)
            if self.answered:
                send(method, *arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        made.send = counted
        return made


def command(out: Path, last: int) -> int:
    """Begin the run or go on with it, in a process of its own; its exit code, or minus the signal that ended it."""
    get_context("forkserver").set_forkserver_preload(["tests.backend.preloaded"])
    forkserver.ensure_running()
    child = os.fork()
    if child == 0:
        forkserver._forkserver.ensure_running = lambda: None  # the parent's serves
        code, launcher = 1, Ending(last)
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            backend, recipe = Several(launcher), RECIPES["adapters"]()
            if (out / "recipe.json").exists():
                loop.resume(recipe, out, backend=backend)
            else:
                loop.start(recipe, out, checkpoint_every=1, backend=backend)
            code = 0
        finally:
            launcher.stop()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def served() -> list[str]:
    """Processes that the server has begun and that are left."""
    pid = forkserver._forkserver._forkserver_pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_ten_kills_of_the_command(undisturbed, tmp_path):  # noqa: F811
    torch.set_num_threads(1)
    out = tmp_path / "run"
    assert [command(out, last) for last in COMMAND] == [-signal.SIGKILL] * len(COMMAND)
    assert command(out, 10**6) == 0
    assert digest(out) == undisturbed("adapters")
    until = time.monotonic() + 60.0
    while (left := served()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
