"""The lessons of the shipped base: solving problems, and checking solutions that have errors of skill.

    solve_practice    a problem, answered by its exact solution
    check_practice    a problem and a solution, right half of the time, answered by the true review of it

Nothing is noise: every reply is right. A model that was trained on these is wrong where it lacks skill, and so its
greedy answers are not much better than its sampled ones. Lengths rise with the index, short problems first, which a
small model needs in order to find out that a value must be looked up.

The errors to be found are those that such a model makes itself: mostly a wrong number in the place of a known one,
often copied from another quantity, sometimes a wrong relation or a slip in the arithmetic. All problems come from the
training buckets.
"""

from __future__ import annotations

import random

from cotrain.core.seeding import rng_of
from cotrain.data.word_problems.corpus import as_conversation, derived_review, final_verdict
from cotrain.data.word_problems.corrupt import Attempt, Habits, clean_attempt, with_errors
from cotrain.data.word_problems.oracle import read_steps
from cotrain.data.word_problems.problem import Problem
from cotrain.data.word_problems.source import WordProblems
from cotrain.formats.role_prompts import REVIEW
from cotrain.prompts.templates import SOLVE, fill_template

OF_SKILL = Habits(random=0.0, systematic=0.0, premise=0.55, relation=0.2, structure=0.05)  # the rest are slips
SWAPPED = Habits(random=0.0, systematic=0.0, premise=0.25, relation=0.1, structure=0.05, swap=0.5)  # the rest are slips
COUNTS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 3)  # number of errors in a wrong solution, each as likely

Conversation = list[dict[str, str]]


def solve_practice(source: WordProblems, stage: str, seed: int, index: int, rise: int = 0) -> Conversation:
    """A problem and its exact solution; ``stage`` names the draw, so that no two stages see the same problems."""
    rng = rng_of("words", stage, "solve", seed, index)
    problem = _practice_problem(source, rng, index, rise)
    return as_conversation(fill_template(SOLVE, problem=problem.text), problem.solution)


def check_practice(
    source: WordProblems, stage: str, seed: int, index: int, rise: int = 0, errors: Habits = OF_SKILL
) -> Conversation:
    """A problem, a solution that is right half of the time, and the true verdict on each step and on the answer."""
    rng = rng_of("words", stage, "check", seed, index)
    problem = _practice_problem(source, rng, index, rise)
    attempt = checked_solution(problem, rng, errors)
    readings = read_steps(problem, attempt.steps)
    right = attempt.judgement.ok
    final = final_verdict(problem, readings, right, attempt.answer)
    review = derived_review(problem, readings, right, final, ("CORRECT", "INCORRECT"))
    return as_conversation(fill_template(REVIEW, problem=problem.text, solution=attempt.text), review)


def checked_solution(problem: Problem, rng: random.Random, errors: Habits = OF_SKILL) -> Attempt:
    """A solution to be checked: right half of the time, else with one to three errors of skill."""
    is_right = rng.random() < 0.5
    if is_right:
        return clean_attempt(problem)
    return with_errors(problem, rng.choice(COUNTS), errors, rng)


def most_operations(source: WordProblems, index: int, rise: int) -> int:
    """Most steps of a problem at this index: the fewest and one, and one more after every ``rise`` indexes (0: all)."""
    low, high = source.operations
    if rise == 0:
        return high
    return min(high, low + 1 + index // rise)


def _practice_problem(source: WordProblems, rng: random.Random, index: int, rise: int) -> Problem:
    low, _ = source.operations
    high = most_operations(source, index, rise)
    operations = low + int(rng.random() * (high - low + 1))
    return source.training_problem(rng, operations)
