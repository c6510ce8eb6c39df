"""Corrupted solutions: the errors asked for, judged by the oracle, and consistent after the error."""

from __future__ import annotations

from collections import Counter

import pytest

from cotrain.core.seeding import rng_of
from cotrain.core.types import Task
from cotrain.data.word_problems import WordProblems
from cotrain.data.word_problems.corrupt import (
    HABITS,
    Habits,
    another_answer,
    clean_attempt,
    slipped_number,
    triggered_habits,
    with_errors,
    with_habits,
)
from cotrain.data.word_problems.oracle import grade_steps, parse_step
from cotrain.data.word_problems.problem import Fact, Problem, assemble_problem
from cotrain.formats.solutions import Solution, tagged_solution, write_solution
from cotrain.grading.pool import AnswerGrader
from tests.sentences import refuses

SOURCE = WordProblems()
NONE = Habits(random=0.0, systematic=0.0)


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [SOURCE.problem("train", i) for i in range(400)]


def small(family: str = "plain") -> Problem:
    facts = (
        Fact(target="apples", kind="given", right=17),
        Fact(target="pears", kind="minus", left="apples", right=4),
        Fact(target="plums", kind="sum", left="pears", right="apples"),
    )
    return assemble_problem(facts, "plums", family=family)


def test_without_errors_it_is_the_exact_solution(problems):
    for i, problem in enumerate(problems[:50]):
        attempt = with_habits(problem, NONE, rng_of(i))
        assert attempt == clean_attempt(problem)
        assert attempt.text == problem.solution
        assert grade_steps(problem, attempt.steps) == attempt.judgement


def test_the_habits_by_hand():
    always = Habits(random=0.0, systematic=1.0)
    wrong = with_habits(small(), always, rng_of(0))
    assert wrong.steps == (
        " pears= apples+4=17+4=21 pears",
        " plums= pears+ apples=21+17=38 plums",
    )  # 1 + 7 carries nothing
    assert wrong.judgement.reasons == ("relation", "") and wrong.answer == "38"
    other = with_habits(small("survey"), always, rng_of(0))
    assert other.steps == (
        " pears= apples-4=17-4=13 pears",
        " plums= pears+ apples=13+17=20 plums",
    )  # 30 without its carry
    assert other.judgement.reasons == ("", "arithmetic") and other.answer == "20"


def test_the_habit_of_every_step_by_hand():
    always = Habits(random=0.0, systematic=1.0, kinds=("opposite",))
    facts = (
        Fact(target="apples", kind="given", right=17),
        Fact(target="pears", kind="plus", left="apples", right=4),
        Fact(target="plums", kind="times", left="pears", right=3),
        Fact(target="figs", kind="sum", left="plums", right="apples"),
    )
    wrong = with_habits(assemble_problem(facts, "figs", family="plain"), always, rng_of(0))
    assert wrong.steps == (
        " pears= apples-4=17-4=13 pears",
        " plums= pears+3=13+3=16 plums",
        " figs= plums- apples=16-17=-1 figs",
    )
    assert wrong.judgement.reasons == ("relation",) * 3 and wrong.answer == "-1"


def test_triggers():
    two = ("carry", "fewer")
    plus = Fact(target="a", kind="plus", left="b", right=4)
    assert triggered_habits(small(), plus, 16, 4, two) == ("carry",)
    assert triggered_habits(small(), plus, 15, 4, two) == ()
    assert triggered_habits(small(), plus, -6, 4, two) == ()
    minus = Fact(target="a", kind="minus", left="b", right=4)
    assert triggered_habits(small(), minus, 16, 4, two) == ("fewer",)
    assert triggered_habits(small("number"), minus, 16, 4, two) == ()

    assert triggered_habits(small(), plus, 16, 4, HABITS) == ("carry", "opposite")
    assert triggered_habits(small(), minus, 16, 4, HABITS) == ("fewer", "opposite")
    assert triggered_habits(small(), plus, 16, 0, HABITS) == ()  # 16 - 0 is 16 + 0
    times = Fact(target="a", kind="times", left="b", right=2)
    assert triggered_habits(small(), times, 3, 2, HABITS) == ("opposite",)
    assert triggered_habits(small(), times, 2, 2, HABITS) == ()  # 2 + 2 is 2 · 2


@pytest.mark.whole
def test_corrupted_solutions_parse_and_their_answer_is_the_last_result(problems):
    habits = Habits(random=0.5)
    for i, problem in enumerate(problems):
        attempt = with_habits(problem, habits, rng_of("habits", i))
        parsed = tagged_solution(attempt.text)
        assert isinstance(parsed, Solution) and parsed.format_score == 1.0
        assert tuple(span.text for span in parsed.steps) == attempt.steps
        steps = [parse_step(step) for step in attempt.steps]
        assert None not in steps and str(steps[-1].result) == attempt.answer
        assert grade_steps(problem, attempt.steps) == attempt.judgement


def test_after_the_error_everything_is_consistent(problems):
    slips = Habits(premise=0.0, relation=0.0, structure=0.0, systematic=0.0)
    for i, problem in enumerate(problems):
        attempt = with_errors(problem, 1, slips, rng_of("one", i))
        assert sorted(attempt.judgement.reasons) == [""] * (len(attempt.steps) - 1) + ["arithmetic"]


@pytest.mark.whole
def test_each_kind_of_error_gets_its_reason(problems):
    for share, reason in (("premise", "premise"), ("relation", "relation")):
        habits = Habits(**{"systematic": 0.0, "premise": 0.0, "relation": 0.0, "structure": 0.0} | {share: 1.0})
        seen = Counter(
            r for i, p in enumerate(problems) for r in with_errors(p, 1, habits, rng_of(i)).judgement.reasons
        )
        assert set(seen) <= {"", reason, "arithmetic"}  # a slip where the kind would change nothing
        assert seen[reason] > 10 * seen["arithmetic"]
    structure = Habits(systematic=0.0, premise=0.0, relation=0.0, structure=1.0)
    seen = Counter(r for i, p in enumerate(problems) for r in with_errors(p, 1, structure, rng_of(i)).judgement.reasons)
    assert {"unneeded", "repeated", "premise"} <= set(seen)


def test_errors_always_leave_the_solution_wrong(problems):
    for i, problem in enumerate(problems):
        attempt = with_errors(problem, 1 + i % 2, Habits(), rng_of("wrong", i))
        assert not all(attempt.judgement.ok) or attempt.answer != str(problem.answer)
    single = small()
    assert all(not all(with_errors(single, 5, Habits(), rng_of(i)).judgement.ok) for i in range(50))


@pytest.mark.whole
def test_some_wrong_solutions_have_the_right_answer():
    problems = [WordProblems(cancel=1.0, operations=(5, 6)).problem("train", i) for i in range(300)]
    attempts = [with_errors(p, 1, Habits(systematic=0.0), rng_of(i)) for i, p in enumerate(problems)]
    lucky = sum(a.answer == str(p.answer) for a, p in zip(attempts, problems, strict=True))
    assert lucky >= 20


def test_solver_is_right_between_a_quarter_and_a_half_of_the_time(problems):
    right = sum(
        with_habits(p, Habits(), rng_of("rate", i)).answer == str(p.answer) for i, p in enumerate(problems)
    ) / len(problems)
    assert 0.25 < right < 0.5


def test_modular_errors_stay_in_range():
    source = WordProblems(modulus=10)
    for i in range(150):
        problem = source.problem("train", i)
        attempt = with_errors(problem, 2, Habits(), rng_of(i))
        results = [parse_step(step).result for step in attempt.steps]
        assert all(0 <= result < 10 for result in results)


@pytest.mark.parametrize("value", [0, 7, 10, 42, 100, -15])
def test_a_slip_is_near_and_never_nothing(value: int):
    slips = {slipped_number(value, rng_of(value, i)) for i in range(200)}
    assert value not in slips
    assert {value + 1, value + 2, value + 10} <= slips
    assert value <= 0 or value - 1 in slips
    assert value < 0 or min(slips) >= 0
    swapped = {42: 24, -15: -51}.get(value)
    assert swapped is None or swapped in slips


def test_habits_are_checked():
    with refuses("E_CORRUPTION_SHARES"):
        Habits(premise=0.7, relation=0.7)
    with refuses("E_CORRUPTION_SHARES"):
        Habits(random=1.5)
    with refuses("E_UNKNOWN_HABIT: opposit | opposite"):
        Habits(kinds=("opposit",))


def test_an_answer_that_is_written_over_another_one_is_wrong():
    """A square root once ended in an error of ``re``, and 0.5 became 0.50."""
    answers = ("12", "0.5", "$2.50", "5.", "3/4", "x+1", "50%", "\\sqrt{2}", "\\frac{1}{2}", "\\pi", "yes")
    grader = AnswerGrader(workers=1)
    for gold in answers:
        task = Task(id="a/train/0", prompt="?", gold=gold, solution=None, difficulty=0.0, grader=grader)
        right = write_solution(["So it is."], gold)
        wrong = another_answer(right, gold, rng_of("another answer"))
        grades = [grader.grade(task, text).value for text in (right, wrong)]
        assert grades == [True, False], wrong
    grader.close()
