import json
from collections import Counter

import pytest

from cotrain.data.malformed_rows import Quarantine
from cotrain.pretraining.corpora import (
    corpus_file,
    from_items,
    interleave,
    jsonl_file,
    procedural_corpus,
    repeat_epochs,
    split_corpus,
    text_file,
)
from tests.sentences import refuses


def everything(corpus):
    return [corpus.get(i) for i in range(corpus.size)]


def test_paragraphs_of_a_text_file(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n\n\ntwo two\n\nthree\nthree\n\n", encoding="utf-8")
    assert everything(text_file(tmp_path / "a.txt", min_characters=8)) == ["one\n\ntwo two", "three\nthree"]
    assert everything(corpus_file(tmp_path / "a.txt")) == ["one\n\ntwo two\n\nthree\nthree"]


def test_lines_are_the_parts_of_a_text_without_empty_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo two\r\nthree\n")
    assert everything(text_file(tmp_path / "a.txt", min_characters=8)) == ["one\ntwo two", "three"]


def test_rows_of_a_jsonl_file(tmp_path):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "\u2028a"}]
    rows = [json.dumps({"text": "t"}), "", json.dumps({"messages": turns, "id": 3}, ensure_ascii=False)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert everything(corpus_file(tmp_path / "a.jsonl")) == ["t", turns]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "E_ROW_NOT_JSON: row 2, column 2"),
        ("[1]", "E_ROW_NOT_OBJECT: found a list"),
        ('{"txt": "a"}', "E_FIELD_MISSING"),
        ('{"question": "a", "answer": "b"}', "E_FIELD_MISSING"),
        ('{"conversations": [{"from": "robot", "value": "x"}]}', "E_MESSAGES_SHAPE: 0].from'"),
        ('{"conversations": [{"from": "human"}]}', "E_MESSAGES_SHAPE: conversations[0].value' | found None"),
        (
            '{"conversations": [{"from": "human", "value": "x"}]}',
            "E_MESSAGES_END: the last message must be the assistant's",
        ),
        ('{"messages": [], "conversations": []}', "E_TEXT_AND_MESSAGES: both 'messages' and 'conversations'"),
        ('{"completion": "b"}', "E_PREFERENCE_WITHOUT_PROMPT"),
        ('{"instruction": "a", "context": "c", "response": "b"}', "E_COLUMN_NOT_ASKED: field 'context'"),
        ('{"prompt": "a", "completion": "b", "label": false}', "E_REPLY_MARK: field 'label'"),
        (
            '{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", '
            '"content": "c"}], "completion": "d"}',
            "E_REPLIES_IN_PROMPT",
        ),
        ('{"text": 3}', "E_FIELD_BLANK: row 2, column 'text' | found 3"),
        ('{"text": "a\\ud800"}', "E_HALF_SURROGATE: row 2, column 'text', character 2"),
        ('{"text": "a", "text": "b"}', "E_ROW_NOT_JSON: field 'text' twice"),
        ('{"text": ""}', "E_FIELD_BLANK: row 2, column 'text' | found ''"),
        ('{"messages": []}', "E_MESSAGES_SHAPE: row 2, column 'messages'"),
        ('{"messages": ["x"]}', "E_MESSAGES_SHAPE: row 2, column 'messages[0]'"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', "E_MESSAGES_SHAPE: 'messages[0].role'"),
        ('{"messages": [{"role": "user"}]}', "E_MESSAGES_SHAPE: 'messages[0].content' | found None"),
        (
            '{"messages": [{"role": "user", "content": "x"}]}',
            "E_MESSAGES_END: the last message must be the assistant's",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "x"}]}',
            "E_MESSAGES_BEGIN: the first message is the assistant's",
        ),
        (
            '{"text": "a", "messages": [{"role": "user", "content": "x"}]}',
            "E_TEXT_AND_MESSAGES: both 'text' and 'messages'",
        ),
        (
            '{"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]}',
            "E_COLUMN_NOT_ASKED: field 'tools'",
        ),
        ('{"text": null}', "E_FIELD_BLANK: column 'text' | found None"),
        (
            '{"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}',
            "E_REPLY_FIELD_LOST: 0]', 'tool_calls'",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "x", "reasoning": "y"}]}',
            "E_REPLY_FIELD_LOST: 'reasoning' | 'y'",
        ),
        ('{"messages": [{"role": "assistant", "content": "x", "weight": 0}]}', "E_REPLY_FIELD_LOST: weight' | 0 would"),
        ('{"messages": [{"role": "assistant", "content": "x", "train": false}]}', "E_REPLY_FIELD_LOST: train' | False"),
    ],
)
def test_bad_rows_say_where(tmp_path, line, code):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with refuses(code) as caught:
        jsonl_file(tmp_path / "a.jsonl")
    assert "a.jsonl, row 2" in str(caught.value)


LAYOUTS = {
    "messages": {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A."}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "A."}]},
    "completion": {"prompt": "Q?", "completion": "A."},
    "turns": {"prompt": [{"role": "user", "content": "Q?"}], "completion": [{"role": "assistant", "content": "A."}]},
    "alpaca": {"instruction": "Q?", "input": "", "output": "A."},
    "response": {"instruction": "Q?", "response": "A.", "messages": None},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_conversation_is_the_same(layout, tmp_path):
    """A page had said so, and all but one of them were refused."""
    row = LAYOUTS[layout] | {"source": "x"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"system": "S."}) + "\n")
    corpus = jsonl_file(tmp_path / "a.jsonl")
    turns = LAYOUTS["messages"]["messages"]
    assert everything(corpus) == [turns, [{"role": "system", "content": "S."}, *turns]]
    assert corpus.notes == (f"note: {tmp_path / 'a.jsonl'}: columns not read: source (2 rows)",)


def test_an_instruction_is_asked_with_its_input_and_a_text_is_learned_before_it(tmp_path):
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({"text": "t", **row}) + "\n")
    corpus = jsonl_file(tmp_path / "a.jsonl")
    assert corpus.get(0)[0]["content"] == "Add.\n\n1 and 2" and corpus.get(1) == "t"
    assert corpus.notes[0].endswith("columns not read: instruction, input, output (1 row)")


def test_all_replies_of_a_shared_conversation_are_learned(tmp_path):
    said = [("system", "S."), ("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d")]
    row = {"conversations": [{"from": who, "value": text} for who, text in said]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    (item,) = everything(jsonl_file(tmp_path / "a.jsonl"))
    assert [turn["role"] for turn in item] == ["system", "user", "assistant", "user", "assistant"]


def test_columns_without_a_value_say_nothing(tmp_path):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    full = [{**turn, "weight": 1.0, "train": True, "tool_calls": [], "reasoning": "", "name": None} for turn in turns]
    full[0]["train"] = False  # of what is never learned
    rows = [{"text": None, "messages": full, "tools": None}, {"text": "c", "messages": None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert everything(jsonl_file(tmp_path / "a.jsonl")) == [turns, "c"]


def test_rows_are_set_aside_when_asked(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{\n{"text": 3}\n{"text": "two"}\n')
    aside = Quarantine()
    assert everything(corpus_file(tmp_path / "a.jsonl", aside)) == ["one", "two"]
    assert (aside.read, [one.row for one in aside.refused]) == (2, ["{", '{"text": 3}'])
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{\n{"text": 3}\n')
    with refuses("E_TOO_MANY_BAD_ROWS", names="3 rows"):
        corpus_file(tmp_path / "b.jsonl", Quarantine())


def test_files_that_are_not_there_or_not_text(tmp_path):
    with refuses("E_FILE_UNREADABLE", names="no such file"):
        corpus_file(tmp_path / "nothing.txt")
    (tmp_path / "a.txt").write_bytes(b"ab\xff")
    with refuses("E_TEXT_ENCODING", names="byte 2"):
        corpus_file(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("\n\n  \n")
    with refuses("E_DATA_EMPTY"):
        corpus_file(tmp_path / "b.txt")


def test_epochs_read_everything_once_in_another_order():
    items = [str(i) for i in range(20)]
    read = repeat_epochs(from_items("a", items), seed=1)
    first, second = [read(i) for i in range(20)], [read(i) for i in range(20, 40)]
    assert sorted(first) == sorted(second) == sorted(items) and first != second
    assert [read(i) for i in (25, 3, 25)] == [second[5], first[3], second[5]], "addressed, not drawn"
    assert [repeat_epochs(from_items("a", items), seed=2)(i) for i in range(20)] != first


def test_interleaving_keeps_the_proportion_and_repeats_nothing():
    a, b = procedural_corpus("a", lambda i: f"a{i}"), from_items("b", ["x", "y", "z"])
    mixed = interleave([(a, 3), (b, 1)])
    assert mixed.size is None and mixed.name == "3×a+1×b"
    for period in range(5):
        kinds = Counter(mixed.get(4 * period + i)[0] in "xyz" for i in range(4))
        assert kinds == {False: 3, True: 1}
    drawn = Counter(mixed.get(i) for i in range(4 * 6))
    assert {name for name in drawn if name[0] == "a"} == {f"a{i}" for i in range(18)}
    assert [drawn[name] for name in "xyz"] == [2, 2, 2], "two whole epochs of the finite part"
    with refuses("E_INTERLEAVE_WEIGHTS"):
        interleave([(a, 0)])


@pytest.mark.parametrize(("size", "count"), [(None, 10), (300, 10), (30, 3), (2, 1)])
def test_held_out_items_are_in_no_training_batch(size, count):
    whole = procedural_corpus("a", str) if size is None else from_items("a", [str(i) for i in range(size)])
    kept, held = split_corpus(whole, 10, seed=4)
    training = {kept.get(i) for i in range(kept.size or 100)}
    validation = set(everything(held))
    assert len(validation) == count and not training & validation  # of few items a tenth
    assert size is None or training | validation == {str(i) for i in range(size)}


def test_one_item_alone_cannot_be_split():
    with refuses("E_CORPUS_OF_ONE_ITEM"):
        split_corpus(from_items("a", ["0"]), 30)
