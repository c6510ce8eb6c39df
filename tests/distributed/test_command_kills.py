"""Ten kills of the command itself, half of them with a question under way. The run ends as undisturbed, and no process
is left."""

import json
import os
import signal
import sys
import time
import warnings
from multiprocessing import forkserver, get_context
from pathlib import Path

import pytest
import torch

from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.runs import run as loop
from tests.distributed.processes import Apart
from tests.distributed.test_several import RECIPES, digest, undisturbed  # noqa: F401  a fixture

pytestmark = [pytest.mark.whole, pytest.mark.cluster]

COMMAND = (1, 2, 4, 7, 10, 13, 16, 19, 22, 26)  # which question of a command is its last one


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
    get_context("forkserver").set_forkserver_preload(["tests.distributed.preloaded"])
    forkserver.ensure_running()
    child = os.fork()
    if child == 0:
        forkserver._forkserver.ensure_running = lambda: None  # the parent's serves
        code, launcher = 1, Ending(last)
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            backend, recipe = MultiProcessBackend(launcher), RECIPES["adapters"]()
            if (out / "recipe.json").exists():
                loop.resume_run(recipe, out, backend=backend)
            else:
                loop.start_run(recipe, out, checkpoint_every=1, backend=backend)
            code = 0
        finally:
            launcher.stop()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def served() -> list[str]:
    """Processes that the server has begun and that are left."""
    pid = forkserver._forkserver._forkserver_pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def without_sparsity(figures: str, policy: str) -> str:
    """Figures as ``digest`` writes them, but for how much of this policy was changed."""
    kept = {key: value for key, value in json.loads(figures).items() if f"{policy}/update_sparsity" not in key}
    return json.dumps(kept, sort_keys=True)


def test_ten_kills_of_the_command(undisturbed, tmp_path):  # noqa: F811
    torch.set_num_threads(1)
    out = tmp_path / "run"
    assert [command(out, last) for last in COMMAND] == [-signal.SIGKILL] * len(COMMAND)
    assert command(out, 10**6) == 0
    found, expected = digest(out), undisturbed("adapters")
    for note in [line for line in (out / "run.log").read_text().splitlines() if "is not measured" in line]:
        warnings.warn(note, stacklevel=1)  # the start is loaded once more for it: a full machine may have no room
        assert "cannot be read" in note or "memory ran out" in note, note
        policy = note.partition("/")[0].split()[-1]
        expected["figures"] = without_sparsity(expected["figures"], policy)
    assert found == expected
    until = time.monotonic() + 60.0
    while (left := served()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
