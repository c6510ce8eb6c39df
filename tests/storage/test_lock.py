"""One process per run directory, whatever way the last one ended."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest
from fault_files import in_child

from cotrain.core.errors import RunDirectoryError
from cotrain.storage.lock import NAME, RunLock
from tests.sentences import refuses


def held_by_a_child(directory: Path) -> int:
    """A child process that takes the lock and sleeps; returns its number once it has the lock."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lock = RunLock(directory)
            os.write(tell, b"x")
            time.sleep(600)
            lock.release()
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    os.close(tell)
    return child


def test_a_second_holder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "a"
    with (
        RunLock(directory),
        refuses("E_RUN_DIRECTORY_IN_USE", names=(str(directory), f"process {os.getpid()} since ")),
    ):
        RunLock(directory)
    lock = RunLock(directory)
    lock.release()
    lock.release()


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    child = held_by_a_child(tmp_path)
    try:
        with refuses("E_RUN_DIRECTORY_IN_USE", names=f"process {child} since "):
            RunLock(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    RunLock(tmp_path).release()


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    ready, tell = os.pipe()
    stop, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        os.close(go)
        os.read(stop, 1)  # until the parent closes its end
        os._exit(0)
    os.read(ready, 1)
    with pytest.raises(RunDirectoryError):  # the child's letting go of its copy does not unlock
        RunLock(tmp_path)
    lock.release()
    try:
        RunLock(tmp_path).release()
    finally:
        for handle in (ready, tell, stop, go):
            os.close(handle)
        os.waitpid(child, 0)


def test_only_one_of_many_gets_it(tmp_path: Path) -> None:
    with RunLock(tmp_path):

        def refused() -> None:
            with pytest.raises(RunDirectoryError):
                RunLock(tmp_path)

        assert [in_child(refused) for _ in range(5)] == [0] * 5


def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with refuses("E_RUN_DIRECTORY_UNUSABLE"):
        RunLock(tmp_path / "file")


def test_a_lock_that_is_removed_leaves_nothing_and_is_one_again(tmp_path: Path) -> None:
    """Who has opened the file that was removed must not take it for the lock."""
    lock = RunLock(tmp_path)
    other = os.open(tmp_path / NAME, os.O_RDWR)
    lock.remove()
    assert not list(tmp_path.iterdir())
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the old file is free and means nothing any more
    with RunLock(tmp_path):
        assert (tmp_path / NAME).read_text().startswith(f"{os.getpid()} since ")
    os.close(other)


@pytest.mark.parametrize(
    ("error", "code"),
    [(BlockingIOError(), "E_RUN_DIRECTORY_IN_USE"), (OSError(37, "No locks available"), "E_RUN_DIRECTORY_UNUSABLE")],
)
def test_a_lock_that_is_not_got_leaves_no_open_file(
    error: OSError, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise error

    monkeypatch.setattr("fcntl.flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with refuses(code):
        RunLock(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
