"""Columns beside the question and the answer: asked, refused by name, or counted; for every reader of rows."""

import json

import pytest

from cotrain.cli.main import main
from cotrain.data.columns import ANY, row_of
from cotrain.data.files import JsonlTasks
from cotrain.data.preferences import Chats, Pairs, read_chat, read_pair
from cotrain.data.processbench import solution_of_row
from cotrain.data.suite_files import load_suite
from cotrain.data.unread_columns import columns_note, has_content, unread_columns
from cotrain.grading.pool import AnswerGrader
from cotrain.pretraining.corpora import jsonl_file
from cotrain.pretraining.solutions import gold_solutions, open_runner, solver_of
from tests.helpers import TINY
from tests.sentences import refuses


def message(role, content):
    return {"role": role, "content": content}


ASK, YES, NO = message("user", "Sky?"), message("assistant", "Blue. #### 3"), message("assistant", "Green.")
SYSTEM = message("system", "Be short.")
HUMAN, GPT = {"from": "human", "value": "Sky?"}, {"from": "gpt", "value": "Blue. #### 3"}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def any_row(row, where="row 1"):
    return row_of(row, ANY.question, ANY.answer, where)


LOST = {  # column → what it holds beside a question
    **{"choices": ["1", "2"], "Options": {"A": "1"}, "option_b": "2", "answer_choices": ["1"], "context": "Ann has 2."},
    **{"passage": "Long ago.", "Paragraphs": ["Long ago."], "document": "Text.", "table": [[1, 2]], "story": "Once."},
    **{"images": ["a.png"], "image_1": {"bytes": "x"}, "audio": "a.wav", "image_path": "a.png", "video": "v"},
    **{"tools": [{"name": "f"}], "functions": [{"name": "f"}], "history": [["a", "b"]], "instruction": "Add."},
    "input": "1 and 2",
}


@pytest.mark.parametrize("column", LOST)
def test_what_a_question_needs_is_refused_by_name(column):
    with refuses("E_COLUMN_NOT_ASKED", names=("row 1", f"field '{column}'")):
        any_row({"question": "Q?", "answer": "1", column: LOST[column]})
    empty = {"question": "Q?", "answer": "1", column: type(LOST[column])()}
    assert any_row(empty).unread == ()


def test_lettered_choices_are_refused_and_single_letters_are_not():
    row = {"question": "Q?", "answer": "A"}
    with refuses("E_COLUMN_NOT_ASKED", names="'A'"):
        any_row(row | {"A": "1", "B": "2", "C": "3"})
    assert any_row(row | {"A": "1", "B": "2"}).unread == ("A", "B")


def test_a_refusal_says_what_to_do_and_that_helps():
    row = {"context": "Ann has 2 pears.", "question": "How many?", "answer": "2"}
    with refuses("E_COLUMN_NOT_ASKED", names=("--question-column", "'context+question'", "'question'")):
        any_row(row)
    both = row_of(row, "context+question", ANY.answer, "row 1")
    assert both.question == "Ann has 2 pears. How many?" and both.unread == ()
    assert row_of(row, "question", ANY.answer, "row 1").unread == ("context",)


def test_an_instruction_and_its_input_are_one_question():
    row = {"instruction": "Add the two.", "input": "1 and 2", "answer": "3"}
    assert any_row(row).question == "Add the two.\n\n1 and 2" and any_row(row).columns[0] == "instruction+input"
    assert any_row(row | {"input": ""}).question == "Add the two."
    assert any_row({"input": "1 and 2", "answer": "3"}).question == "1 and 2"
    pair = read_pair({**row, "chosen": "3", "rejected": "4"}, "row 1")
    assert pair.question == "Add the two.\n\n1 and 2" and pair.unread == ("answer",)
    assert "1 and 2" in read_chat({**row, "completion": "3"}, "row 1").question


@pytest.mark.parametrize(
    "row",
    [
        {"system": "Be short.", "question": "Q?", "answer": "1"},
        {"System Prompt": "Be short.", "question": "Q?", "answer": "1"},
        {"prompt": [SYSTEM, message("user", "Q?")], "answer": "1"},
        {"prompt": [SYSTEM, message("user", "Q?")], "system": "Be short.", "answer": "1"},
        {"prompt": [message("developer", "Be short."), message("user", "Q?")], "answer": "1"},
    ],
    ids=["column", "spelled", "message", "both", "developer"],
)
def test_a_system_text_is_asked_in_front_and_keeps_the_split(row, tmp_path):
    found = any_row(row)
    assert (found.prompt, found.question, found.unread) == ("Be short.\n\nQ?", "Q?", ())
    source = JsonlTasks(write(tmp_path / "a.jsonl", [row, *({"question": f"Q{n}", "answer": n} for n in range(30))]))
    places = [(split, n) for split in ("train", "validation", "test") for n in range(source.size(split))]
    assert [source.get(*place).prompt for place in places].count("Be short.\n\nQ?") == 1
    assert any("a system text is asked in front of the question in 1 of 31 rows" in note for note in source.notes)


STEPS = "<step>3 + 4 = 7</step><step>So 7.</step>"
SOLVED = f"{STEPS}<answer>7</answer>"


@pytest.mark.parametrize(
    "text",
    [
        "3 + 4 = <<3+4=7>>7\nSo 7.",
        "<think>Hm.</think>3 + 4 = 7\n\nSo 7.",
        "3 + 4 = 7\nSo 7.\n#### 7",
        SOLVED,
        STEPS,
    ],
    ids=["lines", "thought", "mark", "tags", "steps alone"],
)
@pytest.mark.parametrize("column", ["solution", "Solution"])
def test_a_solution_beside_the_answer_is_the_worked_one(text, column):
    found = any_row({"question": "3 + 4?", "answer": "7", column: text})
    assert (found.answer, found.solution, found.solution_column, found.unread) == ("7", SOLVED, column, ())


@pytest.mark.parametrize(
    "row",
    [
        {"answer": "7", "solution": "7"},  # which is the answer once more
        {"answer": "7", "solution": "$\\boxed{7}$."},
        {"answer": "7", "solution": ["3 + 4"]},
        {"answer": "7", "solution": "So <answer>7</answer>"},  # tags that leave no step to read
        {"answer": "3 + 4 = 7\n#### 7", "solution": "So 7."},  # the answer brings worked text of its own
        {"answer": None, "solution": "So 7."},
        {"answer": "7", "solution": 7, "": "So 7."},  # a column without a name is no solution
    ],
    ids=["bare", "box", "list", "tags", "gsm8k", "unanswered", "unnamed"],
)
def test_a_solution_that_is_not_read_is_counted(row):
    found = row_of({"question": "3 + 4?", **row}, "question", "answer", "row 1", may_lack_answer=True)
    assert (found.solution_column, found.unread[0]) == ("", "solution")


def test_a_solution_that_ends_on_the_answer_is_worked_text_too():
    found = any_row({"problem": "3 + 4?", "solution": "3 + 4 = 7\nSo \\boxed{7}."})
    worked = "<step>3 + 4 = 7</step><step>So \\boxed{7}.</step><answer>7</answer>"
    assert (found.answer, found.solution, found.solution_column, found.unread) == ("7", worked, "", ())
    assert any_row({"problem": "3 + 4?", "solution": "7"}).solution is None
    assert any_row({"problem": "3 + 4?", "answer": "3 + 4 = 7\nSo \\boxed{7}."}).solution is None


@pytest.mark.parametrize("other", ["Solution", "Answer", "final_answer", "Question", "problem", "Paraphrase"])
def test_of_two_columns_with_one_meaning_the_second_is_counted(other, tmp_path):
    rows = [
        {"question": f"{n} + 4?", "answer": n + 4, "solution": "As ever.", "paraphrase": f"4 + {n}?", other: "Else."}
        for n in range(40)
    ]
    path = write(tmp_path / "two.jsonl", rows)
    said = f"note: {path}: columns not read: {other} (40 rows)"
    assert JsonlTasks(path).notes[-1] == said
    assert gold_solutions(str(path), solver_of(TINY)).notes == (said,)


def test_it_is_said_where_worked_solutions_are_read(tmp_path, capsys):
    rows = [{"question": f"Q{n}", "answer": n, "solution": f"So {n}." if n % 2 else ""} for n in range(40)]
    path = write(tmp_path / "a.jsonl", rows)
    said = "the worked solution is read from 'solution' in 20 of 40 rows"
    assert JsonlTasks(path).notes == [f"note: {path}: {said}"]
    main(["check", "data", str(path)])
    assert said in capsys.readouterr().out


def test_where_nobody_learns_a_worked_solution_its_column_is_not_read(tmp_path):
    path = str(write(tmp_path / "a.jsonl", [{"problem": "P?", "solution": "So 7.", "answer": "7", "level": 3}]))
    grader = AnswerGrader()
    said = []
    load_suite("math500", [path], grader, say=said.append)
    grader.close()
    with open_runner(TINY, path, {"solver": solver_of(TINY)}, device="cpu", seed=0, aside=None, say=said.append):
        pass
    assert [line.rpartition(": ")[2] for line in said] == ["solution, level (1 row)"] * 2


def test_a_solver_is_taught_the_worked_text_of_a_column_in_any_spelling(tmp_path):
    beside = {"Question": "3 + 4?", "Answer": "7", "Solution": "3 + 4 = 7"}
    within = {"Question": "Q", "Answer": "So 9.\n#### 9"}
    corpus = gold_solutions(str(write(tmp_path / "a.jsonl", [beside, within])), solver_of("shipped"))
    replies = [corpus.get(place)[-1]["content"] for place in range(2)]
    assert replies == ["<step>3 + 4 = 7</step><answer>7</answer>", "<step>So 9.</step><answer>9</answer>"]


@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_a_message_that_is_not_asked_is_refused(role):
    with refuses("E_MESSAGE_ROLE", names=f"'{role}'"):
        any_row({"prompt": [message(role, "Hi."), ASK], "answer": "1"})


def test_a_system_text_alone_is_no_prompt():
    with refuses("E_PREFERENCE_WITHOUT_PROMPT"):
        read_pair({"system": "Be short.", "chosen": "a", "rejected": "b"}, "row 1")


def test_paraphrases_are_asked_behind_the_system_text_too(tmp_path):
    rows = [{"system": "S.", "question": f"Q{n}?", "answer": n, "paraphrase": f"P{n}?"} for n in range(30)]
    task = JsonlTasks(write(tmp_path / "a.jsonl", rows)).get("train", 0)
    assert task.paraphrases[0].startswith("S.\n\nP")


def test_two_system_texts_are_refused():
    with refuses("E_TWO_SYSTEM_TEXTS"):
        any_row({"prompt": [SYSTEM, ASK], "system": "Be long.", "answer": "1"})
    with refuses("E_TWO_SYSTEM_TEXTS"):
        read_chat({"messages": [SYSTEM, ASK, YES], "system": "Be long."}, "row 1")
    with refuses("E_TWO_SYSTEM_TEXTS"):
        any_row({"system": "a", "system_prompt": "b", "question": "Q?", "answer": "1"})


CHATS = {
    "messages": {"messages": [ASK, YES]},
    "conversations": {"conversations": [HUMAN, GPT]},
    "completion": {"prompt": "Sky?", "completion": "Blue. #### 3"},
    "prompt of messages": {"prompt": [ASK], "completion": [YES]},
    "completion with the question": {"prompt": [ASK], "completion": [ASK, YES]},
    "output": {"instruction": "Sky?", "input": "", "output": "Blue. #### 3"},
    "response": {"instruction": "Sky?", "response": "Blue. #### 3"},
}


@pytest.mark.parametrize("layout", CHATS)
def test_a_system_text_is_the_first_message_of_a_chat(layout):
    found = read_chat({**CHATS[layout], "system": "Be short."}, "row 1")
    assert [(m.role, m.content) for m in found.messages] == [("system", "Be short."), ("user", "Sky?")]
    with refuses("E_COLUMN_NOT_ASKED", names="'tools'"):
        read_chat({**CHATS[layout], "tools": [{"name": "f"}]}, "row 1")


PAIRS = {
    "whole": {"chosen": [ASK, YES], "rejected": [ASK, NO]},
    "question": {"question": "Sky?", "chosen": "Blue.", "rejected": "Green."},
    "beside a prompt": {"prompt": [ASK], "chosen": [YES], "rejected": [NO]},
    "repeated": {"prompt": [SYSTEM, ASK], "chosen": [ASK, YES], "rejected": [ASK, NO]},
    "system in the replies": {"prompt": [ASK], "chosen": [SYSTEM, ASK, YES], "rejected": [SYSTEM, ASK, NO]},
    "all of it": {"prompt": [SYSTEM, ASK], "chosen": [SYSTEM, ASK, YES], "rejected": [SYSTEM, ASK, NO]},
    "a text": {"prompt": "Sky?", "chosen": [ASK, YES], "rejected": [ASK, NO]},
    "ShareGPT": {"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "Green."}},
    "a developer": {"prompt": [SYSTEM | {"role": "developer"}, ASK], "chosen": [YES], "rejected": [NO]},
}


@pytest.mark.parametrize("layout", PAIRS)
def test_a_pair_asks_once_behind_its_system_text(layout):
    found = read_pair({"system": "Be short.", **PAIRS[layout]}, "row 1")
    assert [(m.role, m.content) for m in found.messages] == [("system", "Be short."), ("user", "Sky?")]
    assert found.unread == ()


def test_a_prompt_that_does_not_lead_to_the_replies_is_refused_or_told():
    other = message("user", "Grass?")
    with refuses("E_PROMPT_IN_TWO_PLACES", names="user"):
        read_pair({"prompt": [other], "chosen": [ASK, YES], "rejected": [ASK, NO]}, "row 1")
    found = read_pair({"prompt": "Grass?", "chosen": [ASK, YES], "rejected": [ASK, NO]}, "row 1")
    assert found.question == "Sky?" and found.unread == ("prompt",)


def test_conversations_of_sft_begin_with_their_system_text(tmp_path):
    rows = [{"system": "Be short.", "messages": [ASK, YES], "source": "x"}, {"messages": [ASK, YES]}]
    corpus = jsonl_file(write(tmp_path / "a.jsonl", rows))
    assert corpus.get(0)[0] == SYSTEM and len(corpus.get(1)) == 2
    assert corpus.notes == (f"note: {tmp_path / 'a.jsonl'}: columns not read: source (1 row)",)


@pytest.mark.parametrize("layout", [*CHATS][:3])
def test_solutions_ask_the_system_text_as_a_run_does(layout, tmp_path):
    row = {"system": "Be short.", **CHATS[layout], "id": 1}
    corpus = gold_solutions(str(write(tmp_path / "a.jsonl", [row])), solver_of("some/model", "hash"))
    assert "Be short.\n\nSky?" in corpus.get(0)[0]["content"]
    assert corpus.notes[0].endswith("columns not read: id (1 row)")


def test_solutions_to_be_judged_are_refused_without_what_they_need():
    row = {"problem": "P", "steps": ["a"], "label": -1, "generator": "m"}
    assert solution_of_row(row, "row 1", "").unread == ("generator",)
    with refuses("E_COLUMN_NOT_ASKED", names="'images'"):
        solution_of_row({**row, "images": ["a.png"]}, "row 1", "")


def test_sources_say_at_the_start_what_they_do_not_read(tmp_path):
    texts = [{"prompt": f"Q{n}", "chosen": f"a{n}", "rejected": f"b{n}", "score": n} for n in range(30)]
    said = [{"messages": [message("user", f"Q{n}"), YES], "id": n} for n in range(30)]
    asked = [{"question": f"Q{n}", "answer": n, "level": "hard"} for n in range(30)]
    for name, kind, rows in (("score", Pairs, texts), ("id", Chats, said), ("level", JsonlTasks, asked)):
        source = kind(write(tmp_path / f"{name}.jsonl", rows))
        assert source.notes[-1].endswith(f"columns not read: {name} (30 rows)")


def test_a_field_inside_of_a_column_is_an_answer(tmp_path, capsys):
    rows = [
        {
            "data_source": "mine",
            "prompt": [message("user", f"What is {n} and {n}?")],
            "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
        }
        for n in range(40)
    ]
    file = write(tmp_path / "verl.jsonl", rows)
    named = JsonlTasks(file, "prompt", "reward_model.ground_truth")
    found = JsonlTasks(file)  # the layout is known
    assert named.get("train", 0).gold == found.get("train", 0).gold
    assert named.notes[-1].endswith("columns not read: data_source, reward_model.style (40 rows)")
    assert main(["check", "data", str(file), "--answer-column", "reward_model.ground_truth"]) == 0
    assert "answer from 'reward_model.ground_truth'" in capsys.readouterr().out
    with refuses("E_FIELD_MISSING", names=("'reward_model.truth'", "'reward_model.ground_truth'")):
        JsonlTasks(file, "prompt", "reward_model.truth")
    nested = [{"question": "Q", "extra": {"answer": "1"}}]
    with refuses("E_FIELD_MISSING", names="'extra.answer'"):
        JsonlTasks(write(tmp_path / "b.jsonl", nested))


def test_a_column_with_a_dot_in_its_name_is_itself():
    row = {"question": "Q", "a.b": "1", "a": {"b": "2"}}
    assert row_of(row, "question", "a.b", "row 1").answer == "1"


def test_cells_that_say_nothing_are_no_columns():
    assert not any(map(has_content, (None, "", "  ", [], {}, [""], {"a": None}, [[], {"b": []}])))
    assert all(map(has_content, (0, False, "x", [0], {"a": "b"})))
    assert unread_columns({"a": 1, "b": None, "c": {"d": 1, "e": 2}}, ["c.d"]) == ("a", "c.e")
    assert columns_note({}) is None
    assert columns_note({"a": 2, "b": 1, "c": 2}) == "columns not read: a, c (2 rows), b (1 row)"


def test_suites_say_it_too(tmp_path):
    said: list[str] = []
    rows = [{"question": f"Q{n}?", "answer": n, "level": 1} for n in range(3)]
    load_suite("jsonl", [str(write(tmp_path / "a.jsonl", rows))], AnswerGrader(), say=said.append)
    judged = [{"id": n, "problem": "P", "steps": ["a"], "label": -1, "generator": "m"} for n in range(2)]
    load_suite("processbench", [str(write(tmp_path / "b.jsonl", judged))], AnswerGrader(), say=said.append)
    code = [{"text": "T", "code": "def f(): pass", "test_list": ["f()"], "source": "x"}]
    [task] = load_suite("mbpp", [str(write(tmp_path / "c.jsonl", code))], AnswerGrader(), say=said.append)
    task.grader.close()
    assert [note.partition("not read: ")[2] for note in said] == [
        "level (3 rows)",
        "generator (2 rows)",
        "source (1 row)",
    ]
    choices = str(write(tmp_path / "d.jsonl", [{"choices": ["1"], "question": "Q", "answer": "1"}]))
    with refuses("E_COLUMN_NOT_ASKED", names="'choices'"):
        load_suite("gsm8k", [choices], AnswerGrader())
