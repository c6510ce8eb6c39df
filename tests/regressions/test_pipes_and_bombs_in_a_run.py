"""A pipe in a run directory stopped the viewer for every run of its folder, and 3 MB of a ledger took 2 GB."""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib

import pytest

from cotrain.cli.main import main
from cotrain.core.input_files import MOST_ROW, open_regular, read_regular
from cotrain.reports.follow import JsonlReader, read_json_object
from cotrain.reports.places import find_places
from cotrain.reports.view_server import Viewer
from cotrain.storage import ledger
from cotrain.storage.file_ops import REAL_FILES
from cotrain.storage.jsonl import read_jsonl
from tests.helpers import TINY
from tests.sentences import refuses

FLAGS = ["--model", TINY, "--steps", "1", "--tasks-per-step", "2", "--group-size", "2", "--evaluation-tasks", "1"]
SMALL = [*FLAGS, "--threads", "1", "--kl", "0", "--set", "evaluation.splits=[]"]
FILES = [
    *("episodes/episodes.jsonl.gz", "metrics.jsonl", "timings.jsonl", "before.json", "summary.json", "seal.json"),
    *("provenance.json", "recipe.json"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "a"
    assert main(["run", "grpo", *SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture
def runs(run, tmp_path):
    """Two copies of the run."""
    import shutil

    for name in "ab":
        shutil.copytree(run, tmp_path / name)
    return tmp_path


def within(seconds, work):
    """What the work returns or raises; it must end in time."""
    found = []

    def call():
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"no end within {seconds} s"
    return found[0]


@pytest.mark.whole
@pytest.mark.parametrize("file", FILES, ids=lambda name: name.rpartition("/")[2].partition(".")[0])
def test_a_pipe_keeps_no_other_run_and_no_command(file, runs, capsys):
    (runs / "a" / file).unlink()
    os.mkfifo(runs / "a" / file)
    viewer = Viewer(find_places(runs), runs)
    names = [place["name"].rpartition("/")[2] for place in viewer.answer(["runs"], {})["places"]]
    with viewer:
        for name in names:
            document = within(60, lambda name=name: viewer.answer([str(names.index(name)), "overview"], {}))
            assert name == "a" or isinstance(document, dict), document
    for words in (["why", "a", "0:0:0"], ["report", "a"], ["top", "a", "--once"], ["resume", "a", "--steps", "2"]):
        code = within(120, lambda words=words: main([str(runs / w) if w == "a" else w for w in words]))
        assert code in (0, 1, 2), code
    assert "Traceback" not in capsys.readouterr().err


def member_of(text):
    """A member of a ledger that holds this text as one episode, with a head that agrees."""
    whole = bytearray(ledger.encode_member(0, []))
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush()
    size = ledger.HEADER_BYTES + len(body) + 8
    place = struct.pack("<qqI", 0, size, 1)
    extra = ledger._EXTRA.pack(ledger._EXTRA.size - 2, b"CT", ledger._EXTRA.size - 6, 0, size, 1, zlib.crc32(place))
    head = bytes(whole[: len(ledger.GZIP_START)]) + extra
    return head + body + struct.pack("<II", zlib.crc32(text), len(text) & 0xFFFFFFFF)


def test_a_step_that_unpacks_to_far_more_than_a_ledger_does_is_damaged(tmp_path):
    packed = member_of(b" " * (3 * ledger.MIN_UNPACKED_LIMIT) + b"\n")
    assert len(packed) < ledger.MIN_UNPACKED_LIMIT / 100
    (tmp_path / ledger.NAME).write_bytes(packed)
    with ledger.Ledger(tmp_path) as found:
        assert list(found.steps()) == [0]
        with refuses("E_LEDGER_DAMAGED"):
            found.read(0)


def sparse_step(path):
    """A ledger whose only step says that it has a terabyte, as the file does."""
    place = struct.pack("<qqI", 0, 1 << 40, 1)
    rest = ledger._EXTRA.size - 6
    extra = ledger._EXTRA.pack(ledger._EXTRA.size - 2, b"CT", rest, 0, 1 << 40, 1, zlib.crc32(place))
    path.write_bytes(ledger.GZIP_START + extra)
    os.truncate(path, 1 << 40)


def test_zeros_behind_a_step_do_not_let_it_unpack_to_more(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MIN_UNPACKED_LIMIT", 1 << 20)
    bomb = member_of(b" " * (ledger.BLOCK * 3) + b"\n")
    with pytest.raises(ValueError, match="unpacks to more than"):
        ledger.unpack_member(bomb + bytes(ledger.BLOCK * 3))


def test_a_file_that_has_a_size_and_no_bytes_is_not_read(tmp_path):
    """A sparse file: it takes up nothing, and reading it would take all memory."""
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / name).write_bytes(b"{")
        os.truncate(tmp_path / name, 1 << 40)
    assert JsonlReader(tmp_path / "metrics.jsonl").read_new() == ([], False)
    with refuses("E_FILE_UNREADABLE"):
        read_jsonl(tmp_path / "metrics.jsonl")
    assert read_json_object(tmp_path / "summary.json")[0] == {}


def test_a_step_that_has_a_size_and_no_bytes_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MAX_STEP_BYTES", 1 << 20)
    sparse_step(tmp_path / ledger.NAME)
    with ledger.Ledger(tmp_path) as found, refuses("E_LEDGER_DAMAGED"):
        found.read(0)


def test_a_line_that_is_too_long_is_left_out_and_the_others_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "x": "' + b"x" * MOST_ROW * 2 + b'"}\n{"step": 1}\n')
    lines = JsonlReader(path)
    assert lines.read_new() == ([{"step": 1}], False) and lines.damaged == 1
    assert lines.read_new() == ([], False)


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b"x" * 11)
    for work in (
        lambda: open_regular(tmp_path / "pipe"),
        lambda: open_regular(tmp_path / "link"),
        lambda: read_regular(tmp_path / "large", 10),
        lambda: REAL_FILES.open(tmp_path / "pipe", "rb"),
        lambda: REAL_FILES.open(tmp_path / "pipe", "ab"),
    ):
        assert isinstance(within(10, work), OSError)
    assert json.loads(read_regular(tmp_path / "large").replace(b"x", b"1")) == 11111111111
