"""A model that can compare two solutions, for `self_compare`: lessons that a program wrote, for `cotrain sft`.

    python -m benchmarks.self_compare --out runs/pairs
    cotrain sft --model shipped-habits --data runs/pairs/lessons.jsonl --optimizer muon --lr 0.004 --tokens 1500000 \
        --out runs/pairs/taught
    python -m benchmarks.self_compare --mark runs/pairs/taught
    cotrain run self_compare --model ./runs/pairs/taught --operations 2 3 --out runs/pairs/run

``--mark`` notes beside a model that it knows the prompts of the lessons, which are without instructions.

No model of the package was ever shown two solutions. Half of the lessons show it a right and a wrong one in random
order, and answer with the first step at which they differ, worked out anew beside what each of them claims, and with
the letter of the right one. The others are what ``shipped-habits`` was taught: solutions with its two habits, and true
reviews. The wrong ones of a pair have errors of skill, never a habit, so the model was not shown the errors that it
makes most.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bases.habits import HabitSettings
from bases.words_corpus import solver_conversation
from cotrain.data.word_problems.corpus import derivation
from cotrain.data.word_problems.corrupt import clean_attempt, with_errors
from cotrain.data.word_problems.oracle import read_steps
from cotrain.data.word_problems.practice import COUNTS, OF_SKILL, check_practice
from cotrain.data.word_problems.problem import Problem
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.formats.role_prompts import COMPARE
from cotrain.prompts.templates import fill_template
from cotrain.rollout.common_roles import mark_terse_prompts


def compare_lesson(problem: Problem, rng: Random) -> list[dict[str, str]]:
    """A right and a wrong solution in random order, and what to say of them."""
    right, wrong = clean_attempt(problem), with_errors(problem, rng.choice(COUNTS), OF_SKILL, rng)
    at = next(i for i in range(len(right.steps)) if right.steps[i] != (*wrong.steps, *[""] * len(right.steps))[i])
    worked = read_steps(problem, right.steps)[at]
    claims = [worked.claim, *(reading.claim for reading in read_steps(problem, wrong.steps)[at : at + 1]), ""][:2]
    right_first = rng.random() < 0.5
    texts, claims = ([right.text, wrong.text], claims) if right_first else ([wrong.text, right.text], claims[::-1])
    said = f"<step>{derivation(problem, worked)}|{claims[0]}|{claims[1]}</step><answer>{'BA'[right_first]}</answer>"
    asked = fill_template(COMPARE, problem=problem.text, first=texts[0], second=texts[1])
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]


def lessons_of(source: WordProblems, index: int) -> list[list[dict[str, str]]]:
    """Two comparisons, a solution and a review."""
    rng, (low, high) = Random(f"compare {index}"), source.operations
    compared = [compare_lesson(source.training_problem(rng, rng.randint(low, high)), rng) for _ in range(2)]
    return [
        *compared,
        solver_conversation(source, HabitSettings().habits, 0, index),
        check_practice(source, "compare", 0, index),
    ]


def write_lessons(lessons: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """``lessons.jsonl`` in a folder, for ``cotrain sft --data``."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "lessons.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in lessons), encoding="utf-8")
    print(f"{len(lessons)} lessons in {file}; now: cotrain sft (see --help of this script)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--out", type=Path, help="where lessons.jsonl goes")
    to.add_argument("--mark", type=Path, help="a model that was taught")
    parser.add_argument("--operations", type=int, nargs=2, default=(2, 5), help="fewest and most steps of a problem")
    parser.add_argument("--rounds", type=int, default=5000, help="lessons, in fours")
    given = parser.parse_args()
    if given.mark is not None:
        mark_terse_prompts(given.mark)
        return
    source = study_problems((given.operations[0], given.operations[1]))
    made: list[dict[str, Any]] = [
        {"messages": lesson} for index in range(given.rounds) for lesson in lessons_of(source, index)
    ]
    Random("order").shuffle(made)
    write_lessons(made, given.out)


if __name__ == "__main__":
    main()
