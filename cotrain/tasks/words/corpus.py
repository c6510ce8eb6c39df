"""Texts to train the embedded models on, addressed by (seed, index): nothing is stored, nothing repeats by accident.

    pretraining_text      raw text: problems solved, solutions checked with the words true / false, bare arithmetic
    practice_conversation chat: clean solutions, and checks with the words true / false
    solver_conversation   chat: a problem, answered by a solver with ``Habits``
    review_conversation   chat: a problem and a solution, answered by a review with a chosen kind of verdicts
    rate_conversation     chat: a problem, a solution and the reference answer, answered by one word

A review works out every step again: its own relation from the problem, values from the problem or from the solution's
earlier steps as claimed there, then ``|``, the claimed result and the verdict:

    <step> pears= apples+4=12+4=16|16 CORRECT</step> ... <final>CORRECT</final>

For a wrong relation it works out the right one. It leaves the derivation empty for a malformed or repeated step and
for a target that the problem does not derive, stops after the relation where an operand was never worked out, and
treats an unneeded step like any other. All problems come from the training buckets of the source.
"""

from __future__ import annotations

import random

from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.tasks.words.corrupt import (
    Attempt,
    Habits,
    another_answer,
    clean_attempt,
    slipped_number,
    with_errors,
    with_habits,
)
from cotrain.tasks.words.oracle import StepReading, parse_integer, read_steps
from cotrain.tasks.words.problem import Problem, compute
from cotrain.tasks.words.source import WordProblems
from cotrain.text.answers import final_answer
from cotrain.text.prompts import SOLVE, fill_template
from cotrain.text.role_prompts import RATE, REVIEW

Start = str | tuple[str, float]  # "format", "clean", or ("noisy", probability of flipping a step verdict)
OPERATION_WEIGHTS = (6, 12, 17, 18, 17, 14, 9, 7)  # of 1..8 operations in pretraining text
SOLVED, CHECKED = 0.45, 0.45  # shares of pretraining documents; the rest is bare arithmetic
FACTS = (20, 32)  # statements in a document of bare arithmetic
ERRORS = Habits(systematic=0.35, premise=0.3, relation=0.3, structure=0.05)  # of solutions made to be reviewed

RATED = ("CORRECT", "INCORRECT")
CHECK = "{problem}\n{solution}\nCheck:"  # asked for in practice only; no role ever uses it

_OPERATIONS = tuple(n for n, weight in enumerate(OPERATION_WEIGHTS, start=1) for _ in range(weight))


def pretraining_text(source: WordProblems, seed: int, index: int) -> str:
    """One document for a base model: a solved problem, a checked solution, or bare arithmetic."""
    rng = rng_of("words", "pretraining", seed, index)
    kind = rng.random()
    if kind >= SOLVED + CHECKED:
        return arithmetic_text(rng, source.modulus)
    problem = source.training_problem(rng, _OPERATIONS[int(rng.random() * len(_OPERATIONS))])
    if kind < SOLVED:
        return f"{problem.text}\nSolve:{problem.solution}"
    attempt = reviewed_solution(problem, rng)
    readings = read_steps(problem, attempt.steps)
    final = final_verdict(problem, readings, attempt.judgement.ok, attempt.answer)
    checks = _write_review(problem, readings, attempt.judgement.ok, final, ("true", "false"))
    return f"{problem.text}\n{attempt.text}\nCheck:{checks}"


def solver_conversation(source: WordProblems, habits: Habits, seed: int, index: int) -> list[dict[str, str]]:
    """A problem and what a solver with these habits answers, as chat messages."""
    rng = rng_of("words", "solver", seed, index)
    problem = _training_problem(source, rng)
    attempt = with_habits(problem, habits, rng)
    return _as_conversation(fill_template(SOLVE, problem=problem.text), attempt.text)


def review_conversation(
    source: WordProblems, habits: Habits, start: Start, seed: int, index: int
) -> list[dict[str, str]]:
    """A solution, right half of the time, and its review, as chat messages.

    ``start`` says what the verdicts know: "format" nothing (each one is a coin flip, the final one too), ("noisy", p)
    flips each step's right verdict with probability p and draws the final one from the flipped verdicts, "clean" is
    always right. The derivations are right in all of them. Raises ConfigError for another start.
    """
    rng = rng_of("words", "review", seed, index)
    problem = _training_problem(source, rng)
    attempt = reviewed_solution(problem, rng, habits)
    readings = read_steps(problem, attempt.steps)
    flip = _flip_probability(start)
    verdicts = tuple(ok != (rng.random() < flip) for ok in attempt.judgement.ok)
    final = final_verdict(problem, readings, verdicts, attempt.answer)
    if start == "format":
        final = rng.random() < 0.5
    review = _write_review(problem, readings, verdicts, final, ("CORRECT", "INCORRECT"))
    return _as_conversation(fill_template(REVIEW, problem=problem.text, solution=attempt.text), review)


def rate_conversation(
    source: WordProblems, habits: Habits, seed: int, index: int, *, brief: bool = False
) -> list[dict[str, str]]:
    """A solution and the reference answer, and whether the solution's answer is that one, in one of ``RATED``.

    Nearly half of the solutions are clean; the others are wrong in a step, or a solver's with these habits, or right up
    to an answer that was written over. ``brief``: the answer alone, without problem and steps, from which comparing is
    learned soon.
    """
    rng = rng_of("words", "rate", brief, seed, index)
    problem = _training_problem(source, rng)
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
    return _as_conversation(prompt, RATED[not right])


def practice_conversation(source: WordProblems, seed: int, index: int, *, broad: bool) -> list[dict[str, str]]:
    """Practice without bad habits, before any role is taught: odd indexes are problems solved cleanly, even ones are
    solutions, right half of the time, checked rightly.

    ``broad``: 1 to 8 operations, checks in the words true and false; else the operations of the source, and the words
    CORRECT and INCORRECT. Either way they answer to "Check:", which no role ever asks."""
    rng = rng_of("words", "practice", broad, seed, index)
    if broad:
        problem = source.training_problem(rng, _OPERATIONS[int(rng.random() * len(_OPERATIONS))])
    else:
        problem = _training_problem(source, rng)
    if index % 2:
        return _as_conversation(fill_template(SOLVE, problem=problem.text), problem.solution)
    attempt = reviewed_solution(problem, rng)
    readings = read_steps(problem, attempt.steps)
    final = final_verdict(problem, readings, attempt.judgement.ok, attempt.answer)
    words = ("true", "false") if broad else ("CORRECT", "INCORRECT")
    checks = _write_review(problem, readings, attempt.judgement.ok, final, words)
    return _as_conversation(fill_template(CHECK, problem=problem.text, solution=attempt.text), checks)


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
    return _write_review(problem, read_steps(problem, steps), verdicts, final, words)


def final_verdict(problem: Problem, readings: tuple[StepReading, ...], verdicts: tuple[bool, ...], answer: str) -> bool:
    """Every step is called right, and the answer is what the last one claims for the quantity asked for."""
    step = readings[-1].step if readings else None
    if step is None or step.target != problem.question:
        return False
    return all(verdicts) and parse_integer(answer) == step.result


def reviewed_solution(problem: Problem, rng: random.Random, habits: Habits = ERRORS) -> Attempt:
    """A solution to be reviewed: right half of the time, else with errors in one or two steps."""
    if rng.random() < 0.5:
        return clean_attempt(problem)
    return with_errors(problem, 1 if rng.random() < 0.6 else 2, habits, rng)


def arithmetic_text(rng: random.Random, modulus: int | None = None) -> str:
    """``12+4=16 true 7*3=20 false ...``: about half of the results are wrong."""
    statements = []
    for _ in range(FACTS[0] + int(rng.random() * (FACTS[1] - FACTS[0] + 1))):
        draw = rng.random()
        top = 99 if modulus is None else modulus - 1
        left = int(rng.random() * (top + 1))
        if draw < 0.25:  # as steps with a factor have them
            operator, right = "*", 2 + int(rng.random() * 3)
        else:
            operator = "+" if draw < 0.6 else "-"
            right = int(rng.random() * ((top if rng.random() < 0.5 else min(top, 12)) + 1))
            if operator == "-" and modulus is None and left < right and rng.random() < 0.9:
                left, right = right, left  # negative results are rare
        result = right_result = compute(operator, left, right, modulus)
        if rng.random() < 0.5:
            if modulus is not None:
                result = (result + 1 + int(rng.random() * (modulus - 1))) % modulus
            elif operator == "+" and left % 10 + right % 10 >= 10 and rng.random() < 0.3:
                result -= 10
            else:
                result = slipped_number(result, rng)
        word = "true" if result == right_result else "false"
        statements.append(f"{left}{operator}{right}={result} {word}")
    return " ".join(statements)


def derivation(problem: Problem, reading: StepReading) -> str:
    """What a reviewer works out for one step: `` pears= apples+4=12+4=16``, or less where that cannot be done."""
    step = reading.step
    fact = None if step is None else problem.relations.get(step.target)
    if fact is None or reading.reason == "repeated":
        return ""
    left = reading.known.get(fact.left)
    right = fact.right if isinstance(fact.right, int) else reading.known.get(fact.right)
    if left is None or right is None:
        return f" {fact.target}={fact.expression}"
    result = compute(fact.operator, left, right, problem.modulus)
    return f" {fact.target}={fact.expression}={left}{fact.operator}{right}={result}"


def _write_review(
    problem: Problem, readings: tuple[StepReading, ...], verdicts: tuple[bool, ...], final: bool, words: tuple[str, str]
) -> str:
    yes, no = words
    blocks = [
        f"<step>{derivation(problem, reading)}|{reading.claim} {yes if verdict else no}</step>"
        for reading, verdict in zip(readings, verdicts, strict=True)
    ]
    return "".join(blocks) + f"<final>{yes if final else no}</final>"


def _flip_probability(start: Start) -> float:
    """Probability that a step's verdict is turned round."""
    if start == "format":
        return 0.5
    if start == "clean":
        return 0.0
    if isinstance(start, tuple) and len(start) == 2 and start[0] == "noisy" and 0.0 <= start[1] <= 1.0:
        return start[1]
    raise ConfigError(f"words: review start is {start!r}, expected 'format', 'clean' or ('noisy', p) with p in 0..1")


def _training_problem(source: WordProblems, rng: random.Random) -> Problem:
    low, high = source.operations
    return source.training_problem(rng, low + int(rng.random() * (high - low + 1)))


def _as_conversation(user: str, assistant: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
