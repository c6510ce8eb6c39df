"""Scores and facts in texts that were written to cost time: linear, and within a length."""

import time

from cotrain.core.types import ParseFailure
from cotrain.data.word_problems.reader import facts_in
from cotrain.formats.solutions import MAX_CHARS
from cotrain.recipes.mae.evolve import parse_score


def spent(function, *given):
    began = time.process_time()
    function(*given)
    return time.process_time() - began


def test_a_score_is_read_in_linear_time():
    assert parse_score("<score>3</score> no, <score> 10 </score>", {}).score == 1.0
    assert parse_score("<score>1<score>2</score>", {}).reason == "bad score"
    assert parse_score("<score>" * 14_000, {}) == ParseFailure(reason="no score")
    assert parse_score("x" * (MAX_CHARS + 1), {}) == ParseFailure(reason="too long")
    assert min(spent(parse_score, "<score>" * 14_000, {}) for _ in range(3)) < 0.2


def test_facts_are_read_in_linear_time():
    assert facts_in("There is nothing here. And no end") == ()
    assert min(spent(facts_in, "a" * 100_000) for _ in range(3)) < 0.5
