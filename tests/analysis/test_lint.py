"""``cotrain check data``: every kind of fault is found where it is, and nothing else."""

from __future__ import annotations

import json

import pytest

from cotrain.analysis.check_data import FEW, check_file, question_key
from cotrain.cli.check import check as command
from cotrain.cli.main import main
from cotrain.data.files import JsonlTasks
from cotrain.data.labels import with_labels
from cotrain.data.question_text import words_in
from cotrain.data.unread_columns import plain_spelling
from tests.sentences import command_refuses, refuses

LONG = "A farmer has nine fields and sows each of them with two sacks of wheat in spring; how many sacks?"


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def found(report):
    """The faults of rows; that a file of a few rows is small is no fault of one."""
    return {f.kind: list(f.where) for f in report.findings if f.kind != FEW}


@pytest.mark.whole
def test_each_fault_is_found_where_it_is(tmp_path):
    file = write(
        tmp_path / "a.jsonl",
        {"question": "One?", "answer": "1"},
        '{"question": "Two?", "answer" "2"}',
        {"question": "Three?", "anwser": "3"},
        {"question": "Four?", "answer": " "},
        "",
        {"question": "  one", "answer": "1.0"},
        {"question": "One?", "answer": "2"},
        {"question": "Five?", "answer": "\\frac{"},
        {"question": "Six?", "answer": "\\frac13"},
        {"question": "six", "answer": "\\frac{1}{3}"},
        {"question": "What is 3+4?", "answer": "7"},
        {"question": "What is 3-4?", "answer": "-1"},
    )
    report = check_file(file, workers=1)
    assert found(report) == {
        "malformed": [
            "row 2, column 31: broken JSON (Expecting ':' delimiter); expected one object on one line",
            "row 3: no field 'answer'; did you mean 'anwser'? (there are: 'question', 'anwser'); name the column, as "
            "in --answer-column 'anwser'",
            "row 4, field 'answer': expected text, found a blank string",
        ],
        "duplicate": [
            "row 6 asks what row 1 asks",
            "row 7 asks what row 1 asks, word for word",
            "row 10 asks what row 9 asks",
        ],
        "two answers": ["rows 1 and 7: '1', '2'"],
        "answer: gold not readable": ["row 8: '\\\\frac{'"],
    }
    assert (report.rows, report.count_rows("error"), report.count_rows("warning")) == (11, 3, 7)
    assert report.lengths == {"min": 1, "median": 1, "p95": 3, "max": 3}
    assert report.histogram == {"1-1": 6, "2-3": 2}


def test_overlap_with_another_file(tmp_path):
    mine = write(
        tmp_path / "train.jsonl",
        {"problem": LONG.upper().replace(";", " –"), "answer": 1},
        {"problem": "In the hills " + LONG, "answer": 1},
        {"problem": "A farmer has nine fields.", "answer": 1},
    )
    theirs = write(
        tmp_path / "test.jsonl", {"question": "Why?", "answer": 2}, "{broken", {"question": LONG, "answer": 1}
    )
    report = check_file(mine, [theirs])
    assert found(report) == {
        "overlap": ["row 1 asks what its row 3 asks"],
        "13-gram": ["row 2 and its row 3: a farmer has nine fields and sows each of them with two sacks"],
    }
    assert [f.level for f in report.findings] == ["error", "warning"]
    assert check_file(theirs).count_rows("error") == 1  # its own broken row
    with refuses("E_NO_ROW_READABLE", names=("row 1", "column 2")):
        check_file(mine, [write(tmp_path / "bad.jsonl", "{broken")])


def test_what_is_the_same_question():
    assert question_key("What is $3 + 4$?") == question_key("what is 3+4") != question_key("What is 3-4?")
    assert (
        question_key(LONG)
        == question_key(LONG.replace(" ", "  ").replace(";", ","))
        != question_key(LONG.replace("nine", "ten"))
    )
    assert question_key(LONG + " $12^{th}$") == question_key(LONG + " $12$th")


def test_processbench_files(tmp_path):
    row = {"id": "a", "problem": "P", "steps": ["s"], "label": 0}
    file = write(tmp_path / "gsm8k.jsonl", row, row | {"label": 1}, row | {"problem": "p."})
    assert found(check_file(file)) == {
        "malformed": ["row 2, field 'label': expected −1 … 0, found 1"],
        "duplicate": ["row 3 asks what row 1 asks"],
    }


def test_the_command(tmp_path, capsys):
    good = write(tmp_path / "good.jsonl", *({"question": f"Q{n}", "answer": "1"} for n in range(400)))
    assert main(["check", "data", str(good)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 errors, 0 warnings"
    repeats = write(tmp_path / "repeats.jsonl", *[{"Body": "B", "Question": "Q", "Answer": "1"}] * 9)
    assert main(["check", "data", str(repeats)]) == 0  # warnings alone
    out = capsys.readouterr().out
    assert "warning: duplicate: 8 rows: the question was asked before" in out and "    … and 3 more" in out
    assert main(["check", "data", str(repeats), "--against", str(repeats), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["errors"], said["warnings"], len(said["findings"][1]["where"])) == (9, 9, 9)
    assert main(["check", "data", str(repeats), "--schema", "svamp"]) == 0
    assert main(["check", "data", str(repeats), "--schema", "gsm8k"]) == 1
    capsys.readouterr()
    for words, code in (
        (["check"], "E_CHECK_WHAT: cotrain check data FILE"),
        (["check", "data", str(tmp_path / "goof.jsonl")], "E_DATA_FILE_MISSING: goof.jsonl | 'good.jsonl'"),
        (["check", "data", str(good), "--schema", "gsm"], "E_UNKNOWN_BENCHMARK: 'gsm' | 'gsm8k'"),
        (["check", "data", str(write(tmp_path / "none.jsonl"))], "E_DATA_EMPTY: none.jsonl"),
    ):
        command_refuses(words, code, capsys)


def test_a_file_with_too_few_rows_for_a_run_says_so(tmp_path, capsys):
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(200)]

    def said_of(count, name="rows.jsonl"):
        assert main(["check", "data", str(write(tmp_path / name, *rows[:count]))]) == 0
        return capsys.readouterr().out

    assert "a run on this file alone is refused, since no row falls to test" in said_of(1)
    of_eight = said_of(8)
    assert "warning: few: 1 test problem: the figures before and after say next to nothing" in of_eight
    assert "--tasks-per-step 6" in of_eight and of_eight.endswith("0 errors, 2 warnings\n")
    of_forty = said_of(40)
    assert "32 train, 4 validation, 4 test" in of_forty and of_forty.endswith("0 errors, 1 warning\n")
    assert said_of(199).endswith("0 errors, 0 warnings\n")
    assert said_of(40, "train.jsonl").endswith("0 errors, 0 warnings\n")  # of a directory, with test.jsonl beside it


def test_long_questions_differ_by_their_operations_and_not_by_their_typesetting():
    words = "Find the sum over all positive integers of the following expression in lowest terms: "
    assert question_key(words + r"$\frac{2n - 1}{n}$") != question_key(words + r"$\frac{2n + 1}{n}$")
    assert question_key(words + "$x-y$") == question_key(words + "$ x − y $") != question_key(words + "$x+y$")
    assert question_key("A well-known " + words + "$3 \\cdot y=2$") == question_key(
        "a well known " + words + "3 \\cdot y = 2"
    )
    assert question_key(r"What is $88 \div (4 \div 2)$?") != question_key(r"What is $88 \div 4 \div 2$?")


def test_one_problem_with_two_solutions_is_no_duplicate(tmp_path):
    row = {"problem": "Why?", "steps": ["so", "thus"], "label": 1}
    file = write(tmp_path / "a.jsonl", row, row | {"steps": ["hence", "thus"]}, row)
    assert found(check_file(file)) == {"duplicate": ["row 3 asks what row 1 asks, word for word"]}


def test_worked_texts_are_read_as_a_solver_would_be(tmp_path, capsys):
    rows = [
        {"question": "What is 3 and 4?", "answer": "3 + 4 = 7\n#### 7"},
        {"question": "What is 3 and 5?", "solution": "It is #### 9", "answer": "8"},
        {"question": "What is 3 and 6?", "solution": "It is 9.", "answer": "9"},
        {"question": "What is 3 and 7?", "answer": "10"},
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command(["data", str(file), "--answer-format", "hash"]) == 0
    out = capsys.readouterr().out
    assert "--answer-format hash: 3 worked texts: 2 are read, 1 of them as the gold answer" in out
    assert "row 3: no answer" in out and "row 2: '9', gold '8'" in out
    assert command(["data", str(file), "--answer-format", "last-number", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["read"] == {"answer": "last-number", "texts": 3, "read": 3, "right": 2}


def test_a_fault_that_all_rows_have_is_said_once(tmp_path, capsys):
    """Also of one row with a fault of its own, and what is counted is counted as one would say it."""
    file = tmp_path / "rows.csv"
    file.write_text("ask,gold\n" + "1+1?,2\n" * 40)
    assert main(["check", "data", str(file)]) == 1
    said = capsys.readouterr().out
    assert said.count("no field 'question'") == 1 and "(and 39 other rows)" in said
    file.write_text("question,answer\n1+1?,2\n1+2?,3\n1+3?,4\n1+4?,5\n1+5?,\n")
    assert main(["check", "data", str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 error, 2 warnings"  # both of them of so few rows


def test_a_directory_in_place_of_a_file(tmp_path, capsys):
    (tmp_path / "rows.jsonl").mkdir()
    command_refuses(["check", "data", str(tmp_path / "rows.jsonl")], "E_DATA_FILE_KIND: rows.jsonl", capsys)


def test_an_empty_file_names_columns_as_one_would(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("")
    command_refuses(
        ["run", "grpo", "--data", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "run")],
        "E_DATA_EMPTY: rows.csv | CSV | 'question' | 'answer'",
        capsys,
    )


HALF = [{"question": f"What is {n} and {n}?"} | ({"answer": str(2 * n)} if n % 5 == 0 else {}) for n in range(40)]


def test_a_half_answered_file_is_a_layout_and_no_fault(tmp_path, capsys):
    file = write(tmp_path / "half.jsonl", *HALF)
    assert command(["data", str(file)]) == 0
    said = capsys.readouterr().out
    assert "malformed" not in said and "--labelled answers" in said
    assert command(["data", str(file), "--labelled", "answers"]) == 0
    said = capsys.readouterr().out
    assert "no answer" not in said and "32 unlabelled" in said and said.endswith("0 errors, 1 warning\n")
    assert "warning: few: 1 test problem" in said


def test_problems_without_any_answer_need_those_of_another_file(tmp_path, capsys):
    file = write(tmp_path / "bare.jsonl", *({"question": f"What is {n} and {n}?"} for n in range(40)))
    assert command(["data", str(file)]) == 1
    assert "no field 'answer'" in capsys.readouterr().out
    solved = write(tmp_path / "solved.jsonl", *({"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(60)))
    assert command(["data", str(file), "--labelled", str(solved)]) == 0
    said = capsys.readouterr().out
    run = with_labels(JsonlTasks(file, unanswered=True), str(solved), seed=0)
    sizes = [f"{run.size(split)} {split}" for split in ("train", "validation", "test", "unlabelled")]
    assert "answer from none" in said and "' → none\n" in said and ", ".join(sizes) in said and "40 unlabelled" in said
    assert f"--labelled {solved}: 60 rows" in said and "0 train" not in said


def test_faults_of_the_labelled_file_are_counted(tmp_path, capsys):
    file = write(tmp_path / "bare.jsonl", *({"question": f"What is {n} and {n}?"} for n in range(40)))
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(60)]
    solved = write(tmp_path / "solved.jsonl", *rows, *rows[:3])
    assert command(["data", str(file), "--labelled", str(solved), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labelled"]["rows"] == 63 and found["labelled"]["warnings"] > 0
    assert found["warnings"] == found["labelled"]["warnings"] + 1  # and few test problems
    command_refuses(
        ["check", "data", str(file), "--labelled", str(tmp_path / "nowhere.jsonl")],
        "E_DATA_FILE_MISSING: nowhere.jsonl",
        capsys,
    )


@pytest.mark.parametrize("labelled", ["16", "10%", "words:2-3", "test:2"])
def test_splits_are_those_of_a_run_with_any_labels(labelled, tmp_path, capsys):
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(60)]
    file = write(tmp_path / "sums.jsonl", *rows)
    assert command(["data", str(file), "--labelled", labelled, "--json"]) == 0
    run = with_labels(JsonlTasks(file), labelled, seed=0)
    splits = json.loads(capsys.readouterr().out)["seen"]["splits"]
    assert splits["unlabelled"] == run.size("unlabelled")
    assert splits["train"] == (run.size("train") if run.size("train") is not None else "no end of")


def test_columns_that_a_run_does_not_read_are_counted(tmp_path, capsys):
    rows = [{"question": f"Q{n}?", "answer": str(n), "level": "hard", "hint": "" if n else "x"} for n in range(30)]
    file = write(tmp_path / "a.jsonl", *rows)
    assert command(["data", str(file)]) == 0
    assert "columns not read: level (30 rows), hint (1 row)" in capsys.readouterr().out
    assert command(["data", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unread"] == {"level": 30, "hint": 1}


def test_tasks_of_code_are_known_and_their_faults_found(tmp_path, capsys):
    tests = ["assert f(1) == 1"]
    rows = [{"task_id": n, "prompt": f"Write f, {n}.", "code": "def f(x): ...", "test_list": tests} for n in range(30)]
    file = write(tmp_path / "code.jsonl", *rows)
    assert command(["data", str(file)]) == 0
    said = capsys.readouterr().out
    assert "a run reads them with --tasks mbpp; 24 train, 3 validation, 3 test" in said
    bad = write(tmp_path / "bad.jsonl", *rows, {**rows[0], "test_list": []}, {**rows[1], "images": ["a.png"]}, rows[2])
    assert command(["data", str(bad), "--against", str(file)]) == 1
    said = capsys.readouterr().out
    assert "row 31, field 'test_list': expected at least one test" in said and "field 'images'" in said
    assert "row 33 asks what row 3 asks" in said and "overlap: 31 rows" in said


HINDI = (
    "राम के पास {} हैं और श्याम के पास उससे दो अधिक हैं, दोनों के पास कुल मिलाकर कितने हैं?",
    ("माला", "मेले", "मूली"),
)
TAMIL = ("{} என்றால் என்ன?", ("கல்", "கால்", "கீல்"))


@pytest.mark.parametrize("asked", [HINDI, TAMIL], ids=["hindi", "tamil"])
def test_questions_that_differ_by_vowel_signs_are_two(asked, tmp_path):
    sentence, words = asked
    questions = [sentence.format(word) for word in words]
    assert len({question_key(question) for question in questions}) == 3
    rows = [{"question": question, "answer": str(n)} for n, question in enumerate(questions)]
    assert "duplicate" not in found(check_file(write(tmp_path / "a.jsonl", *rows)))
    again = write(tmp_path / "b.jsonl", rows[0], {"question": rows[0]["question"].replace("?", " ?"), "answer": "0"})
    assert found(check_file(again))["duplicate"] == ["row 2 asks what row 1 asks"]


def test_a_word_keeps_its_vowel_signs():
    assert words_in("कितने हैं? x_1") == ("कितने", "हैं", "x", "1")


def test_columns_that_differ_by_vowel_signs_are_two():
    assert plain_spelling("माला 1") == "माला1" != plain_spelling("मेले 1")
