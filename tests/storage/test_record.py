"""A file of the user's to which rows are appended is never cut, whatever stands in it and however full the disk is."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from cotrain.storage.file_ops import Files
from cotrain.storage.record import RecordFile
from tests.sentences import refuses

ROWS = [{"messages": [f"m{i}"]} for i in range(3)]


def appended(path, row, **options):
    record = RecordFile(path, field="messages", **options)
    try:
        record.append(row)
    finally:
        record.close()


@pytest.mark.parametrize("end", ["", "\n"], ids=["no-newline", "newline"])
def test_the_rows_of_before_stay(tmp_path, end):
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + end)
    appended(path, {"messages": ["new"]})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [*ROWS, {"messages": ["new"]}]


OTHERS = {
    "notes.json": '{"my": "only copy"}',
    "torn.jsonl": json.dumps(ROWS[0]) + '\n{"messages": ["m',
    "pretty.json": json.dumps(ROWS[0], indent=2),
    "array.json": json.dumps(ROWS),
    "text.jsonl": "not JSON at all\n",
    "script.py": "print(1)\n",
    "metrics.jsonl": '{"step": 0, "kind": "evaluation"}\n',
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_is_refused_untouched(tmp_path, name):
    path = tmp_path / name
    path.write_text(OTHERS[name])
    code = "E_RECORD_NOT_JSONL" if name.endswith(".py") else "E_RECORD_OTHER_ROWS"
    with refuses(code):
        RecordFile(path, field="messages")
    assert path.read_text() == OTHERS[name]


def test_files_of_a_run_and_pipes_are_refused(tmp_path):
    (tmp_path / "run" / "episodes").mkdir(parents=True)
    (tmp_path / "run" / "recipe.json").write_text("{}")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "run" / "new.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("run/new.jsonl", "run/episodes/new.jsonl", "link.jsonl", "pipe.jsonl"):
        with refuses("E_RECORD_NOT_REGULAR" if name.startswith("pipe") else "E_RECORD_IN_RUN"):
            RecordFile(tmp_path / name, field="messages")
    assert not (tmp_path / "run" / "new.jsonl").exists()


def test_a_new_file_is_for_its_owner_and_an_old_one_keeps_its_mode(tmp_path):
    appended(tmp_path / "new.jsonl", ROWS[0])
    assert stat.S_IMODE((tmp_path / "new.jsonl").stat().st_mode) == 0o600
    (tmp_path / "new.jsonl").chmod(0o640)
    appended(tmp_path / "new.jsonl", ROWS[0])
    assert stat.S_IMODE((tmp_path / "new.jsonl").stat().st_mode) == 0o640


def test_two_writers_lose_nothing(tmp_path):
    path = tmp_path / "two.jsonl"
    records = [RecordFile(path, field="messages") for _ in range(2)]

    def write(at):
        for i in range(100):
            records[at].append({"messages": ["x" * 500], "at": at, "i": i})

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, range(2)))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((row["at"], row["i"]) for row in rows) == [(at, i) for at in range(2) for i in range(100)]


class FullDisk(Files):
    """Takes some bytes of a row, and then none."""

    def write(self, file, block):
        if os.fstat(file.fileno()).st_size + len(block) > 100:
            super().write(file, block[: len(block) // 2])
            raise OSError(28, "No space left on device")
        return super().write(file, block)


def test_a_full_disk_takes_back_its_row_and_none_of_another_writer(tmp_path):
    path = tmp_path / "full.jsonl"
    full = RecordFile(path, field="messages", files=FullDisk())
    full.append(ROWS[0])
    appended(path, {"messages": ["y" * 80]})
    before = path.read_bytes()
    with refuses("E_DISK_REFUSED", names="disk full"):
        full.append(ROWS[1])
    assert path.read_bytes() == before
    full.close()


@pytest.mark.parametrize("after", ["moved", "removed"])
def test_a_file_that_was_taken_away_gets_a_new_one(tmp_path, after):
    path = tmp_path / "chats.jsonl"
    record = RecordFile(path, field="messages")
    record.append(ROWS[0])
    if after == "moved":
        path.rename(tmp_path / "chats.1.jsonl")
    else:
        path.unlink()
    record.append(ROWS[1])
    record.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [ROWS[1]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_took_its_place_is_looked_at_too(tmp_path):
    path = tmp_path / "chats.jsonl"
    record = RecordFile(path, field="messages")
    record.append(ROWS[0])
    path.unlink()
    path.write_text("my notes")
    with refuses("E_RECORD_REPLACED"):
        record.append(ROWS[1])
    assert path.read_text() == "my notes"
    path.unlink()
    os.mkfifo(path)
    with refuses("E_RECORD_REPLACED"):
        record.append(ROWS[1])
    path.unlink()
    record.append(ROWS[2])
    record.close()
    assert json.loads(path.read_text()) == ROWS[2]
