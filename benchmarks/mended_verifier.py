"""Reviews that show a verifier how it was fooled: solutions of a run of word problems, each with its true review.

    python benchmarks/mended_verifier.py runs/fooled --solutions 256 --practice 256 --out runs/mended/reviews.jsonl
    cotrain sft --data runs/mended/reviews.jsonl --model shipped-checker --out runs/mended/verifier

The solutions are drawn from those that can be read, as many from each step of a run as from any other. A program writes
their reviews (``data/word_problems/corpus.py``). Reviews of the practice of ``shipped-checker`` stand beside them, half
of them of right solutions, so that it forgets nothing. Without a run the practice stands alone, which is the control.

With ``--solve`` the lesson is for the generator: the problems of the same solutions, each with its right solution, and
no practice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.notes import ANSWER, PROBLEM, STEPS
from cotrain.core.seeding import rng_of
from cotrain.data.word_problems.corpus import as_conversation, derived_review, final_verdict
from cotrain.data.word_problems.oracle import read_steps
from cotrain.data.word_problems.practice import Conversation, check_practice
from cotrain.data.word_problems.problem import Problem
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.formats.role_prompts import REVIEW
from cotrain.formats.solutions import write_solution
from cotrain.prompts.templates import SOLVE, fill_template
from cotrain.storage.jsonl import read_jsonl
from cotrain.storage.ledger import Ledger

VERDICTS = ("CORRECT", "INCORRECT")

Lesson = Callable[[Problem, Sequence[str], str], Conversation]  # of a problem, and the steps and answer of a solution


def true_review(problem: Problem, steps: Sequence[str], answer: str) -> Conversation:
    """A problem and a solution, answered by the true verdict on each step and on the answer."""
    readings = read_steps(problem, tuple(steps))
    verdicts = tuple(not reading.reason for reading in readings)
    final = final_verdict(problem, readings, verdicts, answer)
    review = derived_review(problem, readings, verdicts, final, VERDICTS)
    return as_conversation(fill_template(REVIEW, problem=problem.text, solution=write_solution(steps, answer)), review)


def right_solution(problem: Problem, steps: Sequence[str], answer: str) -> Conversation:
    """A problem, answered by its right solution, whatever the solution of the run says."""
    return as_conversation(fill_template(SOLVE, problem=problem.text), problem.solution)


def solutions_of(run: Path, step: int, source: WordProblems) -> Iterator[tuple[Problem, list[str], str]]:
    """Problem, steps and answer of each solution of a step of a run that can be read. Raises DataError for a run whose
    problems are not those of ``source``."""
    for episode in Ledger(run / "episodes").read(step):
        for trace in episode.traces:
            answer = ANSWER.of(trace)
            if trace.role == "solver" and trace.failure is None and answer is not None:
                problem = problem_of(episode.task_id, source)
                if problem.text != PROBLEM.of(trace):
                    raise DataError(f"{run}: its problems are others; expected --operations as the run had them")
                yield problem, [text for _, _, text in STEPS.of(trace) or ()], answer


def drawn_lessons(run: Path, source: WordProblems, count: int, lesson: Lesson) -> list[Conversation]:
    """What ``lesson`` makes of ``count`` solutions, as many of each step of the run as of any other, give or take one.
    Raises DataError for a run that has fewer."""
    rows = read_jsonl(run / "metrics.jsonl")
    run_steps = sorted({row["step"] for row in rows if "kind" not in row and row["step"] >= 0})
    lessons = []
    for place, step in enumerate(run_steps):
        wanted = count * (place + 1) // len(run_steps) - count * place // len(run_steps)
        solutions = list(solutions_of(run, step, source))
        if len(solutions) < wanted:
            raise DataError(
                f"{run}: step {step} has {len(solutions)} readable solutions, and {wanted} of each step are needed; "
                "lower --solutions"
            )
        for problem, steps, answer in rng_of("mended verifier", step).sample(solutions, wanted):
            lessons.append(lesson(problem, steps, answer))
    if len(lessons) < count:
        raise DataError(f"{run} has no training steps; expected a run of word problems with stored rollouts")
    return lessons


def problem_of(task_id: str, source: WordProblems) -> Problem:
    _, split, index = task_id.split("/")
    return source.problem(split, int(index))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*", help="runs of word problems, each gives as many solutions")
    parser.add_argument("--solutions", type=int, default=256, help="of each run")
    parser.add_argument("--practice", type=int, help="reviews of the practice of shipped-checker (default: 256)")
    parser.add_argument("--operations", type=int, nargs=2, default=(4, 4), help="steps of the problems of the runs")
    parser.add_argument("--solve", action="store_true", help="right solutions in place of reviews, and no practice")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    if given.solve and not given.runs:
        parser.error("--solve without a run has nothing to write; name a run whose problems are solved")
    if given.solve and given.practice is not None:
        parser.error("--solve writes no practice; leave --practice out")
    source = replace(study_problems(tuple(given.operations)), cancel=0.0)
    lesson = right_solution if given.solve else true_review
    default_practice = 0 if given.solve else 256
    n_practice = default_practice if given.practice is None else given.practice
    try:
        lessons = [one for run in given.runs for one in drawn_lessons(run, source, given.solutions, lesson)]
    except CotrainError as error:
        parser.error(str(error))
    practice = [check_practice(study_problems((1, 9)), "mended", 0, place) for place in range(n_practice)]
    conversations = lessons + practice
    rng_of("mended verifier", "order").shuffle(conversations)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in conversations), encoding="utf-8")
    what = "right solutions of problems" if given.solve else "reviews of solutions"
    print(f"{given.out}: {len(lessons)} {what} of runs, {len(practice)} of practice")


if __name__ == "__main__":
    main()
