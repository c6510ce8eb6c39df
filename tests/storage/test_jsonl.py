"""Row files: exact bytes, torn tails, cutting back, and errors that leave no half row."""

from __future__ import annotations

import json
import math
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fault_files import CHANGES, KILLED, FaultyFiles, in_child
from hypothesis import given
from hypothesis import strategies as st

from cotrain.storage.file_ops import DiskError, is_staging_of
from cotrain.storage.jsonl import JsonlWriter, check_json, encode_row, read_jsonl, truncate_after
from tests.sentences import refuses

KINDS = ("train", "evaluation")
ROWS: list[dict[str, Any]] = [{"step": s, "loss": 1 / (s + 3), "kind": kind} for s in range(1, 6) for kind in KINDS]


def written(path: Path, rows: list[dict[str, Any]]) -> bytes:
    with JsonlWriter(path) as writer:
        for row in rows:
            writer.append(row)
        writer.sync()
    return path.read_bytes()


def test_the_bytes_of_a_row() -> None:
    nan, inf = float("nan"), float("inf")
    row = {"step": 3, "b": 0.1 + 0.2, "a": [nan, (inf, 1)], "é\n": {"x": -inf}, "no": None, "ok": True}
    assert encode_row(row) == (
        b'{"step": 3, "b": 0.30000000000000004, "a": [null, [null, 1]], '
        b'"\\u00e9\\n": {"x": null}, "no": null, "ok": true}\n'
    )


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_to_the_bit(value: float) -> None:
    assert struct.pack("d", json.loads(encode_row({"v": value}))["v"]) == struct.pack("d", value)


def test_rows_are_readable_before_closing_and_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    with JsonlWriter(path) as writer:
        writer.append(ROWS[0])
        assert read_jsonl(path) == ROWS[:1]
    assert written(path, ROWS[1:]) == b"".join(map(encode_row, ROWS))
    assert read_jsonl(path) == ROWS


def test_a_tail_torn_at_any_byte_is_dropped_and_repaired(memory_path: Path) -> None:
    path = memory_path / "metrics.jsonl"
    content = written(path, ROWS[:3])
    start = len(content) - len(encode_row(ROWS[2]))
    for end in range(start, len(content)):
        path.write_bytes(content[:end])
        assert read_jsonl(path) == ROWS[:2]
        assert written(path, ROWS[2:3]) == content


@pytest.mark.parametrize("step", range(7))
@pytest.mark.parametrize("torn", [b"", b'{"step": 9'])
def test_truncate_and_write_again_gives_the_same_file(tmp_path: Path, step: int, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = written(path, ROWS)
    path.write_bytes(whole + torn)
    later = [row for row in ROWS if row["step"] > step]
    assert truncate_after(path, step) == len(later)
    assert read_jsonl(path) == ROWS[: len(ROWS) - len(later)]
    assert written(path, later) == whole


def test_truncate_goes_by_the_step_of_each_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows: list[dict[str, Any]] = [{"run": "a"}, {"step": 1}, {"step": 3}, {"step": 2}, {"step": 4}]
    content = written(path, rows)
    assert truncate_after(path, 4) == 0 and path.read_bytes() == content
    assert truncate_after(path, 2) == 2 and read_jsonl(path) == [{"run": "a"}, {"step": 1}, {"step": 2}]
    assert truncate_after(tmp_path / "absent", 2) == 0 and not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{]", "E_LINE_NOT_JSON: line 2"),
        (b"", "E_LINE_NOT_JSON: line 2"),
        (b"[" * 100_000, "E_LINE_NOT_JSON: line 2 | nested too deeply"),
        (b"\xff\xfe", "E_LINE_NOT_JSON: line 2"),
        (b"[1]", "E_LINE_NOT_OBJECT: line 2 | list"),
        (b'{"step": "3"}', "E_LINE_STEP_NOT_NUMBER: line 2 | '3'"),
    ],
    ids=["no JSON", "empty", "deep", "no UTF-8", "a list", "a step in words"],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, code: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with refuses(code):
        truncate_after(path, 1)
    with refuses("E_FILE_MISSING"):
        read_jsonl(tmp_path / "absent")


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "disk full", "short write"])
def test_an_error_leaves_no_half_row(memory_path: Path, fault: str) -> None:
    counted = FaultyFiles()
    with JsonlWriter(memory_path / "counted", files=counted) as writer:
        for row in ROWS[:3]:
            writer.append(row)
    for at, operation in enumerate(counted.log):
        if operation != "write":
            continue
        path = memory_path / f"{at}.jsonl"
        files = FaultyFiles(fault, at)
        with JsonlWriter(path, files=files) as writer:
            for done, row in enumerate(ROWS[:3]):
                try:
                    writer.append(row)
                except DiskError as error:
                    assert error.full is (fault != "EIO") and error.code == "E_DISK_REFUSED" and str(path) in str(error)
                    assert path.read_bytes() == b"".join(map(encode_row, ROWS[:done]))
                    files.at = None  # there is room again
                    writer.append(row)
        assert path.read_bytes() == b"".join(map(encode_row, ROWS[:3]))


def test_a_half_row_that_could_not_be_removed_is_removed_later(tmp_path: Path) -> None:
    class Stuck(FaultyFiles):
        stuck = True

        def truncate(self, file, size):
            if self.stuck:
                raise OSError(5, "Input/output error")
            super().truncate(file, size)

    path = tmp_path / "metrics.jsonl"
    files = Stuck()
    with JsonlWriter(path, files=files) as writer:
        writer.append(ROWS[0])
        files.fault, files.at = "EIO", files.count
        with pytest.raises(DiskError):
            writer.append(ROWS[1])
        assert path.read_bytes() != encode_row(ROWS[0]) and read_jsonl(path) == ROWS[:1]
        files.stuck = False
        writer.append(ROWS[2])
    assert read_jsonl(path) == [ROWS[0], ROWS[2]]


def test_truncating_is_all_or_nothing(memory_path: Path) -> None:
    path = memory_path / "metrics.jsonl"
    before = written(path, ROWS)
    counted = FaultyFiles()
    truncate_after(path, 2, files=counted)
    after = path.read_bytes()
    for fault in ("kill", "ENOSPC", "EIO", "EACCES"):
        for at, operation in enumerate(counted.log):
            path.write_bytes(before)
            if fault == "kill":
                if operation not in CHANGES:
                    continue
                assert in_child(partial(truncate_after, path, 2, files=FaultyFiles("kill", at))) == KILLED
            else:
                with refuses("E_DISK_REFUSED"):
                    truncate_after(path, 2, files=FaultyFiles(fault, at))
            assert path.read_bytes() in (before, after), (fault, at, operation)
            truncate_after(path, 2)
            assert path.read_bytes() == after
            left = [other for other in memory_path.iterdir() if other != path]
            if fault == "kill":  # what a killed writer leaves is removed a day later (``test_replacing.py``)
                assert all(is_staging_of(other.name, path.name) for other in left)
                for other in left:
                    other.unlink()
            assert fault == "kill" or not left


def test_what_json_would_change_is_refused_by_its_place() -> None:
    check_json({"a": [1, 2.5, None, "text", (True, [])], "b": {}}, "document")
    check_json([math.inf], "document", finite=False)
    for value, code in (
        ({"a": [0, {1: 2}]}, "E_STATE_NOT_JSON: document.a[1] | key 1"),
        (
            {
                "a": (
                    [
                        0,
                        {3},
                    ],
                )
            },
            "E_STATE_NOT_JSON: document.a[0][1] | set",
        ),
        ([0.0, math.nan], "E_STATE_NOT_JSON: document[1] | nan"),
        (b"bytes", "E_STATE_NOT_JSON: document | bytes"),
    ):
        with refuses(code):
            check_json(value, "document")


def test_what_is_synced_is_flushed_and_so_is_its_folder(tmp_path: Path) -> None:
    files = FaultyFiles()
    with JsonlWriter(tmp_path / "metrics.jsonl", files=files) as writer:
        writer.append(ROWS[0])
        files.log.clear()
        writer.sync()
        assert files.log == ["fsync", "sync directory"]


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="was closed"):
        writer.append({"step": 1})
