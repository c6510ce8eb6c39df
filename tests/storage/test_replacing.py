"""One file that several processes write is never a part of what one of them wrote, and what a killed one left goes, a
day later."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest
from fault_files import KILLED, FaultyFiles, in_child

from cotrain.storage.file_ops import ABANDONED_S, REAL_FILES, Files, replace_file


class InterruptedFiles(Files):
    """Half way through the first write, another writer writes all of the same file."""

    def __init__(self, path: Path, other_payload: bytes) -> None:
        self.path, self.other_payload = path, other_payload
        self.was_interrupted = False

    def write(self, file, block):
        if self.was_interrupted:
            return super().write(file, block)
        self.was_interrupted = True
        taken = super().write(file, block[: len(block) // 2])
        replace_file(self.path, self.other_payload)
        assert self.path.read_bytes() == self.other_payload
        return taken


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    """Both had one staging file: the second renamed the first one's half-written text into place."""
    path = tmp_path / "table.json"
    replace_file(path, b"mine" * 100, files=InterruptedFiles(path, b"another" * 100))
    assert path.read_bytes() == b"mine" * 100
    assert os.listdir(tmp_path) == ["table.json"]


def kill_while_writing(path: Path) -> Path:
    """The file that a process leaves which is killed before it gives ``path`` its new content."""
    before = set(path.parent.iterdir())
    counted = FaultyFiles()
    replace_file(path.with_name("counted"), b"", files=counted)
    path.with_name("counted").unlink()
    killing = FaultyFiles("kill", counted.log.index("rename"))
    assert in_child(partial(replace_file, path, b"new", files=killing)) == KILLED
    (left,) = set(path.parent.iterdir()) - before
    return left


def make_old(path: Path) -> None:
    then = time.time() - 2 * ABANDONED_S
    os.utime(path, (then, then))


def test_what_a_killed_writer_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    old_left = kill_while_writing(path)
    of_another = kill_while_writing(tmp_path / "other.json")
    make_old(old_left)
    make_old(of_another)
    replace_file(path, b"newer", files=REAL_FILES)
    assert path.read_bytes() == b"newer"
    assert set(tmp_path.iterdir()) == {path, of_another}


def test_what_is_written_in_another_container_stays(tmp_path: Path) -> None:
    """Its process has a number that no process has here, under the same host name: it was taken for a killed one's."""
    path = tmp_path / "table.json"
    written_there = kill_while_writing(path)
    replace_file(path, b"from here")
    assert set(tmp_path.iterdir()) == {path, written_there}


def test_a_folder_is_listed_once_for_each_file_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write listed it, which took longer than the write itself where the folder had many files."""
    listed: list[Path] = []
    list_folder = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(Path(folder)) or list_folder(folder))
    for number in range(3):
        replace_file(tmp_path / "table.json", b"%d" % number)
    assert listed == [tmp_path]
    assert (tmp_path / "table.json").read_bytes() == b"2"


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    class StoppedFiles(Files):
        def write(self, file, block):
            raise KeyboardInterrupt

    try:
        replace_file(tmp_path / "table.json", b"new", files=StoppedFiles())
    except KeyboardInterrupt:
        assert os.listdir(tmp_path) == []
        return
    raise AssertionError("the interrupt was lost")
