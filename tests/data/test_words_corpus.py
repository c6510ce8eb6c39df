"""Texts to pretrain on: their kinds, that their checks are true, and that they stay inside the training buckets."""

from __future__ import annotations

import operator
import re
import time

import pytest

from cotrain.data.word_problems import WordProblems, corpus
from cotrain.data.word_problems.oracle import read_steps
from cotrain.data.word_problems.source import text_bucket
from cotrain.formats.solutions import Solution, tagged_solution
from tests.helpers import FRUIT

SOURCE = WordProblems()
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return [corpus.pretraining_text(SOURCE, 0, i) for i in range(1500)]


def test_pretraining_kinds_and_shares(documents):
    solved = [d for d in documents if "\nSolve:" in d]
    checked = [d for d in documents if "\nCheck:" in d]
    bare = [d for d in documents if "\n" not in d]
    assert len(solved) + len(checked) + len(bare) == len(documents)
    assert 0.41 < len(solved) / len(documents) < 0.49 and 0.41 < len(checked) / len(documents) < 0.49
    true = [d for d in checked if d.endswith("<final>true</final>")]
    assert all(d in true or d.endswith("<final>false</final>") for d in checked)
    assert 0.4 < len(true) / len(checked) < 0.6
    assert all("false</step>" not in d for d in true)
    assert not any(word in d for d in documents for word in ("CORRECT", "Review:"))
    assert {d.count("<step>") for d in solved} == set(range(1, 9))
    assert all(isinstance(tagged_solution(d.partition("Solve:")[2]), Solution) for d in solved)


def test_pretraining_problems_are_from_the_training_buckets(documents):
    assert all(text_bucket(d.partition("\n")[0]) < 90 for d in documents if "\n" in d)


def test_checks_agree_with_the_arithmetic_in_them(documents):
    """An independent check: what was worked out is right, and a claim is called true when it says the same."""
    seen = unneeded = 0
    for document in documents:
        for numbers, claim, word in re.findall(r"=([^=|]+=-?\d+)\|(-?\d+) (true|false)</step>", document):
            left, sign, right, result = re.fullmatch(r"(-?\d+)([-+*])(-?\d+)=(-?\d+)", numbers).groups()
            assert OPERATORS[sign](int(left), int(right)) == int(result)
            assert word == "false" or result == claim
            unneeded += word == "false" and result == claim  # a right result that the question has no use for
            seen += 1
    assert seen > 2000 and unneeded < seen / 500


@pytest.mark.parametrize("modulus", [None, 10])
def test_bare_arithmetic_is_truly_true_and_false(modulus: int | None):
    source = WordProblems(modulus=modulus)
    bare = [d for i in range(150) if "\n" not in (d := corpus.pretraining_text(source, 1, i))]
    assert bare
    words = []
    for document in bare:
        statements = re.findall(r"(-?\d+)([-+*])(\d+)=(-?\d+) (true|false)", document)
        assert " ".join(f"{a}{o}{b}={c} {w}" for a, o, b, c, w in statements) == document
        for a, sign, b, c, word in statements:
            value = OPERATORS[sign](int(a), int(b))
            assert ((value if modulus is None else value % modulus) == int(c)) == (word == "true")
            words.append(word)
    assert 0.4 < words.count("true") / len(words) < 0.6


def test_texts_are_addressed(documents):
    assert corpus.pretraining_text(SOURCE, 0, 5) == documents[5] != corpus.pretraining_text(SOURCE, 1, 5)
    assert len(set(documents)) == len(documents)


def test_the_final_verdict_wants_the_quantity_that_was_asked_for():
    steps = (" pears= apples+4=12+4=16 pears",)
    readings = read_steps(FRUIT, steps)
    assert corpus.final_verdict(FRUIT, readings, (True,), "16") is False  # right as far as it goes
    done = read_steps(FRUIT, FRUIT.steps)
    assert corpus.final_verdict(FRUIT, done, (True, True), "4") is True
    assert corpus.final_verdict(FRUIT, done, (True, True), "5") is False
    assert corpus.final_verdict(FRUIT, done, (False, True), "4") is False
    assert corpus.final_verdict(FRUIT, (), (), "4") is False


def test_speed():
    def rate() -> float:
        start = time.process_time()
        for i in range(400):
            corpus.pretraining_text(SOURCE, 2, i)
        return 400 / (time.process_time() - start)

    assert any(rate() > 1500 for _ in range(4))  # the core may be shared
