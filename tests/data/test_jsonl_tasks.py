from __future__ import annotations

import json
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.config.recipe import check_problems
from cotrain.core.errors import DataError
from cotrain.core.types import Grade
from cotrain.data.columns import Row, without_calculator
from cotrain.data.few_problems import few_test_problems_note
from cotrain.data.files import SPLITS, JsonlTasks, benchmark_tasks, split_of
from cotrain.data.labels import PartlyLabelled
from cotrain.data.read_rows import read_rows, row_reader
from cotrain.data.word_problems.source import WordProblems
from cotrain.formats.solutions import tagged_solution
from cotrain.recipes.alphaproof.variants import Variants
from cotrain.recipes.grpo import grpo
from tests.sentences import refuses

WORKED = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>1,072.\n#### 1,072"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def questions(source, split):
    return [source.get(split, i).prompt for i in range(source.size(split))]


def test_rows(tmp_path):
    rows = [
        {"question": "Q1?", "answer": WORKED},
        {"problem": "Q2?", "answer": 4},
        {"question": "Q3?", "answer": " x "},
    ]
    assert read_rows(write(tmp_path / "a.jsonl", rows), row_reader("question|problem", "answer")) == [
        Row(
            question="Q1?",
            answer="1072",
            solution="<step>Natalia sold 48/2 = 24 clips in May.</step><step>In all 48+24 = 1,072.</step>"
            "<answer>1072</answer>",
        ),
        Row(question="Q2?", answer="4", solution=None),
        Row(question="Q3?", answer="x", solution=None),
    ]
    own = [{"prompt": "Q", "gold": 1.5, "question": 3}]
    assert read_rows(write(tmp_path / "b.jsonl", own), row_reader("prompt", "gold")) == [
        Row(question="Q", answer="1.5", solution=None)
    ]


def test_paraphrases(tmp_path):
    rows = [
        {"question": "Q1?", "answer": "1", "paraphrase": "And Q1?"},
        {"question": "Q2?", "answer": WORKED, "paraphrase": ["Then Q2?", " q2?", "Well, Q2?"]},
        {"question": "Q3?", "answer": "1", "paraphrase": []},
        {"question": "Q4?", "answer": "1"},
    ]
    read = read_rows(write(tmp_path / "a.jsonl", rows), row_reader("question", "answer"))
    assert [row.paraphrases for row in read] == [("And Q1?",), ("Then Q2?", "Well, Q2?"), (), ()]
    rows = [{"question": f"Q{n}", "answer": "1", "paraphrase": f"{n}?"} for n in range(50)]
    source = JsonlTasks(write(tmp_path / "b.jsonl", rows))
    assert all(task.paraphrases == (f"{task.prompt[1:]}?",) for task in (source.get("train", i) for i in range(20)))
    rows[0]["paraphrase"] = "0!"
    with refuses("E_DATA_CHANGED"):
        JsonlTasks(write(tmp_path / "b.jsonl", rows), digest=source.describe()["settings"]["digest"])


def test_a_training_row_whose_paraphrase_is_held_out_is_left_out(tmp_path):
    questions_by_split = {
        split: [f"Q{n}" for n in range(99) if split_of(f"Q{n}") == split] for split in ("train", "test")
    }
    (first, second, *_), (held_out, *_) = questions_by_split["train"], questions_by_split["test"]
    rows = [{"question": f"Q{n}", "answer": "1"} for n in range(99)]
    for row in rows:
        if row["question"] in (first, held_out):
            row["paraphrase"] = [held_out.lower() if row["question"] == first else first]
        if row["question"] == second:
            row["paraphrase"] = first  # of the same split
    source = JsonlTasks(write(tmp_path / "a.jsonl", rows))
    assert source.left_out == 1 and first not in questions(source, "train") and second in questions(source, "train")
    assert held_out in questions(source, "test")


def test_byte_order_marks_blank_lines_and_line_ends(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"question": "a\xe2\x80\xa8b", "answer": "1"}\r\n\r\n{"question": "c", "answer": "2"}'
    )
    assert [row.question for row in read_rows(path, row_reader("question", "answer"))] == ["a\u2028b", "c"]


GOOD = b'{"question": "Q", "answer": "1"}\n'


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "E_DATA_EMPTY"),
        (b"\n \n", "E_DATA_EMPTY"),
        (GOOD + b'{"question": "Q", "answer"}', "E_ROW_NOT_JSON: row 2 | column 27"),
        (GOOD + b'\n{"question": "Q",', "E_ROW_NOT_JSON: row 3 | column 18"),
        (GOOD + b'{"question": "\xff", "answer": "1"}', "E_TEXT_ENCODING: row 2 | column 15"),
        ('{"question": "Q"}'.encode("utf-16"), "E_NUL_BYTE: row 1 | column 4"),
        (b'{"question": "\x00"}', "E_NUL_BYTE: row 1 | column 15"),
        (b"[1]", "E_ROW_NOT_OBJECT: row 1 | a list"),
        (b"3", "E_ROW_NOT_OBJECT: row 1 | a number"),
        (b"null", "E_ROW_NOT_OBJECT: null"),
        (
            b'{"qestion": "Q", "answer": "1"}',
            "E_FIELD_MISSING: row 1 | 'question' | 'qestion' | 'qestion', 'answer'",
        ),
        (b"{}", "E_FIELD_MISSING: 'question' | none"),
        (b'{"question": "Q"}', "E_FIELD_MISSING: row 1 | 'answer'"),
        (b'{"question": 3, "answer": "1"}', "E_FIELD_NOT_TEXT: row 1 | 'question' | a number"),
        (b'{"question": "Q", "answer": null}', "E_FIELD_NOT_TEXT: row 1 | 'answer' | null"),
        (b'{"question": "Q", "answer": true}', "E_FIELD_NOT_TEXT: true or false"),
        (b'{"question": "Q", "answer": ["1"]}', "E_FIELD_NOT_TEXT: a list"),
        (b'{"question": " ", "answer": "1"}', "E_FIELD_BLANK: row 1 | 'question'"),
        (b'{"question": "Q", "answer": "work ####"}', "E_MARK_WITHOUT_ANSWER: '####'"),
        (
            b'{"question": "Q", "answer": "1", "paraphrase": 3}',
            "E_FIELD_NOT_TEXTS: field 'paraphrase' | a number",
        ),
        (b'{"question": "Q", "answer": "1", "paraphrase": null}', "E_FIELD_NOT_TEXTS: null"),
        (
            b'{"question": "Q", "answer": "1", "paraphrase": ["R", 3]}',
            "E_FIELD_NOT_TEXT: field 'paraphrase' | a number",
        ),
        (
            b'{"question": "Q", "answer": "1", "paraphrase": " "}',
            "E_FIELD_BLANK: field 'paraphrase'",
        ),
        (b'{"question": "Q", "answer": NaN}', "E_ROW_NOT_JSON: row 1"),
        (b'{"question": "Q", "answer": 1e999}', "E_FIELD_NOT_TEXT: infinity"),
        (b'{"question": "Q", "question": "R", "answer": "1"}', "E_ROW_NOT_JSON: row 1 | field 'question' twice"),
        (b'{"question": "Q\\ud800", "answer": "1"}', "E_HALF_SURROGATE: character 2"),
        (b'{"question": ' + b"[" * 100_000, "E_ROW_TOO_DEEP: row 1"),
        (b'{"question": "Q", "answer": ' + b"1" * 5000 + b"}", "E_ROW_NOT_JSON: row 1"),
    ],
)
def test_malformed_files_say_where(tmp_path, content, code):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with refuses(code) as error:
        JsonlTasks(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_files_and_folders(tmp_path):
    write(tmp_path / "train.jsonl", [{"question": "Q", "answer": "1"}])
    with refuses("E_DATA_FILE_MISSING", names="'train.jsonl'"):
        JsonlTasks(tmp_path / "trian.jsonl")
    with refuses("E_SPLITS_MISSING", names="['train.jsonl']"):
        JsonlTasks(tmp_path)
    with refuses("E_DATA_FILE_KIND"):
        JsonlTasks("/dev/null")
    with refuses("E_DATA_FILE_MISSING"):
        JsonlTasks(tmp_path / "nowhere" / "a.jsonl")


@pytest.mark.whole
@settings(max_examples=150, deadline=None)
@given(content=st.one_of(st.binary(max_size=60), st.text(st.sampled_from('{}[]":,\n question1#\\'), max_size=60)))
def test_any_content_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        assert read_rows(path, row_reader("question", "answer"))
    except DataError as error:
        assert "row " in str(error) or error.code == "E_DATA_EMPTY"


def test_one_file_is_cut_into_splits_by_question(tmp_path):
    rows = [{"question": f"How many {n}?", "answer": str(n)} for n in range(1000)]
    source = JsonlTasks(write(tmp_path / "a.jsonl", rows))
    sizes = [source.size(split) for split in ("train", "validation", "test")]
    assert sum(sizes) == 1000
    assert 760 <= sizes[0] <= 840 and 70 <= sizes[1] <= 130 and 70 <= sizes[2] <= 130
    every = [q for split in ("train", "validation", "test") for q in questions(source, split)]
    assert sorted(every) == sorted(row["question"] for row in rows)
    more = JsonlTasks(write(tmp_path / "b.jsonl", [{"question": "new", "answer": "1"}, *reversed(rows), *rows[:99]]))
    for split in ("train", "validation", "test"):
        assert set(questions(more, split)) - {"new"} == set(questions(source, split))
    assert split_of("How  many\n3?") == split_of(" how many 3? ")


def test_a_directory_keeps_its_test_split(tmp_path):
    train = [{"question": f"How many {n}?", "answer": str(n)} for n in range(100)]
    write(tmp_path / "train.jsonl", train)
    write(tmp_path / "test.jsonl", [{"question": "HOW MANY 7?", "answer": "7"}, {"question": "new", "answer": "1"}])
    source = benchmark_tasks("gsm8k", tmp_path)
    assert source.name == "gsm8k" and source.left_out == 1
    assert questions(source, "test") == ["HOW MANY 7?", "new"]
    assert source.size("validation") > 0 and source.size("train") + source.size("validation") == 99
    assert not set(questions(source, "train")) & set(questions(source, "validation"))
    write(
        tmp_path / "validation.jsonl", [{"question": "new", "answer": "1"}, {"question": "How many 8?", "answer": "8"}]
    )
    source = benchmark_tasks("gsm8k", tmp_path)
    assert questions(source, "validation") == ["How many 8?"]
    assert source.size("train") == 98 and source.left_out == 3


def test_tasks(tmp_path):
    source = JsonlTasks(write(tmp_path / "a.jsonl", [{"question": f"Q{n}", "answer": WORKED} for n in range(50)]))
    task = source.get("train", 3)
    assert task.id == "jsonl/train/3" and task == source.get("train", 3)
    assert tagged_solution(task.solution or "").ok
    assert task.grade(task.solution or "") == Grade(value=True)
    assert task.grade("so \\boxed{1072}") == Grade(value=True)
    assert task.grade("<answer>72</answer>") == Grade(value=False)
    assert task.grade("it is 1072") == Grade(value=False)  # no answer that is marked as such
    assert task.grade_steps(("a",)) is None
    for index in (-1, source.size("train")):
        with pytest.raises(IndexError):
            source.get("train", index)
    with refuses("E_UNKNOWN_SPLIT", names="'train'"):
        source.get("trian", 0)
    source.close()


def test_a_small_file_is_cut_by_exact_counts(tmp_path):
    def questions_by_split(count):
        rows = [{"question": f"Q{n}", "answer": "1"} for n in range(count)]
        with closing(JsonlTasks(write(tmp_path / "a.jsonl", rows[::-1] + rows))) as source:  # each question twice
            return {split: {task.prompt for task in tasks_of(source, split)} for split in SPLITS}

    def tasks_of(source, split):
        return [source.get(split, index) for index in range(source.size(split))]

    for count, tenth in ((40, 4), (8, 1), (3, 1), (199, 20)):
        splits = questions_by_split(count)
        assert {split: len(those) for split, those in splits.items()} == {
            "train": count - 2 * tenth,
            "validation": tenth,
            "test": tenth,
        }
    assert [len(those) for those in questions_by_split(2).values()] == [1, 0, 1]
    assert [len(those) for those in questions_by_split(1).values()] == [1, 0, 0]
    of_two_hundred = questions_by_split(200)
    assert all(split_of(question) == split for split, those in of_two_hundred.items() for question in those)


def test_few_test_problems_are_told(tmp_path):
    rows = [{"question": f"Q{n}", "answer": "1"} for n in range(240)]
    few = JsonlTasks(write(tmp_path / "a.jsonl", rows[:40]))
    (note,) = few_test_problems_note(few)
    assert note.startswith("note: 4 test problems: ") and "test.jsonl" in note
    enough = JsonlTasks(write(tmp_path / "b.jsonl", rows))
    assert few_test_problems_note(enough) == [] and few_test_problems_note(WordProblems()) == []
    half_answered = PartlyLabelled(targets=few, count=2)
    assert "test.jsonl" in few_test_problems_note(half_answered)[0]
    few.close()
    enough.close()


def test_a_source_without_a_file_is_not_told_to_give_more_rows():
    (note,) = few_test_problems_note(Variants(source_settings={"operations": (7, 8)}, split="test", index=2))
    assert note == "note: 1 test problem: the figures before and after say next to nothing"


def test_a_description_builds_the_same_source_and_notices_changes(tmp_path):
    rows = [{"q": f"Q{n}", "a": n} for n in range(30)]
    path = write(tmp_path / "a.jsonl", rows)
    source = JsonlTasks(path, question="q", answer="a", name="mine", workers=2)
    description = json.loads(json.dumps(source.describe()))
    again = JsonlTasks(**description["settings"])
    assert again.describe() == description
    assert [again.get("train", i) for i in range(5)] == [source.get("train", i) for i in range(5)]
    write(path, [*rows[:-1], {"q": "Q29", "a": 30}])
    with refuses("E_DATA_CHANGED"):
        JsonlTasks(**description["settings"])


@pytest.mark.parametrize("solution", ["2 + 2 is 4.\nSo it is 4.", None], ids=["another", "none"])
def test_a_description_notices_other_worked_solutions(solution, tmp_path):
    rows = [{"question": f"Q{n}", "answer": "4", "solution": "1 + 3 is 4.\nSo it is 4."} for n in range(30)]
    description = JsonlTasks(write(tmp_path / "a.jsonl", rows)).describe()
    assert JsonlTasks(**description["settings"]).describe() == description

    rows[7] = {**rows[7], "solution": solution}
    write(tmp_path / "a.jsonl", rows)
    with refuses("E_DATA_CHANGED", names="a.jsonl"):
        JsonlTasks(**description["settings"])


def test_calculator_marks():
    assert without_calculator("a <<1+1=2>>2 b <<3>>") == "a 2 b "
    assert without_calculator("a << b") == "a << b"
    assert without_calculator("<<" * 50_000) == "<<" * 50_000


def test_a_step_that_would_draw_a_problem_twice_is_refused(tmp_path):
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps({"question": f"Q{n}", "answer": str(n)}) + "\n" for n in range(16)))
    count = JsonlTasks(file).size("train")
    assert 1 < count < 16
    with refuses("E_TOO_FEW_TASKS", names=(f"{count} problems", "draws 16", f"--tasks-per-step {count}")):
        check_problems(grpo(tasks=JsonlTasks(file)))
    check_problems(grpo(tasks=JsonlTasks(file), tasks_per_step=count))
