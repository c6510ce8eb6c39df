"""Answers graded in three ways, and why two of them read another answer. The harness's two functions stand here in
the few lines that its documentation gives them, where it is not installed."""

import json
import re
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from benchmarks import agreement

INSTALLED = find_spec("lm_eval") is not None


class RegexFilter:
    def __init__(self, regex_pattern, group_select):
        self.pattern, self.at = re.compile(regex_pattern), group_select

    def apply(self, answers, docs):
        return [[self.first(text) for text in texts] for texts in answers]

    def first(self, text):
        found = self.pattern.findall(text)
        if not found:
            return "[invalid]"
        one = found[self.at]
        return next(filter(None, one), "[invalid]") if isinstance(one, tuple) else one.strip()


def exact_match(predictions, references, regexes_to_ignore, ignore_case):
    def plain(text):
        for pattern in regexes_to_ignore:
            text = re.sub(pattern, "", text)
        return text.lower() if ignore_case else text

    return {"exact_match": float(plain(predictions[0]) == plain(references[0]))}


@pytest.fixture(autouse=True)
def harness(monkeypatch):
    if INSTALLED:
        return
    for name, held in (("api.metrics", exact_match), ("filters.extraction", RegexFilter)):
        module = ModuleType(f"lm_eval.{name}")
        setattr(module, "exact_match_hf_evaluate" if held is exact_match else "RegexFilter", held)
        for parent in ("lm_eval", f"lm_eval.{name.split('.')[0]}"):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, module.__name__, module)


def row(text, gold="5", finish="stop"):
    return {"problem": "What is 2 + 3?", "text": text, "gold": gold, "finish": finish}


def one(*arguments, **more):
    return agreement.graded([row(*arguments, **more)])[0]


def test_every_way_reads_what_it_should():
    found = one("2 + 3 = 5\n#### 5")["graded"]
    assert found["hash"] == found["strict-match"] == ("5", True)
    assert found["last-number"] == found["flexible-extract"] == ("5", True)
    assert found["boxed"] == (None, False)
    found = one("I say \\boxed{6}.")["graded"]
    assert found["boxed"] == ("6", False) and found["strict-match"] == (None, False)
    found = one("The answer is 1,005.", "1005")["graded"]
    assert found["phrase"][1] and found["flexible-extract"][1] and found["math-verify"][1]
    assert one("The answer is 5.", "5 (apples)")["graded"]["phrase"][1]  # the unit of a gold answer is left out


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "finish", "ours", "theirs", "why"),
    [
        ("We add 2 and 3.", "stop", "phrase", "flexible-extract", "phrase finds no answer"),
        ("We add 2 and 3", "length", "phrase", "flexible-extract", "of a text that was cut off"),
        ("The answer is five.", "stop", "phrase", "flexible-extract", "flexible-extract finds nothing"),
        ("The answer is five. There were 12.", "stop", "phrase", "flexible-extract", "reads words"),
        ("The answer is 5 apples. Then 7 are left.", "stop", "phrase", "flexible-extract", "phrase reads"),
    ],
)
def test_the_cause_of_a_difference(text, finish, ours, theirs, why):
    found = one(text, finish=finish)
    assert not agreement.same(found, ours, theirs)
    assert why in agreement.cause(found, ours, theirs), found["graded"]


def test_two_writings_of_a_number_are_the_same():
    graded = {"phrase": ("1,000", True), "flexible-extract": ("1000.", True), "hash": (None, False)}
    assert agreement.same({"graded": graded}, "phrase", "flexible-extract")
    assert not agreement.same({"graded": graded}, "phrase", "hash")


def test_the_table_that_is_printed(tmp_path, capsys):
    rows = [row("#### 5"), row("The answer is 6."), row("none"), row("")]
    (tmp_path / "suite-gsm8k.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    path = list(sys.path)
    agreement.main(["nowhere", str(tmp_path / "suite-gsm8k.jsonl")])
    sys.path[:] = path
    told = capsys.readouterr().out
    assert told.startswith("3 answers, 0 of them cut off")  # a row without a text is none
    assert re.search(r"hash +reads +1, right +1", told)
    assert "hash and strict-match: read the same in 3 of 3; other verdicts: 0" in told
