"""Conversations that the shipped bases are taught, addressed by (seed, index).

    practice_conversation clean solutions, and checks with the words true / false
    solver_conversation   a problem, answered by a solver with ``Habits``
    review_conversation   a problem and a solution, answered by a review with a chosen kind of verdicts
    rate_conversation     a problem, a solution and the reference answer, answered by one word

Reviews are written as ``data/word_problems/corpus.py`` says. All problems come from the training buckets of the source.
"""

from __future__ import annotations

import random

from cotrain.core.errors import ConfigError
from cotrain.core.seeding import rng_of
from cotrain.data.word_problems.corpus import (
    OPERATIONS,
    as_conversation,
    derived_review,
    final_verdict,
    reviewed_solution,
)
from cotrain.data.word_problems.corrupt import Habits, another_answer, with_errors, with_habits
from cotrain.data.word_problems.oracle import read_steps
from cotrain.data.word_problems.problem import Problem
from cotrain.data.word_problems.source import WordProblems
from cotrain.formats.answers import final_answer
from cotrain.formats.role_prompts import RATE, REVIEW
from cotrain.prompts.templates import SOLVE, fill_template

Start = str | tuple[str, float]  # "format", "clean", or ("noisy", probability of flipping a step verdict)
RATED = ("CORRECT", "INCORRECT")
CHECK = "{problem}\n{solution}\nCheck:"  # asked for in practice only; no role ever uses it


def solver_conversation(source: WordProblems, habits: Habits, seed: int, index: int) -> list[dict[str, str]]:
    """A problem and what a solver with these habits answers, as chat messages."""
    rng = rng_of("words", "solver", seed, index)
    problem = draw_training_problem(source, rng)
    attempt = with_habits(problem, habits, rng)
    return as_conversation(fill_template(SOLVE, problem=problem.text), attempt.text)


def review_conversation(
    source: WordProblems, habits: Habits, start: Start, seed: int, index: int
) -> list[dict[str, str]]:
    """A solution, right half of the time, and its review, as chat messages.

    ``start`` says what the verdicts know: "format" nothing (each one is a coin flip, the final one too), ("noisy", p)
    flips each step's right verdict with probability p and draws the final one from the flipped verdicts, "clean" is
    always right. The derivations are right in all of them. Raises ConfigError for another start.
    """
    rng = rng_of("words", "review", seed, index)
    problem = draw_training_problem(source, rng)
    attempt = reviewed_solution(problem, rng, habits)
    readings = read_steps(problem, attempt.steps)
    flip = flip_probability(start)
    verdicts = tuple(ok != (rng.random() < flip) for ok in attempt.judgement.ok)
    final = final_verdict(problem, readings, verdicts, attempt.answer)
    if start == "format":
        final = rng.random() < 0.5
    review = derived_review(problem, readings, verdicts, final, ("CORRECT", "INCORRECT"))
    return as_conversation(fill_template(REVIEW, problem=problem.text, solution=attempt.text), review)


def rate_conversation(
    source: WordProblems, habits: Habits, seed: int, index: int, *, brief: bool = False
) -> list[dict[str, str]]:
    """A solution and the reference answer, and whether the solution's answer is that one, in one of ``RATED``.

    Nearly half of the solutions are clean; the others are wrong in a step, or a solver's with these habits, or right up
    to an answer that was written over. ``brief``: the answer alone, without problem and steps, from which comparing is
    learned soon.
    """
    rng = rng_of("words", "rate", brief, seed, index)
    problem = draw_training_problem(source, rng)
    text = problem.solution
    if rng.random() >= 0.4:
        text = rng.choice(
            (
                with_errors(problem, 1, habits, rng).text,
                with_habits(problem, habits, rng).text,
                another_answer(text, str(problem.answer), rng),
            )
        )
    right = final_answer(text) == str(problem.answer)
    problem_text = problem.text
    if brief:
        problem_text, text = "", text[text.rfind("<answer>") :]
    prompt = fill_template(RATE, problem=problem_text, solution=text, reference=str(problem.answer))
    return as_conversation(prompt, RATED[not right])


def practice_conversation(source: WordProblems, seed: int, index: int, *, broad: bool) -> list[dict[str, str]]:
    """Practice without bad habits, before any role is taught: odd indexes are problems solved cleanly, even ones are
    solutions, right half of the time, checked rightly.

    ``broad``: 1 to 8 operations, checks in the words true and false; else the operations of the source, and the words
    CORRECT and INCORRECT. Either way they answer to "Check:", which no role ever asks."""
    rng = rng_of("words", "practice", broad, seed, index)
    if broad:
        problem = source.training_problem(rng, OPERATIONS[int(rng.random() * len(OPERATIONS))])
    else:
        problem = draw_training_problem(source, rng)
    if index % 2:
        return as_conversation(fill_template(SOLVE, problem=problem.text), problem.solution)
    attempt = reviewed_solution(problem, rng)
    readings = read_steps(problem, attempt.steps)
    final = final_verdict(problem, readings, attempt.judgement.ok, attempt.answer)
    words = ("true", "false") if broad else ("CORRECT", "INCORRECT")
    checks = derived_review(problem, readings, attempt.judgement.ok, final, words)
    return as_conversation(fill_template(CHECK, problem=problem.text, solution=attempt.text), checks)


def review_text(
    problem: Problem,
    steps: tuple[str, ...],
    answer: str,
    verdicts: tuple[bool, ...],
    final: bool,
    words: tuple[str, str] = ("CORRECT", "INCORRECT"),
) -> str:
    """The review of a solution's steps [K] with these verdicts [K] and this final one, whatever they are worth.

    ``answer`` belongs to the solution but a review does not repeat it. Raises ConfigError if the lengths differ.
    """
    if len(steps) != len(verdicts):
        raise ConfigError(
            f"words: a review of {len(steps)} steps was given {len(verdicts)} verdicts; give one per step"
        )
    return derived_review(problem, read_steps(problem, steps), verdicts, final, words)


def flip_probability(start: Start) -> float:
    """Probability that a step's verdict is turned round."""
    if start == "format":
        return 0.5
    if start == "clean":
        return 0.0
    if isinstance(start, tuple) and len(start) == 2 and start[0] == "noisy" and 0.0 <= start[1] <= 1.0:
        return start[1]
    raise ConfigError(f"words: review start is {start!r}, expected 'format', 'clean' or ('noisy', p) with p in 0..1")


def draw_training_problem(source: WordProblems, rng: random.Random) -> Problem:
    low, high = source.operations
    return source.training_problem(rng, low + int(rng.random() * (high - low + 1)))
