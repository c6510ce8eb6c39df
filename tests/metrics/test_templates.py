"""Problems of one template are one observation."""

import pytest

from cotrain.metrics.suites import GREEDY_SAMPLE, solver_scores
from cotrain.metrics.templates import question_templates, template_of

ONE = "Joan has 9 blue balloons and she loses 2 of them. How many has she now?"
SAME = "Tom has 14 blue balloons and he loses five of them. How many has he now?"
OTHER = "Tom has 14 blue balloons and he finds five of them. How many has he now?"


def test_numbers_names_and_pronouns_make_no_other_template():
    assert template_of(ONE) == template_of(SAME) != template_of(OTHER)
    assert template_of("What is 3 + 4?") != template_of("What is 3 + 5?")  # too short to be a template


def test_too_few_templates_are_counted_as_problems():
    assert question_templates([ONE, SAME]) == [ONE, SAME]
    others = [f"There are 3 {thing} in the garden and 4 more come. How many?" for thing in "abcdefghij"]
    assert len(set(question_templates([ONE, SAME, *others]))) == 11


def row(problem, right):
    return {"id": problem, "sample": GREEDY_SAMPLE, "problem": problem, "answer": "1", "correct": right, "score": None}


def test_a_score_of_near_identical_problems_has_the_interval_of_their_templates():
    things = ["ants", "bees", "cats", "dogs", "eels", "foxes", "geese", "hens", "ibises", "jays", "kites", "larks"]
    ask = "There are {} {} in the garden and 4 more of them come. How many are there?"
    rows = [row(ask.format(n, thing), i % 2 == 0) for i, thing in enumerate(things) for n in range(10)]
    clustered = solver_scores(rows, 0, key=str)["greedy"]
    twelve = solver_scores([row(f"{i}", i % 2 == 0) for i in range(12)], 0, key=str)["greedy"]
    assert clustered.value == twelve.value == 0.5 and clustered.n == 120
    assert clustered.low == pytest.approx(twelve.low, abs=0.05) and clustered.low < 0.3  # 120 singly: 0.41
