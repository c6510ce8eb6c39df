"""One question in several forms of Unicode is one question: for splits, leak checks, paraphrases and the linter."""

import json
import unicodedata

import pytest

from cotrain.analysis.check_data import check_file, question_key
from cotrain.data.files import JsonlTasks, split_of
from cotrain.data.question_text import normal_question, plain_unicode
from cotrain.pretraining.paraphrases import count_numbers, wording_of

FORMS = {
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "no-break space": lambda text: text.replace(" ?", "\u00a0?"),
    "narrow space": lambda text: text.replace(" ?", "\u202f?"),
    "zero-width space": lambda text: text.replace("num", "num\u200b"),
    "joiner": lambda text: text + "\u2060",
    "byte order mark": lambda text: "\ufeff" + text,
    "soft hyphen": lambda text: text.replace("combien", "com\u00adbien"),
    "selector": lambda text: text.replace("?", "?\ufe0f"),
    "wide": lambda text: text.replace("?", "？").replace("1", "１"),
    "ligature": lambda text: text.replace("fi", "\ufb01"),
    "capitals": lambda text: unicodedata.normalize("NFD", text.upper()),
}


def question(number):
    return f"Au café numéro {number}, combien de tables à deux places y a-t-il à la fin ?"


def write(path, questions):
    path.write_text("".join(json.dumps({"question": text, "answer": n}) + "\n" for n, text in enumerate(questions)))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_a_question_is_the_same_in_every_form(form, tmp_path):
    plain, other = [question(n) for n in range(40)], [FORMS[form](question(n)) for n in range(40)]
    assert plain != other
    assert [split_of(text) for text in plain] == [split_of(text) for text in other]
    assert [question_key(text) for text in plain] == [question_key(text) for text in other]
    assert [wording_of(text) for text in plain] == [wording_of(text) for text in other]
    assert [count_numbers(text) for text in plain] == [count_numbers(text) for text in other]
    write(tmp_path / "train.jsonl", plain)
    write(tmp_path / "test.jsonl", other[:30])
    source = JsonlTasks(tmp_path)
    assert source.size("train") + source.size("validation") == 10 and source.left_out == 30
    overlaps = check_file(tmp_path / "train.jsonl", [tmp_path / "test.jsonl"], workers=1).findings
    assert [len(found.where) for found in overlaps if found.kind == "overlap"] == [30]


def test_a_paraphrase_in_another_form_is_none(tmp_path):
    rows = [{"question": question(n), "answer": n, "paraphrase": FORMS["decomposed"](question(n))} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert JsonlTasks(tmp_path / "a.jsonl").get("train", 0).paraphrases == ()


def test_powers_and_halves_stay_what_they_are():
    for one, other in (("What is 3²?", "What is 32?"), ("x₁ + 2", "x1 + 2"), ("½ of 6", "1/2 of 6"), ("①", "1")):
        assert normal_question(one) != normal_question(other)
    assert plain_unicode("naïve ﬁle") == "naïve file" and plain_unicode("plain") == "plain"
