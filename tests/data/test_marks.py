"""Replies that their file marks are refused by all who learn replies, and by each in its own layouts."""

from __future__ import annotations

import json

import pytest

from cotrain.data.preferences import read_chat, read_pair
from cotrain.pretraining.corpora import jsonl_file
from cotrain.pretraining.solutions import gold_solutions, solver_of
from tests.sentences import refuses

ASKED = {"role": "user", "content": "2+2?"}
MARKS = [
    *({name: 0} for name in ("weight", "loss_mask", "loss_scale", "loss_weight")),
    *({name: False} for name in ("train", "training", "train_on", "trainable", "loss", "learn")),
    *({name: True} for name in ("mask", "masked", "ignore")),
    {"weight": 0.5},
    {"training": "false"},
    {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    {"reasoning_content": "a long thought"},
    {"thinking": "a long thought"},
    {"train_detail": [{"begin_offset": 0, "end_offset": 3, "train": False}]},
]
PLAIN = [
    {"weight": 1}, {"weight": 1.0, "loss": True}, {"mask": False, "masked": 0}, {"training": "true"}, {"weight": None},
    {"tool_calls": [], "reasoning_content": ""}, {"name": "bot"},
]  # fmt: skip


def answered(**more):
    return {"role": "assistant", "content": "The answer is 4", **more}


def learn_messages(row, folder):
    (folder / "a.jsonl").write_text(json.dumps(row) + "\n")
    return jsonl_file(folder / "a.jsonl").get(0)


def learn_solution(row, folder):
    (folder / "a.jsonl").write_text(json.dumps(row) + "\n")
    return gold_solutions(str(folder / "a.jsonl"), solver_of("shipped")).get(0)


READERS = {
    "sft": learn_messages,
    "solver": learn_solution,
    "chats": lambda row, folder: read_chat(row, "row 1"),
    "pairs": lambda row, folder: read_pair({"chosen": row["messages"], "rejected": [ASKED, answered()]}, "row 1"),
}


def names_of(marks):
    return [json.dumps(mark)[:30] for mark in marks]


@pytest.mark.parametrize("mark", MARKS, ids=names_of(MARKS))
@pytest.mark.parametrize("reader", READERS)
def test_a_marked_reply_is_refused_by_name(reader, mark, tmp_path):
    with refuses("E_REPLY_FIELD_LOST", names=("row 1", repr(next(iter(mark))))):
        READERS[reader]({"messages": [ASKED, answered(**mark)]}, tmp_path)


@pytest.mark.parametrize("plain", PLAIN, ids=names_of(PLAIN))
@pytest.mark.parametrize("reader", READERS)
def test_marks_that_say_nothing_change_nothing(reader, plain, tmp_path):
    found, same = (READERS[reader]({"messages": [ASKED, answered(**more)]}, tmp_path) for more in (plain, {}))
    assert found == same


@pytest.mark.parametrize(
    "mark",
    [{"label": False}, {"label": 0}, {"is_correct": False}, {"weight": 0}, {"train": "False"}, {"loss_mask": [0, 1]}],
    ids=str,
)
def test_a_marked_row_is_refused_by_name(mark, tmp_path):
    row = {"prompt": "2+2?", "completion": "The answer is 5", **mark}
    for read in (lambda: read_chat(row, "row 1"), lambda: learn_solution(row, tmp_path)):
        with refuses("E_REPLY_MARK", names=f"row 1, field {next(iter(mark))!r}"):
            read()
    talk = {"messages": [ASKED, answered()], **mark}
    with refuses("E_REPLY_MARK", names=f"row 1, field {next(iter(mark))!r}"):
        learn_messages(talk, tmp_path)


def test_what_is_no_mark_of_a_reply_is_none(tmp_path):
    learn_solution({"question": "2+2?", "answer": "4", "label": 0}, tmp_path)  # of a problem
    learn_solution({"prompt": "2+2?", "completion": "The answer is 4", "label": True}, tmp_path)
    read_pair({"prompt": "2+2?", "chosen": "4", "rejected": "5", "label": 0}, "row 1")  # the first is the better one
    earlier = [ASKED, answered(weight=0), ASKED, answered()]
    assert read_chat({"messages": earlier}, "row 1").solution == "The answer is 4"  # which is read, and never learned
    with refuses("E_REPLY_FIELD_LOST", names="'tool_calls'"):
        read_chat({"messages": [ASKED, answered(tool_calls=[{}]), ASKED, answered()]}, "row 1")


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"masked": True}], ids=["weight", "train", "mask"])
def test_a_marked_text_is_refused_by_name(mark, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text(json.dumps({"text": "not this one", **mark}) + "\n")
    with refuses("E_REPLY_MARK", names=f"field '{next(iter(mark))}'"):
        jsonl_file(file)
