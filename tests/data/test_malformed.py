"""Malformed rows and files, made by hand: each is told by row and place, strictly, and set aside and counted,
leniently."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os

import pytest

from cotrain.cli.main import main
from cotrain.core.errors import DataError
from cotrain.data import prmbench, processbench
from cotrain.data.columns import row_of
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.programs import humaneval_problem, mbpp_problem
from cotrain.data.read_rows import numbered_lines, parse_rows, read_rows, row_reader
from cotrain.pretraining.corpora import ROWS, parse_text_row
from tests.sentences import command_refuses, refuses

GOOD = b'{"question": "Q?", "answer": "1"}'
WHOLE = '{"question": "Q?", "answer": "1", "other": [1, {"a": null}]}'
TYPES = ("null", "true", "[]", "{}", '["a"]', '{"a": 1}', '""', '"  "', '"\\n"')

TRUNCATED = [WHOLE[:end] for end in (1, 2, 5, 11, 12, 13, 17, 18, 19, 27, 28, 29, 31, 32, 33, 42, 45, 48, 55, 58, 59)]
NO_JSON = [
    *(
        "}",
        "{]",
        "[1",
        "question",
        "'question': 1",
        '{"question" "Q"}',
        '{"question": "Q",}',
        '{"question": "Q" "answer": "1"}',
    ),
    *('{question: "Q"}', "{'question': 'Q'}", '{"question": "Q", "answer": 01}', '{"question": "Q", "answer": +1}'),
    *('{"question": "Q", "answer": .5}', '{"question": "Q", "answer": "1"} {"question": "R", "answer": "2"}'),
    *(
        '{"question": "Q\t?", "answer": "1"}',
        '{"question": "\\q", "answer": "1"}',
        '{"question": "\\u12", "answer": "1"}',
    ),
    *('{"question": "Q", "answer": True}', '{"question": "Q", "answer": None}', "# a comment", "question,answer"),
    *(
        '{"question": "Q", "answer": NaN}',
        '{"question": "Q", "answer": Infinity}',
        '{"question": "Q", "answer": -Infinity}',
    ),
    *('{"other": NaN, "question": "Q", "answer": "1"}', '{"other": [1, Infinity], "question": "Q", "answer": "1"}'),
    *(
        '{"question": ' + "[" * 100_000,
        '{"other": ' + '{"a":' * 100_000,
        '{"question": "Q", "answer": 1' + "0" * 5000 + "}",
    ),
]
NO_OBJECT = [
    "[]",
    "[1]",
    '["question", "answer"]',
    "3",
    "-1.5",
    '"text"',
    "null",
    "true",
    '[{"question": "Q", "answer": "1"}]',
]
TWICE = [
    *('{"question": "Q", "question": "R", "answer": "1"}', '{"question": "Q", "answer": "1", "answer": "1"}'),
    *('{"a": 1, "a": 2, "question": "Q", "answer": "1"}', '{"question": "Q", "answer": "1", "b": {"c": 1, "c": 2}}'),
]
NO_FIELD = [
    "{}",
    '{"question": "Q"}',
    '{"answer": "1"}',
    '{"Question": "Q", "answer": "1"}',
    '{"question ": "Q", "answer": "1"}',
    '{"a": 1}',
]
WRONG = [f'{{"question": {value}, "answer": "1"}}' for value in (*TYPES, "3", "1.5")]
WRONG += [f'{{"question": "Q", "answer": {value}}}' for value in (*TYPES, "1e999", "-1e999", '"work ####"', '"####  "')]
WRONG += [
    f'{{"question": "Q", "answer": "1", "paraphrase": {value}}}'
    for value in ("null", "3", "{}", '" "', '["R", 3]', '[" "]', "[[]]")
]
SURROGATES = [
    *(
        '{"question": "\\ud800", "answer": "1"}',
        '{"question": "Q\\udfff", "answer": "1"}',
        '{"question": "Q", "answer": "\\ud83d"}',
    ),
    *('{"question": "\\ude00\\ud83d", "answer": "1"}', '{"question": "Q", "answer": "1", "paraphrase": "R\\ud800"}'),
]
BYTES = [
    *(
        b'{"question": "\xff", "answer": "1"}',
        b'{"question": "caf\xe9", "answer": "1"}',
        b'{"question": "Q", "answer": "\xb2"}',
    ),
    *(
        b'{"question": "\xc3", "answer": "1"}',
        b'{"question": "\xed\xa0\x80", "answer": "1"}',
        b'{"question": "\xf5\x80\x80\x80", "answer": "1"}',
    ),
    *(
        b'{"question": "\x00", "answer": "1"}',
        b"\x00",
        b'{"question": "Q", "answer": "1"}\x00',
        b'\xc0\x80{"question": "Q", "answer": "1"}',
    ),
    *('{"question": "Q", "answer": "1"}'.encode(coding) for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")),
    *(
        b'\xef\xbb\xbf{"question": "Q", "answer": "1"}',
        b'\xff\xfe{"question": "Q", "answer": "1"}',
        b'\x1b[2J{"question": "Q"}',
    ),
]
CASES = [
    *(text.encode() for text in (*TRUNCATED, *NO_JSON, *NO_OBJECT, *TWICE, *NO_FIELD, *WRONG, *SURROGATES)),
    *BYTES,
]


def test_there_are_enough():
    assert len(CASES) == len(set(CASES)) >= 120


@pytest.mark.whole
@pytest.mark.parametrize("line", CASES, ids=range(len(CASES)))
def test_a_malformed_row(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([GOOD, b"", line, GOOD]))
    with pytest.raises(DataError) as error:
        read_rows(path, row_reader("question", "answer"))
    said = str(error.value)
    assert said.startswith(f"{path}, row 3") and len(said.splitlines()) == 1 and len(said) < len(str(path)) + 300
    aside = Quarantine()
    assert len(read_rows(path, row_reader("question", "answer"), aside)) == 2
    assert [one.where for one in aside.refused] == [f"{path}, row 3"] and aside.refused[0].reason == said
    aside.write(tmp_path / "quarantine.jsonl")
    [one] = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(one)["reason"] == said and "\x1b" not in one


PB = {"id": "a", "problem": "P", "steps": ["s", "t"], "label": 0}
PRM = {"idx": "1", "classification": "c", "modified_question": "Q", "modified_process": ["s"], "error_steps": [1]}
MBPP = {"text": "T", "code": "def f(): pass", "test_list": ["f()"], "task_id": 601}
HUMAN = {"prompt": "def f():\n", "entry_point": "f", "test": "f()", "canonical_solution": " pass", "task_id": "H/0"}
CHAT = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
READERS = {
    "processbench": (lambda row, where: processbench.solution_of_row(row, where, "s"), PB),
    "prmbench": (prmbench.solution_of_row, PRM),
    "mbpp": (mbpp_problem, MBPP),
    "humaneval": (humaneval_problem, HUMAN),
    "chats": (parse_text_row, CHAT),
    "text": (parse_text_row, {"text": "t"}),
    "svamp": (
        lambda row, where: row_of(row, "Body+Question", "Answer", where),
        {"Body": "B", "Question": "Q", "Answer": 1},
    ),
    "olympiadbench": (
        lambda row, where: row_of(row, "question", "final_answer[]", where),
        {"question": "Q", "final_answer": ["1"]},
    ),
}
OTHERS = [
    *(
        ("processbench", column, value)
        for column in ("problem", "steps", "label")
        for value in (None, True, "", [], {}, ["a", 3], 2, -2)
    ),
    *(("processbench", "final_answer_correct", value) for value in (1, "yes")),
    *(
        ("prmbench", column, value)
        for column in ("modified_process", "error_steps")
        for value in (None, True, "", {}, ["a", 3, 0], 2)
    ),
    *(("prmbench", column, value) for column in ("modified_question", "classification") for value in (None, 3, "", [])),
    *(("mbpp", column, value) for column in ("text", "code") for value in (None, 3, "", [])),
    *(("mbpp", "test_list", value) for value in (None, 3, "f()", [], [3])),
    *(("humaneval", column, value) for column in ("prompt", "entry_point") for value in (None, 3, "", [], "g")),
    *(("chats", "messages", value) for value in (None, 3, "q", [], {}, ["q"], [{}], [{"role": "bot", "content": "x"}])),
    *(
        ("chats", "messages", [{"role": "user", "content": value}])
        for value in (None, 3, "the last one is not the assistant's")
    ),
    *(("text", "text", value) for value in (None, 3, "", [], "\ud800")),
    *(("svamp", column, value) for column in ("Body", "Question", "Answer") for value in (None, True, "", [])),
    *(("olympiadbench", "final_answer", value) for value in (None, True, "", [], [""], [None], {})),
]


def test_there_are_enough_of_others():
    assert len(OTHERS) >= 60 and {name for name, _, _ in OTHERS} == set(READERS)


@pytest.mark.whole
@pytest.mark.parametrize(("name", "column", "value"), OTHERS)
def test_a_malformed_row_of_another_kind(name, column, value, tmp_path):
    read, good = READERS[name]
    path = tmp_path / f"a{ROWS[0]}"
    path.write_text("\n".join(json.dumps(row) for row in (good, good | {column: value}, good)))
    with pytest.raises(DataError) as error:
        parse_rows(numbered_lines(path), read)
    assert str(error.value).startswith(f"{path}, row 2") and len(str(error.value).splitlines()) == 1
    aside = Quarantine()
    assert len(parse_rows(numbered_lines(path), read, aside)) == aside.read == 2 and len(aside.refused) == 1


@pytest.mark.parametrize(
    "good", [GOOD, b"\xef\xbb\xbf" + GOOD, GOOD + b"\r", b"  " + GOOD + b"  ", GOOD.replace(b"?", "é\u2028".encode())]
)
def test_what_is_no_fault(tmp_path, good):
    (tmp_path / "a.jsonl").write_bytes(good + b"\n" + GOOD + b"\n\n")
    assert [row.answer for row in read_rows(tmp_path / "a.jsonl", row_reader("question", "answer"))] == ["1", "1"]


@pytest.mark.whole
def test_a_line_of_a_hundred_megabytes(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(GOOD + b'\n{"question": "' + b"x" * 100_000_000 + b'", "answer": null}\n')
    aside = Quarantine()
    assert len(read_rows(tmp_path / "a.jsonl", row_reader("question", "answer"), aside)) == 1
    assert len(aside.refused[0].reason) < 300 and len(aside.refused[0].row) == 10_000


@pytest.mark.whole
def test_files_that_are_none(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    packed = gzip.compress(b"\n".join([GOOD] * 50))
    for name, content in {
        "empty.jsonl": b"",
        "blank.jsonl": b"\n  \r\n",
        "mark.jsonl": b"\xef\xbb\xbf",
        "short.jsonl.gz": packed[:-9],
        "damaged.jsonl.gz": packed[:30] + b"\xff\xff\xff" + packed[33:],
        "plain.jsonl.gz": GOOD,
        "empty.jsonl.gz": gzip.compress(b""),
        "bomb.jsonl.gz": gzip.compress(b" " * (1 << 27)),
    }.items():
        (tmp_path / name).write_bytes(content)
    codes = {
        "E_DATA_EMPTY": ("empty.jsonl", "blank.jsonl", "mark.jsonl", "empty.jsonl.gz"),
        "E_FILE_NOT_GZIP": ("short.jsonl.gz", "damaged.jsonl.gz", "plain.jsonl.gz"),
        "E_FILE_UNPACKS_TOO_LARGE": ("bomb.jsonl.gz",),
        "E_DATA_FILE_KIND": ("folder.jsonl", "pipe.jsonl", "link.jsonl", "/dev/zero"),
        "E_DATA_FILE_MISSING": ("missing.jsonl",),
    }
    paths = {tmp_path / name: code for code, names in codes.items() for name in names}
    assert set(tmp_path.iterdir()) < set(paths)
    for path, code in paths.items():
        for aside in (None, Quarantine()):
            with refuses(code) as error:
                read_rows(path, row_reader("question", "answer"), aside)
            assert str(error.value).startswith(str(path)) and len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (gzip.compress(GOOD), "E_DATA_PACKED: packed by gzip"),
        (bz2.compress(GOOD), "E_DATA_PACKED: packed by bzip2"),
        (lzma.compress(GOOD), "E_DATA_PACKED: packed by xz"),
        (b"\x28\xb5\x2f\xfd\x00\x00", "E_DATA_PACKED: packed by zstd"),
        (b"PK\x03\x04\x14\x00", "E_DATA_PACKED: a ZIP archive"),
        (b"PAR1\x15\x00", "E_DATA_PACKED: ends in .parquet"),
    ],
)
def test_a_file_that_is_no_text_is_told_by_its_beginning(tmp_path, content, code):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with refuses(code):
        read_rows(tmp_path / "rows.jsonl", row_reader("question", "answer"))


@pytest.mark.parametrize("ending", [".md", ".txt", ".yaml", ".pdf"])
def test_a_file_of_another_kind_is_called_so(ending, tmp_path, capsys):
    file = tmp_path / f"notes{ending}"
    file.write_text("# Notes\n\nNothing to learn.\n")
    for words in (["check", "data", str(file)], ["run", "grpo", "--data", str(file), "--out", str(tmp_path / "run")]):
        line = command_refuses(words, f"E_DATA_FILE_KIND: notes{ending} | ({ending})", capsys)
        assert "lenient" not in line
    file.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    assert main(["check", "data", str(file)]) == 0


def test_lenient_is_advised_only_where_other_rows_can_be_read(tmp_path, capsys):
    file = tmp_path / "rows.csv"
    run = ["run", "grpo", "--data", str(file), "--out", str(tmp_path / "run")]
    file.write_text("ask,gold\n" + "1 + 1?,2\n" * 40)  # no row has the columns
    assert "--lenient" not in command_refuses(run, "E_FIELD_MISSING: rows.csv, row 1 | 'question'", capsys)
    for rows in ("1 + 1?,\n1 + 2?,3\n", "1 + 2?,3\n1 + 1?,\n"):
        file.write_text("question,answer\n" + rows)
        command_refuses(run, "E_FIELD_MISSING: rows.csv, row | 'answer' | --lenient", capsys)
