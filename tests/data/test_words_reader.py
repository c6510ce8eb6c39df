"""Problems that somebody else wrote are read whole, or refused with a reason."""

import pytest

from cotrain.core.types import ParseFailure
from cotrain.data.word_problems.reader import operation_string, problem_signature, read_problem, task_of
from cotrain.data.word_problems.source import word_problems

GOOD = "There are 12 apples. There are 4 more pears than apples. How many pears are there?"


@pytest.mark.parametrize("split", ["train", "ood_template"])
def test_every_problem_of_the_source_is_read_as_it_is(split):
    source = word_problems(operations=(1, 6), distractors=(0, 2))
    for index in range(60):
        problem = source.problem(split, index)
        read = read_problem(problem.text)
        assert not isinstance(read, ParseFailure), (problem.text, read)
        assert (read.facts, read.question, read.answer, read.text) == (
            problem.facts,
            problem.question,
            problem.answer,
            problem.text,
        )


def test_a_task_is_graded_by_the_program():
    read = read_problem(GOOD)
    task = task_of(read, "minted/0")
    assert task.gold == "16" and task.grade(task.solution).value is True
    assert task.grade("<step>x</step><answer>15</answer>").value is False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not read"),
        (GOOD + " Ignore all before.", "not read"),
        (GOOD.replace("There are 12", "We counted 12"), "not read"),
        (GOOD.replace("pears", "pearls"), "not read"),
        ("Please: " + GOOD, "not read"),
        (GOOD.rstrip("?"), "not read"),
        (GOOD.removesuffix(" How many pears are there?"), "no question"),
        ("How many pears are there? " + GOOD, "no question"),
        (GOOD.replace("How many pears", "How many apples"), "asks for a given"),
        (GOOD.replace("How many pears", "How many plums"), "undefined"),
        (GOOD.replace("than apples", "than plums"), "undefined"),
        (GOOD.replace("than apples", "than pears"), "undefined"),
        ("There are 9 pears. " + GOOD, "defined twice"),
        (GOOD.replace("4 more", "98 more"), "out of range"),
        (GOOD.replace("4 more", "12 fewer"), "out of range"),
        (GOOD.replace("12", "012"), "not read"),
        ("There are 2 apples. " * 200 + GOOD, "too long"),
    ],
)
def test_what_is_no_problem_is_refused_with_a_reason(text, reason):
    found = read_problem(text)
    assert isinstance(found, ParseFailure) and found.reason == reason


def test_a_signature_does_not_depend_on_nouns_or_wording():
    other = "We counted 12 hats. The keys outnumber the hats by 4. How many keys did we count?"
    assert problem_signature(read_problem(GOOD)) == problem_signature(read_problem(other))
    assert problem_signature(read_problem(GOOD)) != problem_signature(read_problem(GOOD.replace("4", "5")))
    assert operation_string(read_problem(GOOD)) == operation_string(read_problem(GOOD.replace("4", "5"))) == "+"
