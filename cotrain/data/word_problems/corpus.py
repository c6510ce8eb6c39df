"""Raw text to pretrain on, addressed by (seed, index): nothing is stored, nothing repeats by accident.

A document is a solved problem, a solution that is checked with the words true and false, or bare arithmetic. A review
works out every step again: its own relation from the problem, values from the problem or from the solution's
earlier steps as claimed there, then ``|``, the claimed result and the verdict:

    <step> pears= apples+4=12+4=16|16 CORRECT</step> ... <final>CORRECT</final>

For a wrong relation it works out the right one. It leaves the derivation empty for a malformed or repeated step and
for a target that the problem does not derive, stops after the relation where an operand was never worked out, and
treats an unneeded step like any other. All problems come from the training buckets of the source.
"""

from __future__ import annotations

import random

from cotrain.core.seeding import rng_of
from cotrain.data.word_problems.corrupt import Attempt, Habits, clean_attempt, slipped_number, with_errors
from cotrain.data.word_problems.oracle import StepReading, parse_integer, read_steps
from cotrain.data.word_problems.problem import Problem, compute
from cotrain.data.word_problems.source import WordProblems

OPERATION_WEIGHTS = (6, 12, 17, 18, 17, 14, 9, 7)  # weights of 1..8 operations in pretraining text
SOLVED = 0.45  # share of pretraining documents that are solved problems
CHECKED = 0.45  # share that are reviewed solutions; the rest is bare arithmetic
FACTS = (20, 32)  # statements in a document of bare arithmetic
ERRORS = Habits(systematic=0.35, premise=0.3, relation=0.3, structure=0.05)  # habits of solutions made to be reviewed

OPERATIONS = tuple(n for n, weight in enumerate(OPERATION_WEIGHTS, start=1) for _ in range(weight))


def pretraining_text(source: WordProblems, seed: int, index: int) -> str:
    """One document for a base model: a solved problem, a checked solution, or bare arithmetic."""
    rng = rng_of("words", "pretraining", seed, index)
    kind = rng.random()
    if kind >= SOLVED + CHECKED:
        return arithmetic_text(rng, source.modulus)
    problem = source.training_problem(rng, OPERATIONS[int(rng.random() * len(OPERATIONS))])
    if kind < SOLVED:
        return f"{problem.text}\nSolve:{problem.solution}"
    attempt = reviewed_solution(problem, rng)
    readings = read_steps(problem, attempt.steps)
    final = final_verdict(problem, readings, attempt.judgement.ok, attempt.answer)
    checks = derived_review(problem, readings, attempt.judgement.ok, final, ("true", "false"))
    return f"{problem.text}\n{attempt.text}\nCheck:{checks}"


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
            operator = "*"
            right = 2 + int(rng.random() * 3)
        else:
            operator = "+" if draw < 0.6 else "-"
            value = rng.random()
            largest = top if rng.random() < 0.5 else min(top, 12)
            right = int(value * (largest + 1))
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
    """Return a reviewer's work on one step: `` pears= apples+4=12+4=16``, or less where a value is not known."""
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


def derived_review(
    problem: Problem, readings: tuple[StepReading, ...], verdicts: tuple[bool, ...], final: bool, words: tuple[str, str]
) -> str:
    yes, no = words
    text = ""
    for reading, verdict in zip(readings, verdicts, strict=True):
        word = yes if verdict else no
        text += f"<step>{derivation(problem, reading)}|{reading.claim} {word}</step>"
    return text + f"<final>{yes if final else no}</final>"


def as_conversation(user: str, assistant: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
