"""What is told of large files while they are read and written."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from cotrain.core import verbosity
from cotrain.storage import io_progress
from cotrain.storage.file_ops import read_blocks
from cotrain.storage.io_progress import MegabytePace, WatchedFiles, directory_bytes, watch_growth


def test_bytes_are_counted_in_whole_megabytes() -> None:
    counted = MegabytePace(2_500_001, "{} MB", print)
    for _ in range(5):
        counted.add(500_000)
    assert counted.pace.done == 2  # of 3
    counted.add(500_000)
    assert counted.pace.done == 3


def test_what_is_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    told: list[int] = []
    assert len(b"".join(read_blocks(WatchedFiles(told.append), tmp_path / "file"))) == sum(told) == 3_000_000


def test_a_directory_that_grows_says_how_far_it_is(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(io_progress, "LOOK", 0.01)
    monkeypatch.setattr(verbosity, "PACE_SECONDS", 0.0)
    said: list[str] = []
    (tmp_path / "in").mkdir()
    with watch_growth(tmp_path / "in", 10_000_000, "{} MB written", said.append):
        for part in range(4):
            (tmp_path / str(part)).write_bytes(b"x" * 2_000_000)
            (tmp_path / str(part)).rename(tmp_path / "in" / str(part))  # no look finds half of it
            deadline = time.monotonic() + 60
            while len(said) <= part and time.monotonic() < deadline:
                time.sleep(0.005)
    assert directory_bytes(tmp_path / "in") == 8_000_000
    assert len(said) == 4 and said[0].startswith("2 of 10 MB written, ") and said[-1].startswith("8 of 10 MB written, ")


def test_what_is_over_at_once_says_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    threads = threading.active_count()
    with watch_growth(tmp_path, 10, "{}", said.append):
        (tmp_path / "file").write_bytes(b"x" * 10)
    assert said == [] and threading.active_count() == threads
