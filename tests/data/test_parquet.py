"""Parquet files hold the same rows as JSON lines, with the same faults."""

from __future__ import annotations

import json
import sys
from decimal import Decimal

import pytest

from cotrain.cli.main import main
from cotrain.data.files import JsonlTasks
from cotrain.data.processbench import read_samples
from cotrain.data.read_rows import read_rows, row_reader
from cotrain.data.sources import from_description, task_source
from tests.sentences import refuses

ROWS = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(40)]


def write(path, rows):
    table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_same_rows_are_the_same_tasks(tmp_path):
    packed, plain = write(tmp_path / "a.parquet", ROWS), lines(tmp_path / "a.jsonl", ROWS)
    sources = [task_source("gsm8k", str(path)) for path in (packed, plain)]
    for split in ("train", "validation", "test"):
        found = [[source.get(split, i) for i in range(source.size(split))] for source in sources]
        texts = [[(task.prompt, task.gold, task.solution) for task in tasks] for tasks in found]
        assert texts[0] == texts[1] and texts[0]
    described = [source.describe()["settings"] for source in sources]
    assert described[0]["digest"] == described[1]["digest"]
    assert from_description(sources[0].describe()).get("train", 3) == sources[0].get("train", 3)
    write(packed, ROWS[1:])
    with refuses("E_DATA_CHANGED"):
        JsonlTasks(**described[0])


def test_a_directory_may_hold_both_kinds(tmp_path):
    write(tmp_path / "train.parquet", ROWS[:30])
    lines(tmp_path / "test.jsonl", ROWS[30:])
    assert JsonlTasks(tmp_path).size("test") == 10
    lines(tmp_path / "train.jsonl", ROWS[:30])
    with refuses("E_SPLIT_TWICE", names=("train", "train.jsonl", "train.parquet")):
        JsonlTasks(tmp_path)


def test_numbers_lists_and_nulls(tmp_path):
    rows = [
        {"problem": "P", "answer": 27.0, "paraphrase": ["Q", "R"], "unused": b"x"},
        {"problem": "Q", "answer": 3.0, "paraphrase": None, "unused": None},  # a null is a field that is not there
    ]
    one, other = read_rows(write(tmp_path / "a.parquet", rows), row_reader("question|problem", "answer"))
    assert (one.question, one.answer, one.paraphrases) == ("P", "27.0", ("Q", "R"))
    assert (other.answer, other.paraphrases) == ("3.0", ())
    rows = [{"id": "1", "problem": "P", "steps": ["a", "b"], "label": 1, "final_answer_correct": None}]
    folder = tmp_path / "processbench"
    folder.mkdir()
    write(folder / "math.parquet", rows)
    (sample,) = read_samples([str(folder)])
    assert (sample.split, sample.steps, sample.label) == ("math", ("a", "b"), 1)


def test_numbers_are_written_as_they_were(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    rows = {"question": ["a", "b", "c", "d"], "answer": arrow.array([0.1, 1e-5, 1e16, -2.5], arrow.float32())}
    write_table = pytest.importorskip("pyarrow.parquet").write_table
    write_table(arrow.table(rows), tmp_path / "a.parquet")
    read = read_rows(tmp_path / "a.parquet", row_reader("question", "answer"))
    assert [row.answer for row in read] == ["0.1", "0.00001", "10000000000000000", "-2.5"]
    rows = {"question": ["a"], "answer": arrow.array([Decimal("1.250")], arrow.decimal128(5, 3))}
    write_table(arrow.table(rows), tmp_path / "b.parquet")
    assert read_rows(tmp_path / "b.parquet", row_reader("question", "answer"))[0].answer == "1.250"


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([{"qestion": "Q", "answer": "1"}], "E_FIELD_MISSING: row 1 | 'question' | 'qestion'"),
        ([*ROWS, {"question": "Q", "answer": None}], "E_FIELD_MISSING: row 41 | 'answer' | 'question'"),
        ([{"question": "Q", "answer": True}], "E_FIELD_NOT_TEXT: row 1 | 'answer' | true or false"),
        (
            [{"question": b"Q", "answer": "1"}],
            "E_FIELD_NOT_TEXT: row 1 | 'question'",
        ),
        ([{"question": "Q", "answer": float("nan")}], "E_FIELD_NOT_TEXT: row 1 | 'answer'"),
        ([{"question": "Q", "answer": "1"}][:0], "E_DATA_EMPTY: parquet"),
    ],
)
def test_faults_say_where(tmp_path, rows, code):
    path = write(tmp_path / "a.parquet", rows)
    with refuses(code) as error:
        read_rows(path, row_reader("question", "answer"))
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_no_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    for content in (b"", b"PAR1", b'{"question": "Q", "answer": "1"}\n', write(path, ROWS).read_bytes()[:-20]):
        path.write_bytes(content)
        with refuses("E_PARQUET_UNREADABLE", names="a.parquet"):
            read_rows(path, row_reader("question", "answer"))
    with refuses("E_DATA_FILE_MISSING"):
        read_rows(tmp_path / "b.parquet", row_reader("question", "answer"))


def test_the_command_checks_them(tmp_path, capsys):
    path = write(tmp_path / "a.parquet", [*ROWS, {"question": ROWS[3]["question"], "answer": "4"}])
    assert main(["check", "data", str(path)]) == 0
    out = capsys.readouterr().out
    assert "41 rows" in out and "row 41 asks what row 4 asks" in out


def test_without_pyarrow_one_line_names_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with refuses("E_PYARROW_NOT_INSTALLED", names=("a.parquet", ".[hub]")):
        read_rows(tmp_path / "a.parquet", row_reader("question", "answer"))
    assert main(["check", "data", str(tmp_path / "a.parquet")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
