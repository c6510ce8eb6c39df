"""Preferences in the layouts that people have, one pair out of each; and what is said of rows that are none."""

import csv
import gzip
import json
import sys
import types

import pytest

from cotrain.data.preferences import Chats, ChatTask, Pairs, messages_of, read_chat, read_pair
from cotrain.data.sources import from_description, problem_source, task_source
from cotrain.prompts.chat_template import Message
from tests.sentences import refuses


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def plain(count, **more):
    return [{"prompt": f"Q{n}", "chosen": f"good {n}", "rejected": f"bad {n}", **more} for n in range(count)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


FIRST = [user("Hi"), assistant("Hello."), user("And?")]
TEXTS = {"prompt": "Sky?", "chosen": "Blue.", "rejected": "Green."}
SAID = [user("Sky?")], "Sky?", "Blue.", "Green."
LONG = FIRST, "user: Hi\n\nassistant: Hello.\n\nuser: And?", "Yes", "No"
ULTRA = {  # UltraFeedback-binarized: a prompt of text beside whole conversations
    **{"prompt": "Sky?", "prompt_id": "1", "messages": [user("Sky?"), assistant("Blue.")]},
    **{"chosen": [user("Sky?"), assistant("Blue.")], "rejected": [user("Sky?"), assistant("Green.")]},
    **{"score_chosen": 8.5, "score_rejected": 7.0},
}
HUMAN = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: And?\n\nAssistant:"
LAYOUTS = {
    "texts": (TEXTS, ([], *SAID[1:])),
    "texts, a question": ({"question": "Sky?", "chosen": "Blue.", "rejected": "Green."}, ([], *SAID[1:])),
    "a system text": ({**TEXTS, "system": "Be short."}, (
        [{"role": "system", "content": "Be short."}, user("Sky?")], "system: Be short.\n\nuser: Sky?", *SAID[2:])),
    "messages": ({"prompt": [user("Sky?")], "chosen": [assistant("Blue.")], "rejected": [assistant("Green.")]}, SAID),
    "messages, a prompt of text": ({**TEXTS, "chosen": [assistant("Blue.")], "rejected": [assistant("Green.")]}, (
        [], *SAID[1:])),
    "messages of several turns": (
        {"prompt": FIRST, "chosen": [assistant("Yes")], "rejected": [assistant("No")]}, LONG),
    "replies of text to messages": ({"prompt": FIRST, "chosen": "Yes", "rejected": "No"}, LONG),
    "one message each": ({"prompt": FIRST, "chosen": assistant("Yes"), "rejected": assistant("No")}, LONG),
    "whole conversations": (
        {"chosen": [*FIRST, assistant("Yes")], "rejected": [*FIRST, assistant("No")]}, LONG),
    "whole conversations beside their prompt": (
        {"prompt": FIRST, "chosen": [*FIRST, assistant("Yes")], "rejected": [*FIRST, assistant("No")]}, LONG),
    "ShareGPT": (
        {"prompt": [{"from": "human", "value": "Sky?"}], "chosen": {"from": "gpt", "value": "Blue."},
         "rejected": {"from": "gpt", "value": "Green."}}, SAID),
    "UltraFeedback": (ULTRA, SAID),
    "HH-RLHF": ({"chosen": f"{HUMAN} Yes", "rejected": f"{HUMAN} No"}, LONG),
    "HH-RLHF, the prompt apart": ({"prompt": HUMAN, "chosen": "Yes", "rejected": "No"}, LONG),
    "an empty reply": ({**TEXTS, "rejected": ""}, ([], "Sky?", "Blue.", "")),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_read_as_it_is(layout):
    row, (messages, question, wanted, unwanted) = LAYOUTS[layout]
    found = read_pair(row, "here")
    assert [{"role": m.role, "content": m.content} for m in found.messages] == messages
    assert (found.question, found.solution, found.rejected) == (question, wanted, unwanted)


REFUSED = {
    "a name with a slip": (
        "E_FIELD_MISSING: 'rejected' | 'reject'?", {"prompt": "Q", "chosen": "a", "reject": "b"}),
    "other fields": ("E_FIELD_MISSING: 'chosen' | 'question', 'answer'", {"question": "Q", "answer": "1"}),
    "no prompt": ("E_PREFERENCE_WITHOUT_PROMPT: 'prompt'", {"chosen": "a", "rejected": "b"}),
    "two kinds": (
        "E_PREFERENCE_KINDS_DIFFER: a text and messages",
        {**TEXTS, "rejected": [user("Sky?"), assistant("Green.")]}),
    "a number": ("E_FIELD_NOT_MESSAGES: field 'chosen' | a number", {**TEXTS, "chosen": 3}),
    "an empty list": ("E_FIELD_NOT_MESSAGES: field 'chosen' | a list", {**TEXTS, "chosen": []}),
    "a tool": (
        "E_FIELD_NOT_MESSAGES: field 'rejected' | {'role': 'tool'",
        {"prompt": FIRST, "chosen": [assistant("a")], "rejected": [{"role": "tool", "content": "b"}]}),
    "a list as text": ("E_MESSAGES_AS_TEXT: field 'chosen'", {**TEXTS, "chosen": str([assistant("a")])}),
    "a blank prompt": ("E_FIELD_BLANK: field 'prompt'", {**TEXTS, "prompt": " "}),
    "two messages": (
        "E_REPLY_NOT_ONE_MESSAGE: field 'chosen' | user, assistant",
        {"chosen": [user("Q"), assistant("a")], "rejected": [user("Other"), assistant("b")]}),
    "no message": (
        "E_REPLY_NOT_ONE_MESSAGE: field 'rejected' | nothing",
        {"prompt": FIRST, "chosen": [*FIRST, assistant("a")], "rejected": FIRST}),
    "a prompt that ends with a reply": (
        "E_PROMPT_END_NOT_USER", {"prompt": FIRST[:2], "chosen": [assistant("a")], "rejected": [assistant("b")]}),
    "half of a surrogate pair": (
        "E_HALF_SURROGATE", {**TEXTS, "rejected": [assistant("\ud800")], "chosen": [assistant("a")]}),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_another_row_is_refused_in_one_line_with_its_place(why, tmp_path):
    code, row = REFUSED[why]
    path = write(tmp_path / "a.jsonl", [*plain(30), row])
    with refuses(code) as error:
        Pairs(path)
    assert "a.jsonl, row 31" in str(error.value) and "\n" not in str(error.value)
    source = Pairs(path, lenient=True)
    assert source.quarantine.read == 30 and len(source.quarantine.refused) == 1


def test_formats_of_files(tmp_path):
    rows = plain(40)
    files = [write(tmp_path / "a.jsonl", rows), tmp_path / "a.json", tmp_path / "a.csv", tmp_path / "a.jsonl.gz"]
    files[1].write_text(json.dumps(rows))
    with files[2].open("w", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    files[3].write_bytes(gzip.compress(files[0].read_bytes()))
    sources = [Pairs(file) for file in files]
    assert len({source.describe()["settings"]["digest"] for source in sources}) == 1
    first = sources[0].get("test", 0)
    assert isinstance(first, ChatTask) and messages_of(first) == [] and first.gold is None
    assert (first.solution, first.rejected) == (f"good {first.prompt[1:]}", f"bad {first.prompt[1:]}")


def test_a_prompt_lies_in_one_split_whatever_replies_it_has(tmp_path):
    rows = [{**row, "rejected": f"worse {i}"} for row in plain(40) for i in range(3)]
    source = Pairs(write(tmp_path / "a.jsonl", rows))
    prompts = {s: {source.get(s, i).prompt for i in range(source.size(s))} for s in ("train", "validation", "test")}
    assert sum(map(len, prompts.values())) == 40 and sum(map(source.size, prompts)) == 120
    assert {split: len(those) for split, those in prompts.items()} == {"train": 32, "validation": 4, "test": 4}


def test_equal_replies_are_left_out_and_counted(tmp_path):
    rows = plain(30)
    rows[4]["chosen"] = rows[4]["rejected"]
    path = write(tmp_path / "a.jsonl", [*rows, {**ULTRA, "chosen": ULTRA["rejected"]}])
    source = Pairs(path)
    assert sum(map(source.size, ("train", "validation", "test"))) == 29
    [note] = source.notes
    assert note == (f"note: 2 pairs are left out, as chosen and rejected are equal; the first: {path}, row 5")
    assert Pairs(write(tmp_path / "b.jsonl", rows[:4] + rows[5:])).notes == []
    with refuses("E_PREFERENCES_ALL_EQUAL", names=("c.jsonl", "3 rows")):
        Pairs(write(tmp_path / "c.jsonl", [{**row, "chosen": row["rejected"]} for row in plain(3)]))


def test_changed_replies_are_other_data(tmp_path):
    path = write(tmp_path / "a.jsonl", plain(30))
    described = Pairs(path).describe()
    assert from_description(described).describe() == described
    write(path, [{**row, "rejected": "other"} for row in plain(30)])
    with refuses("E_DATA_CHANGED"):
        from_description(described)


def test_how_the_command_line_names_them(tmp_path):
    path = str(write(tmp_path / "a.jsonl", [*plain(30), {}]))
    lenient = task_source("pairs", path, lenient=True)
    assert isinstance(lenient, Pairs) and from_description(lenient.describe()).describe() == lenient.describe()
    write(tmp_path / "a.jsonl", plain(30))
    assert problem_source(f"pairs:{path}", None).describe() == problem_source("pairs", path).describe()
    for spec, data in (("pairs", None), (f"pairs:{path}", path)):
        with refuses("E_TASKS_TWO_FILES", names="pairs"):
            task_source(spec, data)
    with refuses("E_DATA_LAYOUT_NOT_PLAIN", names="chosen and rejected"):
        problem_source(None, path)


def test_a_directory_and_the_splits_of_preferences_on_the_hub(tmp_path, monkeypatch):
    write(tmp_path / "train.jsonl", plain(30))
    write(tmp_path / "test.jsonl", plain(3))
    source = Pairs(tmp_path)
    assert (source.size("test"), source.left_out) == (3, 3)
    splits = {"train_prefs": plain(30), "test_prefs": [ULTRA], "train_sft": [{"messages": []}], "test_gen": [{}]}
    fake = types.SimpleNamespace(load_dataset=lambda name, config: splits)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    found = Pairs("me/binarized")
    assert (found.size("test"), messages_of(found.get("test", 0))) == (1, [Message("user", "Sky?")])
    assert "note: me/binarized: splits not read: train_sft (1 row), test_gen (1 row)" in found.notes


def test_nothing_can_be_graded_by_them(tmp_path):
    source = Pairs(write(tmp_path / "a.jsonl", plain(30)))
    with refuses("E_PREFERENCES_AS_TASKS", names="dpo or reward"):
        source.get("train", 0).grade("Q")


CHATS = {
    "messages": ({"messages": [*FIRST, assistant("Yes")]}, (FIRST, "Yes")),
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": "Sky?"}, {"from": "gpt", "value": "Blue."}]},
        ([user("Sky?")], "Blue."),
    ),
    "prompt and completion": ({"prompt": "Sky?", "completion": "Blue."}, ([], "Blue.")),
    "the same as messages": (
        {"prompt": [user("Sky?")], "completion": [assistant("Blue.")]}, ([user("Sky?")], "Blue.")),
}  # fmt: skip


@pytest.mark.parametrize("layout", CHATS)
def test_a_conversation_is_what_is_said_and_its_last_reply(layout):
    row, (before, reply) = CHATS[layout]
    found = read_chat(row, "here")
    assert [{"role": m.role, "content": m.content} for m in found.messages] == before
    assert (found.solution, found.rejected) == (reply, None)


@pytest.mark.parametrize(
    "row, code",
    [
        ({"question": "Q", "answer": "A"}, "E_PREFERENCE_FIELDS: 'question', 'answer'"),
        ({"messages": FIRST}, "E_REPLY_NOT_ONE_MESSAGE: 'messages' | user"),
        ({"messages": [assistant("Yes")]}, "E_PREFERENCE_WITHOUT_PROMPT"),
        ({"messages": "Sky?"}, "E_FIELD_NOT_MESSAGES: 'messages' | a text"),
    ],
)
def test_what_is_no_conversation_says_so(row, code):
    with refuses(code) as raised:
        read_chat(row, "here")
    assert str(raised.value).startswith("here")


def test_a_file_of_conversations_is_a_task_source(tmp_path):
    path = write(tmp_path / "chat.jsonl", [{"prompt": f"Q{n}", "completion": f"A {n}"} for n in range(30)])
    source = task_source("chats", str(path))
    assert isinstance(source, Chats) and source.notes == [] and source.size("train") > source.size("test") > 0
    again = from_description(source.describe())
    task = again.get("train", 0)
    assert isinstance(task, ChatTask) and task.prompt[1:] == task.solution.removeprefix("A ")
    with refuses("E_PREFERENCES_AS_TASKS", names="spin"):
        source.grade(task, "A")
