"""Reviews that teach a model to check its own solutions of GSM8K, written by a program.

    python benchmarks/gsm8k_reviews.py gsm8k/train.jsonl runs/gsm8k/own/suite-gsm8k.jsonl --out runs/gsm8k

The second file holds answers of the model itself at the temperature of the run, of `cotrain eval RUN --suite gsm8k`.
Written to --out: ``reviews.jsonl``, conversations, and ``check.txt``, how the verifier is asked. A review works each
step out and compares, in the words that ``--verdict words`` reads:

    Step 1: 48/2 = 24. Correct
    Step 2: 48+24 = 72, not 82. Incorrect
    Step 3: the answer is 72. Incorrect
    Verdict: incorrect

With ``--solve-first`` a review begins with a solution of its own, GSM8K's in training, and compares its answer with the
one to be judged: even exact computing orders few pairs, as most wrong answers have right equations that the problem
does not ask for.

A step is called wrong where an equation is (``gsm8k_equations.py``). If the answer is wrong though all equations up to
there are right, the first step whose value no step of GSM8K's own solution has is called wrong, and the review says
which equation comes next: "it should be 48+24 = 72". Right and wrong solutions are about as many; where the model has
fewer right ones, GSM8K's own join them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from gsm8k_equations import claimed_answer, equations_in, value_of
from gsm8k_lessons import conversation, read_problems, short_solution

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.input_files import parse_json
from cotrain.core.types import ParseFailure
from cotrain.formats.answers import free_solution
from cotrain.formats.free_verdicts import WORDS, free_review
from cotrain.formats.sanitize import without_verdicts
from cotrain.formats.solutions import Solution

Row = dict[str, Any]
CHECK = (
    'Check the solution of the problem. For each of its {count} steps write a line that begins with "Step 1:", work '
    'the step out yourself and end with Correct or Incorrect. At last write "Verdict: correct" or "Verdict: incorrect" '
    "for the answer.\n\nProblem: {problem}\n\nSolution: {solution}"
)
SOLVE_FIRST = CHECK.replace(
    "Check the solution of the problem. For each",
    "Check the solution of the problem. First solve the problem yourself in short steps, one line each. Then for each",
)
GOLD_EQUATION = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")


def gold_equations(answer: str) -> list[tuple[str, Fraction]]:
    """The equations of GSM8K's own solution in order: (expression, value)."""
    found = [(expression.strip(), value_of(expression.strip())) for expression, _ in GOLD_EQUATION.findall(answer)]
    return [(expression, value) for expression, value in found if value is not None]


def decimal(value: Fraction) -> str:
    return f"{round(float(value), 4):.12g}"


def review_of(steps: Sequence[str], right: bool, gold: str, *, solve_first: bool = False) -> str:
    """The review of a solution whose answer is right or not. ``gold``: GSM8K's own solution of the problem, which the
    review begins with and compares answers with where it is to ``solve_first``."""
    own = short_solution(gold)
    own_answer = own.rpartition("#### ")[2]
    expected = gold_equations(gold)
    known = {value for _, value in expected}
    reached: set[Fraction] = set()
    found_wrong = False
    lines = []
    for number, step in enumerate(steps, 1):
        answer = claimed_answer(step)
        equations = list(equations_in(step))
        slips = [equation for equation in equations if not equation.is_right]
        strays = bool(equations) and equations[-1].value not in known
        missing = [(one, value) for one, value in expected if value not in reached]
        if answer is not None:
            said, ok = f"the answer is {answer}", right
            if solve_first:
                said += f", mine is {own_answer}"
        elif slips:
            said, ok = f"{slips[0].expression} = {decimal(slips[0].value)}, not {slips[0].claimed}", False
        elif strays and missing and not right and not found_wrong:
            said, ok = f"it should be {missing[0][0]} = {decimal(missing[0][1])}", False
        elif equations:
            said, ok = ", ".join(f"{one.expression} = {decimal(one.value)}" for one in equations), True
        else:
            said, ok = "nothing to compute", True
        found_wrong = found_wrong or not ok
        reached |= {equation.value for equation in equations}
        lines.append(f"Step {number}: {said}. {'Correct' if ok else 'Incorrect'}")
    review = "\n".join([*lines, f"Verdict: {'correct' if right else 'incorrect'}"])
    return f"{own}\n\n{review}" if solve_first else review


def lesson_of(question: str, text: str, right: bool, gold: str, prompt: str) -> Row | None:
    """A conversation, asked as a run asks with the prompt; None for a solution that a run would not show."""
    solution = free_solution(text, "hash", "lines")
    if not isinstance(solution, Solution) or solution.tagged is None:
        return None
    steps = [step.text for step in solution.steps]
    review = review_of(steps, right, gold, solve_first=prompt == SOLVE_FIRST)
    if isinstance(free_review(review, WORDS, len(steps)), ParseFailure):
        return None
    shown = without_verdicts(solution.tagged, WORDS)
    asked = prompt.replace("{count}", str(len(steps))).replace("{problem}", question).replace("{solution}", shown)
    return conversation(asked, review)


def sampled_answers(file: Path) -> Iterator[Row]:
    """The rows of a suite that were sampled and graded. Raises DataError for another file."""
    try:
        rows = [parse_json(line) for line in file.read_text(encoding="utf-8").splitlines()]
        yield from (row for row in rows if row.get("sample", -1) >= 0 and row["correct"] is not None)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{file}: {type(error).__name__}: {error}; expected suite-gsm8k.jsonl") from error


def make_lessons(gold: dict[str, str], files: Sequence[Path], most: int, prompt: str = CHECK) -> list[Row]:
    """Reviews of as many right as wrong solutions, at most so many, in a drawn order. Raises DataError for a problem
    that is not in GSM8K's file."""
    draw = Random(0)
    made: dict[bool, list[Row]] = {True: [], False: []}
    seen = set[tuple[str, str]]()
    questions = []
    for file in files:
        for row in sampled_answers(file):
            question, text, right = row["problem"], row["text"], bool(row["correct"])
            if question not in gold:
                raise DataError(f"{file}: {question!r:.60} is no problem of the first file")
            questions.append(question)
            lesson = lesson_of(question, text, right, gold[question], prompt)
            if lesson is not None and (question, text) not in seen:
                seen.add((question, text))
                made[right].append(lesson)
    for lessons in made.values():
        draw.shuffle(lessons)
    each = min(most // 2, len(made[False]))
    right, wrong = made[True][:each], made[False][:each]
    others = [lesson_of(one, short_solution(gold[one]), True, gold[one], prompt) for one in dict.fromkeys(questions)]
    right += [lesson for lesson in others if lesson is not None][: each - len(right)]
    print(f"{len(right)} reviews of right solutions, {len(made[True])} of them the model's; {len(wrong)} of wrong ones")
    lessons = right + wrong
    draw.shuffle(lessons)
    return lessons


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gsm8k", type=Path, help="train.jsonl of GSM8K")
    parser.add_argument("samples", type=Path, nargs="+", help="suite-gsm8k.jsonl of the model")
    parser.add_argument("--most", type=int, default=384, help="reviews")
    parser.add_argument("--solve-first", action="store_true", help="a review begins with a solution of its own")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    prompt = SOLVE_FIRST if given.solve_first else CHECK
    try:
        gold = {row["question"]: row["answer"] for row in read_problems(given.gsm8k)}
        lessons = make_lessons(gold, given.samples, given.most, prompt)
    except CotrainError as error:
        parser.error(str(error))
    given.out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in lessons)
    (given.out / "reviews.jsonl").write_text(text, encoding="utf-8")
    (given.out / "check.txt").write_text(prompt, encoding="utf-8")


if __name__ == "__main__":
    main()
