"""Fixtures of runs in several processes.

No test of processes leaves a coroutine behind that still waits: asyncio would tell of it when it is collected."""

import ctypes
import gc
import os
import signal
import subprocess
import time

import pytest

from tests.distributed.commands import COMMAND, FLAGS, children
from tests.distributed.test_several import digest

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: who is orphaned below this process becomes its child


@pytest.fixture(autouse=True, scope="module")
def what_was_there_before():
    """Is not looked through after each test: that takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_waiting(what_was_there_before, caplog):
    yield
    gc.collect()
    told = [record.getMessage() for phase in ("setup", "call", "teardown") for record in caplog.get_records(phase)]
    assert not [line for line in told if "was destroyed but it is pending" in line]


@pytest.fixture
def left_over():
    """The processes that are left of all that was begun since, after so many seconds; they are killed at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(SUBREAPER, 1, 0, 0, 0) == 0
    before = set(children())

    def left(seconds):
        until = time.monotonic() + seconds
        while (found := {pid: name for pid, name in children().items() if pid not in before}) and (
            time.monotonic() < until
        ):
            time.sleep(0.1)
        return found

    yield left
    for pid in left(0):
        os.kill(pid, signal.SIGKILL)
    assert libc.prctl(SUBREAPER, 0, 0, 0, 0) == 0


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The digest of the run in one process, and what the command printed."""
    out = tmp_path_factory.mktemp("local") / "run"
    said = subprocess.run([*COMMAND, "run", "tango", *FLAGS, "--out", out], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return digest(out), said
