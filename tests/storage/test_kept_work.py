"""Long work keeps its parts beside the output, and goes on with them after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from cotrain.storage import kept_work as module
from cotrain.storage.file_ops import DiskError
from cotrain.storage.kept_work import KeptWork, claim_place, kept_work, stamp_of
from tests.sentences import refuses

SETTINGS = {"model": "m", "tries": 4}


def partial_files(folder):
    return [path.name for path in folder.iterdir() if path.name.endswith(".partial")]


def test_parts_of_an_earlier_try_are_not_made_again(tmp_path):
    made, told = [], []

    def make(value):
        made.append(value)
        return [value, None, 0.1, {"a": (1, 2)}]

    with pytest.raises(KeyboardInterrupt), kept_work(tmp_path / "out.json", SETTINGS, told.append) as work:
        first = work.part("one", lambda: make(1))
        raise KeyboardInterrupt
    with kept_work(tmp_path / "out.json", SETTINGS, told.append) as work:
        assert work.part("one", lambda: make(1)) == first == [1, None, 0.1, {"a": [1, 2]}]
        assert work.within("two").part("one", lambda: make(2))[0] == 2
    assert made == [1, 2] and len(told) == 1 and "earlier try" in told[0]
    assert partial_files(tmp_path) == []


def test_work_of_other_settings_is_left_as_it_is(tmp_path):
    first = KeptWork(tmp_path / "out.json", SETTINGS)
    first.part("one", lambda: 1)
    first.close()
    with kept_work(tmp_path / "out.json", SETTINGS | {"tries": 5}, print) as other:
        assert other.part("one", lambda: 2) == 2
    with kept_work(tmp_path / "out.json", SETTINGS, print) as work:
        assert work.part("one", lambda: 3) == 1


def test_the_same_work_at_once_is_refused(tmp_path):
    first = KeptWork(tmp_path / "out.json", SETTINGS)
    with refuses("E_TARGET_BEING_WRITTEN"):
        KeptWork(tmp_path / "out.json", SETTINGS)
    first.finish()


def test_a_part_that_is_too_long_for_a_row_is_kept_in_pieces(tmp_path, monkeypatch):
    """Rows have a greatest length for their readers: work with a longer one could never be gone on with."""
    monkeypatch.setattr(module, "LONGEST", 16)
    value = {"text": 'said "no" ' * 9, "numbers": [1.5, None]}
    work = KeptWork(tmp_path / "out", SETTINGS)
    work.part("short", lambda: 1)
    assert work.part("long", lambda: value) == value
    work.close()
    lines = work.path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 4 and max(map(len, lines[1:])) < 100
    work.path.write_bytes(b"".join(lines[:-2]))  # killed before the last pieces
    work = KeptWork(tmp_path / "out", SETTINGS)
    assert work.found == 1 and not work.has("long")
    assert work.part("long", lambda: value) == value
    work.close()
    work = KeptWork(tmp_path / "out", SETTINGS)
    assert work.found == 2 and work.part("long", lambda: pytest.fail("made again")) == value
    work.finish()


def test_work_that_could_not_begin_holds_nothing(tmp_path):
    """Whoever mended what was in the way was told that the same command is writing already."""
    work = KeptWork(tmp_path / "out.json", SETTINGS)
    work.close()
    work.path.write_text("no row\n")
    with refuses("E_LINE_NOT_JSON"):
        KeptWork(tmp_path / "out.json", SETTINGS)
    work.path.unlink()
    KeptWork(tmp_path / "out.json", SETTINGS).finish()


KILLED = """
import sys, time
from pathlib import Path
from cotrain.storage.kept_work import KeptWork
work = KeptWork(Path(sys.argv[1]), {"a": 1})
for i in range(10_000):
    work.part(str(i), lambda: "x" * 5000)
    print(i, flush=True)
"""


@pytest.mark.whole
def test_a_kill_loses_at_most_the_part_in_progress(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "out")], stdout=subprocess.PIPE)
    for _ in range(20):
        last = int(child.stdout.readline())
    time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    work = KeptWork(tmp_path / "out", {"a": 1})
    assert work.found > last
    work.finish()


def test_a_place_that_takes_nothing_is_said_at_once(tmp_path):
    claim_place(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with refuses("E_DISK_REFUSED", names="nothing was begun"):
            claim_place(place)
    with pytest.raises(DiskError):
        claim_place(type(tmp_path)("/proc/none"))


def test_a_model_that_was_trained_on_is_another_one(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("a")
    before = stamp_of(str(tmp_path / "model"))
    (tmp_path / "model" / "weights").write_text("ab")
    assert before != stamp_of(str(tmp_path / "model")) and stamp_of("owner/name") == []
