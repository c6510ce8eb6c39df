"""A coder and a tester for `coder_tester`: lessons that a program wrote, for `cotrain sft`.

    python -m zoo.benchmarks.coder_tester --out runs/coder
    cotrain sft --model shipped-checker --data runs/coder/lessons.jsonl --optimizer muon --lr 0.01 --tokens 3000000 \
        --length 256 --out runs/coder/taught
    python -m zoo.benchmarks.coder_tester --mark runs/coder/taught
    cotrain run coder_tester --model ./runs/coder/taught --out runs/coder/run

``--mark`` notes beside a model that it knows the prompts of the lessons, which are without instructions.

No model of the package has seen a program. Half of the lessons are programs for the training problems of
``short_programs``: where a function turns at a number, three of five are wrong at that number alone (``<=`` for ``<``);
elsewhere one of five is another wrong line. So the coder is wrong greedily too, and few inputs tell. The other lessons
are tests with right outputs, whose inputs are drawn evenly: one of a problem, or four of a problem and a program.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random
from typing import Any

from cotrain_zoo.coder_tester.recipe import TEST, TEST_PROGRAM
from cotrain_zoo.coder_tester.short_programs import INPUTS, SPLITS, ShortProgram, all_programs

from benchmarks.self_compare import write_lessons
from cotrain.formats.solutions import write_solution
from cotrain.prompts.templates import SOLVE, fill_template
from cotrain.rollout.common_roles import mark_terse_prompts

TURNS, ELSEWHERE = 0.6, 0.2  # share of wrong programs, of functions that turn at a number and of others
LINES = 4  # tests of a problem and a program


def draw_program(problem: ShortProgram, rng: Random) -> str:
    """The reference program or a wrong one."""
    turns = " if " in problem.kind.line
    if rng.random() >= (TURNS if turns else ELSEWHERE):
        return problem.program()
    return problem.program(problem.kind.slips[0] if turns else rng.choice(problem.kind.slips))


def lessons_of(problem: ShortProgram, rng: Random) -> list[dict[str, Any]]:
    """Two programs, a test of the problem, and tests of the problem and a program."""
    programs = [draw_program(problem, rng) for _ in range(3)]
    made = [
        conversation(fill_template(SOLVE, problem=problem.question), write_solution(["f(x)"], fenced(one)))
        for one in programs[:2]
    ]
    made.append(conversation(fill_template(TEST, problem=problem.question), problem.test(rng.choice(INPUTS))))
    asked = fill_template(TEST_PROGRAM, problem=problem.question, solution=programs[2])
    made.append(conversation(asked, "\n".join(problem.test(x) for x in rng.sample(INPUTS, LINES))))
    return made


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def conversation(asked: str, said: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--out", type=Path, help="where lessons.jsonl goes")
    to.add_argument("--mark", type=Path, help="a model that was taught")
    parser.add_argument("--rounds", type=int, default=20, help="lessons of each problem, in fours")
    given = parser.parse_args()
    if given.mark is not None:
        mark_terse_prompts(given.mark)
        return
    problems, rng = all_programs()[: SPLITS["train"].stop], Random("lessons")
    made = [row for _ in range(given.rounds) for problem in problems for row in lessons_of(problem, rng)]
    rng.shuffle(made)
    write_lessons(made, given.out)


if __name__ == "__main__":
    main()
