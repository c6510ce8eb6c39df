import gzip
import json

import pytest

from cotrain.cli.main import main
from cotrain.data.files import JsonlTasks
from cotrain.data.malformed_rows import SHOWN, Quarantine
from cotrain.data.programs import ProgramTasks
from cotrain.data.read_rows import numbered_lines, parse_rows, read_rows, row_reader
from cotrain.data.sources import from_description, task_source
from cotrain.storage.file_ops import DiskError
from tests.sentences import command_refuses, refuses

GOOD = [json.dumps({"question": f"How many {n}?", "answer": str(n)}).encode() for n in range(40)]
BAD = [b"{broken", b'{"question": "Q"}', b"\xff\xfe", b'{"question": "Q", "answer": null}', b"[1]"]


def mixed(path):
    """Forty good rows, five bad ones behind the third, and blank lines that are nobody's."""
    path.write_bytes(b"\n".join([*GOOD[:3], b"", *BAD, b"  ", *GOOD[3:]]) + b"\n")
    return path


def test_strictly_the_first_bad_row_is_an_error_and_leniently_all_are_set_aside(tmp_path):
    path = mixed(tmp_path / "a.jsonl")
    with refuses("E_ROW_NOT_JSON", names=("a.jsonl, row 5", "column 2")):
        read_rows(path, row_reader("question", "answer"))
    aside = Quarantine()
    rows = read_rows(path, row_reader("question", "answer"), aside)
    assert [row.answer for row in rows] == [str(n) for n in range(40)]
    assert (aside.read, len(aside.refused)) == (40, 5)  # 45 lines that are not blank
    assert [one.where for one in aside.refused] == [f"{path}, row {n}" for n in range(5, 10)]
    assert [one.row for one in aside.refused] == [
        "{broken",
        '{"question": "Q"}',
        "\\xff\\xfe",
        '{"question": "Q", "answer": null}',
        "[1]",
    ]
    assert all(one.reason.startswith(one.where) for one in aside.refused)
    assert [one.code for one in aside.refused] == [
        "E_ROW_NOT_JSON",
        "E_FIELD_MISSING",
        "E_NUL_BYTE",
        "E_FIELD_NOT_TEXT",
        "E_ROW_NOT_OBJECT",
    ]  # as the strict reader ends with, were the row the first bad one
    for number, one in enumerate(aside.refused):
        with refuses(one.code):
            read_rows(_only(tmp_path / f"{number}.jsonl", [*GOOD, BAD[number]]), row_reader("question", "answer"))
    assert aside.summary_line().startswith(
        f"5 of 45 rows cannot be read and are left out; the first: {path}, row 5, column 2"
    )


def test_what_was_set_aside_is_written_whole(tmp_path):
    aside = Quarantine()
    parse_rows([("here, row 1", b"{" + b"x" * 10 * SHOWN)], lambda row, where: row, aside)
    aside.write(tmp_path / "quarantine.jsonl")
    [one] = map(json.loads, (tmp_path / "quarantine.jsonl").read_text().splitlines())
    assert list(one) == ["where", "reason", "row", "code"] and len(one["row"]) == SHOWN


def test_a_place_that_takes_no_quarantine_is_left_as_it_was(tmp_path):
    """A half-made file stayed beside it."""
    aside = Quarantine()
    parse_rows([("here, row 1", b"{")], lambda row, where: row, aside)
    (tmp_path / "quarantine.jsonl").mkdir()
    with pytest.raises(DiskError, match=r"quarantine\.jsonl"):
        aside.write(tmp_path / "quarantine.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["quarantine.jsonl"]


def test_a_whole_file_is_an_error_in_either_case(tmp_path):
    for name, content, code in (
        ("a.jsonl", b"\n\n", "E_DATA_EMPTY"),
        ("b.jsonl.gz", gzip.compress(b"{}")[:-4], "E_FILE_NOT_GZIP"),
    ):
        (tmp_path / name).write_bytes(content)
        for aside in (None, Quarantine()):
            with refuses(code):
                read_rows(tmp_path / name, row_reader("question", "answer"), aside)
    assert list(numbered_lines(mixed(tmp_path / "c.jsonl")))[3][0].endswith("row 5")


def test_a_lenient_source_is_built_again_as_it_was(tmp_path):
    with refuses("E_ROW_NOT_JSON", names="row 5"):
        JsonlTasks(mixed(tmp_path / "a.jsonl"))
    source = JsonlTasks(tmp_path / "a.jsonl", lenient=True)
    assert sum(source.size(split) for split in ("train", "validation", "test")) == 40
    again = from_description(source.describe())
    assert again.describe() == source.describe() and again.quarantine.refused == source.quarantine.refused
    assert "lenient" not in JsonlTasks(_only(tmp_path / "b.jsonl", GOOD)).describe()["settings"]
    with refuses("E_TOO_MANY_BAD_ROWS", names="5 rows"):
        JsonlTasks(_only(tmp_path / "c.jsonl", BAD), lenient=True)


def test_programs_leniently(tmp_path):
    row = {"text": "Add.", "code": "def add(a, b):\n    return a + b", "test_list": ["assert add(1, 2) == 3"]}
    rows = [json.dumps(row | {"task_id": n}).encode() for n in range(590, 620)]
    source = task_source("mbpp", str(_only(tmp_path / "a.jsonl", [*rows, b"{", b'{"text": "Add."}'])), lenient=True)
    assert isinstance(source, ProgramTasks) and len(source.quarantine.refused) == 2
    assert source.describe()["settings"]["lenient"] is True
    source.close()
    with refuses("E_TOO_MANY_BAD_ROWS", names="2 rows"):
        task_source("mbpp", str(_only(tmp_path / "b.jsonl", BAD[:2])), lenient=True)
    with refuses("E_GENERATED_TASKS_LENIENT"):
        task_source("words", lenient=True)


def test_the_linter_writes_what_is_malformed(tmp_path, capsys):
    path, out = mixed(tmp_path / "a.jsonl"), tmp_path / "quarantine.jsonl"
    assert main(["check", "data", str(path), "--quarantine", str(out)]) == 1
    assert "error: malformed: 5 rows" in capsys.readouterr().out
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["where"] for row in rows] == [f"{path}, row {n}" for n in range(5, 10)]
    command_refuses(["check", "data", str(path), "--quarantine", str(out)], "E_QUARANTINE_EXISTS: --quarantine", capsys)


def _only(path, lines):
    path.write_bytes(b"\n".join(lines))
    return path
