"""Columns of public benchmarks, data sets of the Hub, and ProcessBench's rows."""

from __future__ import annotations

import gzip
import json
import sys
import types

import pytest

from cotrain.data.columns import ANY, SCHEMAS, row_of
from cotrain.data.files import JsonlTasks, benchmark_tasks, read_splits
from cotrain.data.hub import is_hub_name
from cotrain.data.processbench import read_samples
from cotrain.data.read_rows import read_rows, row_reader
from cotrain.data.sources import from_description, task_source
from tests.sentences import refuses

# One row of each public release, cut to the columns that matter, and what has to come out.
PUBLIC = [
    ("gsm8k", {"question": "Q", "answer": "2+2=<<2+2=4>>4\n#### 4"}, "Q", "4"),
    ("gsm-plus", {"question": "Q", "solution": "S", "answer": "7.5", "seed_question": "q"}, "Q", "7.5"),
    ("gsm-symbolic", {"id": 1, "question": "Q", "answer": "work\n#### 12", "original_question": "q"}, "Q", "12"),
    ("svamp", {"ID": "1", "Body": "B.", "Question": "Q?", "Answer": 8.0, "Equation": "( 9.0 - 1.0 )"}, "B. Q?", "8.0"),
    ("svamp", {"question_concat": "B, Q?", "Body": "B", "Question": "Q?", "Answer": "8"}, "B, Q?", "8"),
    ("asdiv", {"body": "B.", "question": "Q?", "answer": "9 (apples)", "formula": "7+2=9"}, "B. Q?", "9 (apples)"),
    ("asdiv", {"id": "1", "question": "Q?", "answer": "9 (apples)", "answer_num": 9.0}, "Q?", "9 (apples)"),
    ("mawps", {"question": "Q", "chain": "…", "result": "43", "result_float": 43.0}, "Q", "43"),
    ("math500", {"problem": "P", "solution": "S", "answer": "\\frac12", "unique_id": "u"}, "P", "\\frac12"),
    ("aime", {"id": 60, "problem": "P", "solution": "S", "answer": "204", "year": "2024"}, "P", "204"),
    ("aime", {"ID": "2024-I-1", "Problem": "P", "Solution": "S", "Answer": 204}, "P", "204"),
    ("amc", {"id": 0, "question": "Q", "answer": 27.0, "url": "u"}, "Q", "27.0"),
    ("olympiadbench", {"question": "Q", "final_answer": ["1", "2"], "solution": ["S"]}, "Q", "1, 2"),
    ("olympiadbench", {"problem": "P", "solution": "S", "answer": "2", "unit": None}, "P", "2"),
    ("minerva", {"question": "Q", "answer": "1.6"}, "Q", "1.6"),
]


@pytest.mark.parametrize(("name", "row", "question", "answer"), PUBLIC)
def test_public_releases(name, row, question, answer):
    schema = SCHEMAS[name]
    found = row_of(row, schema.question, schema.answer, "row 1")
    assert (found.question, found.answer) == (question, answer)
    guessed = row_of(row, ANY.question, ANY.answer, "row 1")
    assert (guessed.question, guessed.answer) == (question, answer)


def test_every_schema_is_a_source_by_name(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = {name: row for name, row, *_ in PUBLIC} | {"jsonl": {"problem": "P", "answer": 1}}
    for name in SCHEMAS:
        key = SCHEMAS[name].question.split("|")[0].split("+")[-1]
        row = rows[name] if name != "svamp" else PUBLIC[4][1]
        key = key if key in row else "question"
        path.write_text("".join(json.dumps(row | {key: f"Q{n}"}) + "\n" for n in range(30)))
        source = task_source(name, str(path))
        assert source.name == name and source.size("train") > 10
        assert from_description(source.describe()).get("train", 3) == source.get("train", 3)
    with refuses("E_UNKNOWN_BENCHMARK", names="'svamp'"):
        benchmark_tasks("swamp", path)


def test_faults_in_named_columns():
    schema = SCHEMAS["olympiadbench"]
    for row, code in (
        ({"problem": "P", "final_answer": []}, "E_TEXT_LIST_EMPTY: row 1 | 'final_answer'"),
        ({"problem": "P", "final_answer": ["1", None]}, "E_FIELD_NOT_TEXT: field 'final_answer' | null"),
        ({"problem": "P", "solution": "S"}, "E_FIELD_MISSING: 'answer'"),
        ({"Body": "B"}, "E_FIELD_MISSING: 'problem'"),
    ):
        with refuses(code):
            row_of(row, schema.question, schema.answer, "row 1")


def test_numbers_of_any_size_are_texts():
    for value in (10**400, -3, 1.5):
        assert row_of({"question": "Q", "answer": value}, "question", "answer", "row 1").answer == str(value)
    for value in (float("nan"), float("inf"), True):
        with refuses("E_FIELD_NOT_TEXT", names=("row 1", "'answer'")):
            row_of({"question": "Q", "answer": value}, "question", "answer", "row 1")


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("0.00001", "0.00001"),
        ("1e16", "10000000000000000"),
        ("2.5e-7", "0.00000025"),
        ("-1.5E22", "-15000000000000000000000"),
        ("27.0", "27.0"),
    ],
)
def test_numbers_of_json_are_written_in_full(tmp_path, written, answer):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"question": "Q", "answer": {written}}}\n')
    assert read_rows(path, row_reader("question", "answer"))[0].answer == answer


@pytest.mark.parametrize(
    ("written", "gold"),
    [
        ("1,234", "1234"),
        ("$1,234.50", "$1234.50"),
        ("-12,345,678", "-12345678"),
        *((text, text) for text in ("(1,2)", "1,2,3", "[0,1)", "0,1", "x=1, y=2", "3,11,33", "{1,2}", "(100,200)")),
        *((text, text) for text in ("1234,567", "a,b", "0,123")),
        ("1,234, 5,678,90", "1234, 5,678,90"),
    ],
)
def test_commas_behind_the_mark_are_taken_out_of_groups_of_three_digits_alone(written, gold):
    row = row_of({"question": "Q", "answer": f"work\n#### {written}"}, "question", "answer", "row 1")
    assert row.answer == gold
    assert row.solution == f"<step>work</step><answer>{row.answer}</answer>"


def test_packed_files(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"question": "Q", "answer": "1"}\n'))
    assert read_rows(path, row_reader("question", "answer"))[0].question == "Q"
    for broken in (b"{}", gzip.compress(b'{"question": "Q"}')[:-3]):
        path.write_bytes(broken)
        with refuses("E_FILE_NOT_GZIP"):
            read_rows(path, row_reader("question", "answer"))


# -- the Hub, by a module that stands in for ``datasets``


@pytest.fixture
def hub(monkeypatch):
    """Data sets by (name, configuration)."""
    held: dict[tuple[str, str | None], dict[str, list]] = {}

    def load_dataset(name, config=None):
        if (name, config) not in held:
            raise FileNotFoundError(f"Couldn't find {name}\nand a second line")
        return held[name, config]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return held


def test_what_is_a_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai").mkdir()
    assert is_hub_name("openai/gsm8k") and is_hub_name("openai/gsm8k:main")
    (tmp_path / "openai" / "gsm8k").mkdir()
    for name in ("openai/gsm8k", "data/a.jsonl", "/a/b", "./a/b", "a/b/c", "gsm8k", "../a"):
        assert not is_hub_name(name)


def test_a_data_set_of_the_hub_is_a_source(hub):
    train = [{"question": f"Q{n}", "answer": f"#### {n}"} for n in range(40)]
    hub["openai/gsm8k", "main"] = {"train": train, "test": [{"question": "q7", "answer": "#### 7"}]}
    for spec, data in (("gsm8k", "openai/gsm8k:main"), ("gsm8k", "openai/gsm8k"), ("jsonl", "openai/gsm8k")):
        source = task_source(spec, data)
        assert source.name == "gsm8k" and source.left_out == 1
        assert source.get("test", 0).prompt == "q7" and source.size("train") + source.size("validation") == 39
        assert from_description(json.loads(json.dumps(source.describe()))).describe() == source.describe()
    hub["me/mine", None] = {"all": [{"problem": f"P{n}", "answer": n} for n in range(40)]}
    assert sum(JsonlTasks("me/mine").size(split) for split in ("train", "validation", "test")) == 40


def test_splits_of_the_hub_that_are_not_read_are_told(hub):
    rows = [{"question": f"Q{n}", "answer": str(n)} for n in range(40)]
    hub["me/mine", None] = {"train": rows, "test": rows[:3], "extra": rows[:7], "hard": rows[:1]}
    assert "note: me/mine: splits not read: extra (7 rows), hard (1 row)" in JsonlTasks("me/mine").notes
    hub["me/two", None] = {"train": rows, "test": rows[:3]}
    assert not any("not read" in note for note in JsonlTasks("me/two").notes)


def test_what_the_hub_may_refuse(hub, monkeypatch):
    with refuses("E_HUB_DATA_UNREADABLE", names=("me/nothing", "FileNotFoundError", "Couldn't find")) as error:
        JsonlTasks("me/nothing")
    assert "\n" not in str(error.value)
    hub["me/odd", None] = {"a": [], "b": []}
    with refuses("E_SPLITS_MISSING", names="a, b"):
        read_splits("me/odd", row_reader("question", "answer"))
    hub["me/bad", None] = {"test": [{"question": "Q", "answer": None}]}
    with refuses("E_FIELD_NOT_TEXT", names=("me/bad", "row 1", "'answer'", "null")):
        read_splits("me/bad", row_reader("question", "answer"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refuses("E_DATASETS_NOT_INSTALLED", names=("me/mine", ".[hub]")):
        JsonlTasks("me/mine")


# -- ProcessBench

GIVEN = {"id": "a-0", "problem": "P", "steps": ["one", "two"], "label": 1, "final_answer_correct": False}


def test_processbench_rows(tmp_path, hub):
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps(GIVEN) + "\n")
    (tmp_path / "math.jsonl").write_text(json.dumps(GIVEN | {"id": "b-0", "label": -1, "split": "x"}) + "\n")
    found = read_samples([str(tmp_path)])
    assert [(s.id, s.split, s.label, len(s.steps)) for s in found] == [("a-0", "gsm8k", 1, 2), ("b-0", "x", -1, 2)]
    hub["Qwen/ProcessBench", None] = {"gsm8k": [GIVEN], "math": [GIVEN | {"id": "b"}]}
    assert [s.split for s in read_samples(["Qwen/ProcessBench"])] == ["gsm8k", "math"]
    with refuses("E_SAMPLE_TWICE", names="'a-0'"):
        read_samples([str(tmp_path), str(tmp_path / "gsm8k.jsonl")])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"label": 2}, "E_STEP_LABELS: field 'label' | −1 … 1 | 2"),
        ({"label": -2}, "E_STEP_LABELS: -2"),
        ({"label": True}, "E_STEP_LABELS: True"),
        ({"label": "1"}, "E_STEP_LABELS: '1'"),
        ({"steps": []}, "E_STEPS_NOT_TEXTS: a list"),
        ({"steps": "one"}, "E_STEPS_NOT_TEXTS: found text"),
        ({"steps": ["one", " "]}, "E_FIELD_BLANK: field 'steps', 1"),
        ({"problem": 3}, "E_FIELD_NOT_TEXT: field 'problem'"),
        ({"final_answer_correct": "yes"}, "E_FIELD_NOT_BOOLEAN: found text"),
    ],
)
def test_faults_in_processbench_say_where(tmp_path, change, code):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(GIVEN | {"id": "z"}) + "\n" + json.dumps(GIVEN | change) + "\n")
    with refuses(code) as raised:
        read_samples([str(path)])
    assert "row 2" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("work\n#### 42\nmore text", "42"),
        ("so \\boxed {42}.", "42"),
        ("so $\\boxed 42$, and that with more than twelve words of text, which is no answer.", "42"),
        ("so \\fbox{42}.", "42"),
        ("<think>\\boxed{41}</think>42", "42"),
        ("<think>#### 41</think>so it is \\boxed{42}", "42"),
        ("so <answer>42</answer>", "42"),
    ],
)
def test_the_answer_of_a_worked_text(text, answer):
    assert row_of({"question": "Q", "solution": text}, ANY.question, ANY.answer, "row 1").answer == answer


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((f"so \\boxed{end}", r"E_MARK_WITHOUT_ANSWER: \\boxed") for end in ("{}", "{ }", "{42")),
        ("<think>42", "E_MARK_WITHOUT_ANSWER: thought"),
        ("<answer> </answer>", "E_MARK_WITHOUT_ANSWER: '<answer>'"),
        ("\u200b", "E_FIELD_BLANK"),
    ],
)
def test_a_text_without_its_answer_is_refused(text, code):
    with refuses(code, names="row 1, field 'answer'"):
        row_of({"question": "Q", "answer": text}, ANY.question, ANY.answer, "row 1")


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.csv", b"question;answer\na?;1\n", "E_CSV_DELIMITER"),
        ("a.csv", b"question\tanswer\na?\t1\n", "E_CSV_DELIMITER"),
        ("a.csv", b"question,answer\na\x00?,1\n", "E_NUL_BYTE: byte 17"),
        ("a.jsonl", gzip.compress(b'{"question": "a?", "answer": "1"}\n'), "E_DATA_PACKED: ends in .gz"),
    ],
)
def test_files_of_another_format_are_told(tmp_path, name, content, code):
    (tmp_path / name).write_bytes(content)
    with refuses(code):
        read_rows(tmp_path / name, row_reader("question", "answer"))
