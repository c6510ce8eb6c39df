"""What the base practises: right solutions and true reviews, short problems first."""

import random

from cotrain.data.word_problems.oracle import grade_steps, read_steps
from cotrain.data.word_problems.practice import (
    OF_SKILL,
    check_practice,
    checked_solution,
    most_operations,
    solve_practice,
)
from cotrain.data.word_problems.source import BUCKETS, study_problems, text_bucket
from cotrain.formats.role_replies import step_verdicts
from cotrain.formats.solutions import tagged_solution

SOURCE = study_problems((1, 5))


def problems(count):
    return [(SOURCE.training_problem(random.Random(i), 1 + i % 5), random.Random(f"of {i}")) for i in range(count)]


def test_lengths_rise_with_the_index():
    assert [most_operations(SOURCE, i, 10) for i in (0, 9, 10, 29, 30, 900)] == [2, 2, 3, 4, 5, 5]
    assert most_operations(SOURCE, 0, 0) == 5


def test_every_practised_solution_is_right_and_of_a_training_problem():
    for i in range(40):
        user, assistant = solve_practice(SOURCE, "practice", 1, i, rise=10)
        text = user["content"].removesuffix("\nSolve:")
        assert text_bucket(text) in BUCKETS["train"]
        steps = tagged_solution(assistant["content"]).steps
        assert 1 <= len(steps) <= most_operations(SOURCE, i, 10)


def test_verdicts_are_the_oracle_s():
    wrong = 0
    for problem, rng in problems(120):
        attempt = checked_solution(problem, rng)
        assert attempt.judgement == grade_steps(problem, attempt.steps)
        wrong += attempt.answer != str(problem.answer)
    assert 35 <= wrong <= 75  # half are right; where an error cancels the answer is right too


def test_reviews_say_of_every_step_whether_it_is_right():
    finals = []
    for i in range(60):
        user, assistant = check_practice(SOURCE, "settle", 2, i)
        shown = user["content"].removesuffix("\nReview:").rpartition("\n")[2]
        steps = tagged_solution(shown).steps
        review = step_verdicts(assistant["content"], len(steps))
        assert len(review.steps) == len(steps)
        finals.append(review.final)
        assert not review.final or all(review.steps)
    assert 15 <= sum(finals) <= 45


def test_most_errors_are_wrong_numbers():
    reasons: dict[str, int] = {}
    for problem, rng in problems(400):
        for reading in read_steps(problem, checked_solution(problem, rng).steps):
            if reading.reason:
                reasons[reading.reason] = reasons.get(reading.reason, 0) + 1
    assert reasons["premise"] > sum(reasons.values()) * 0.4 > reasons["arithmetic"]
    assert OF_SKILL.random == OF_SKILL.systematic == 0.0
