"""One file that several processes write is never a part of what one of them wrote, and what a killed one left goes."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from fault_files import KILLED, FaultyFiles, in_child

from cotrain.storage.file_ops import REAL_FILES, Files, replace_file


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


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    counted = FaultyFiles()
    replace_file(path, b"old", files=counted)
    killing = FaultyFiles("kill", counted.log.index("rename"))
    assert in_child(partial(replace_file, path, b"new", files=killing)) == KILLED
    (left,) = (name for name in os.listdir(tmp_path) if name != "table.json")
    number_of_killed = left.split("-")[-2]
    living = left.replace(f"-{number_of_killed}-", f"-{os.getppid()}-")
    (tmp_path / living).write_bytes(b"")
    (tmp_path / f".other.json{left.removeprefix('.table.json')}").write_bytes(b"")
    replace_file(path, b"newer", files=REAL_FILES)
    assert path.read_bytes() == b"newer"
    assert sorted(os.listdir(tmp_path)) == sorted([living, f".other.json{left.removeprefix('.table.json')}", path.name])


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
