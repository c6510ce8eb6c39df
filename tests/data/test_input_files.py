"""What stands behind the name of a data file, and how much of it there is: one line, in bounded time and memory."""

import gzip
import os

import pytest

from cotrain.analysis.comparison.study_file import read_study
from cotrain.core import input_files
from cotrain.core.errors import DataError
from cotrain.data.files import JsonlTasks
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.read_rows import read_rows, row_reader
from cotrain.data.suite_files import load_suite
from cotrain.pretraining.corpora import corpus_file, text_file
from tests.sentences import refuses

ROW = '{"question": "a?", "answer": "1"}\n'


def readers(path):
    """All ways into a data file."""
    return (
        lambda: read_rows(path, row_reader("question", "answer")),
        lambda: read_rows(path, row_reader("question", "answer"), Quarantine()),
        lambda: JsonlTasks(path),
        lambda: corpus_file(path),
        lambda: text_file(path),
        lambda: load_suite("gsm8k", [str(path)], None),
        lambda: load_suite("processbench", [str(path)], None),
    )


def odd(folder, kind):
    path = folder / "odd.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link to a fifo":
        os.mkfifo(folder / "f")
        path.symlink_to(folder / "f")
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "circle":
        path.symlink_to(folder / "other")
        (folder / "other").symlink_to(path)
    elif kind == "log of the kernel":
        path.symlink_to("/proc/kmsg")
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    return path


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "endless", "circle", "log of the kernel", "sparse"])
def test_what_never_ends_is_refused_by_every_reader(tmp_path, kind):
    path = odd(tmp_path, kind)
    for read in readers(path):
        with pytest.raises(DataError) as error:
            read()
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "txt", "jsonl.gz"])
def test_a_row_has_a_greatest_length(tmp_path, ending, monkeypatch):
    for module in ("cotrain.core.input_files", "cotrain.data.row_files", "cotrain.pretraining.corpora"):
        monkeypatch.setattr(f"{module}.MOST_ROW", 1000)
    path, long = tmp_path / f"long.{ending}", "x" * 2000
    content = {
        "json": f'[{{"text": "{long}"}}]',
        "csv": f"text\n{long}\n",
        "txt": long,
    }.get(ending, f'{{"text": "{long}"}}\n').encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    with refuses("E_ROW_TOO_LARGE", names="1000 bytes"):
        corpus_file(path)


def test_of_a_line_that_is_too_long_the_rest_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "MOST_ROW", 100)
    monkeypatch.setattr("cotrain.data.row_files.MOST_ROW", 100)
    (tmp_path / "a.jsonl").write_text(ROW + "x" * 1000 + "\n" + ROW)
    aside = Quarantine()
    assert len(read_rows(tmp_path / "a.jsonl", row_reader("question", "answer"), aside)) == 2
    assert [one.where.rpartition(" ")[2] for one in aside.refused] == ["2"]
    monkeypatch.setattr(input_files, "MOST_LINE", 500)
    with refuses("E_LINE_TOO_LONG", names="500 bytes"):
        read_rows(tmp_path / "a.jsonl", row_reader("question", "answer"), aside)


def test_names_in_capitals_and_packed_files_are_read_as_what_they_are(tmp_path):
    table, array = b"question,answer\na?,1\n", b'[{"question": "a?", "answer": "1"}]'
    files = {"A.CSV": table, "a.csv.gz": gzip.compress(table), "A.JSON": array, "a.json.gz": gzip.compress(array)}
    files |= {"mac.csv": table.replace(b"\n", b"\r"), "win.csv": table.replace(b"\n", b"\r\n")}
    files |= {"A.JSONL.GZ": gzip.compress(ROW.encode()), "long.csv": b"question,answer\n" + b"x" * 140_000 + b",1\n"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert [row.answer for row in read_rows(tmp_path / name, row_reader("question", "answer"))] == ["1"], name
    (tmp_path / "twice.csv").write_text("question,answer,answer\na?,1,2\n")
    with refuses("E_TWO_COLUMNS_ALIKE", names="'answer'"):
        read_rows(tmp_path / "twice.csv", row_reader("question", "answer"))
    (tmp_path / "bad.csv").write_bytes(b"question,answer\na\xff?,1\n")
    with refuses("E_TEXT_ENCODING", names="byte 17"):
        read_rows(tmp_path / "bad.csv", row_reader("question", "answer"))


def test_a_text_begins_behind_its_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfA first.\r\n\r\nA second.\n")
    corpus = text_file(tmp_path / "a.txt", 5)
    assert [corpus.get(i) for i in range(corpus.size)] == ["A first.", "A second."]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("batches = " + "9" * 5000, "E_NOT_TOML"),
        ("batches = 1" + "0" * 30, "E_NUMBER_TOO_LARGE"),
        ("batches = 1" + "0" * 17, "E_COMPARISON_RANGE: batches"),
        ("seeds = 1" + "0" * 12, "E_COMPARISON_RANGE: seeds"),
        ("x = " + "[" * 100_000, "E_FILE_TOO_DEEP"),
        ("x" + ".x" * 50_000 + " = 1", "E_FILE_TOO_DEEP"),
        ("x = [[" + "1" + "0" * 30 + "]]", "E_NUMBER_TOO_LARGE"),
    ],
)
def test_a_study_of_odd_sizes_is_one_line(tmp_path, line, code):
    given = 'hypothesis = "h"\nmeasure = "solver/greedy"\nout = "o"\n' + (
        "" if line.startswith("seeds") else "seeds = 1\n"
    )
    (tmp_path / "s.toml").write_text(f'{given}{line}\n[arms.a]\nrecipe = "grpo"\n')
    with refuses(code) as error:
        read_study(tmp_path / "s.toml")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
