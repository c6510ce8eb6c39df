"""The lessons of ``benchmarks/domains.py``: worked solutions are right, by the graders of the tasks themselves."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import domains

from cotrain.core.types import Task
from cotrain.tasks.programs import ProgramTasks
from cotrain.text.parsers import tagged_solution


def task(prompt):
    return Task(id="t", prompt=prompt, answer=None, solution=None, difficulty=0.0, grader=None)


@pytest.mark.parametrize(
    ("worked", "prompt", "steps", "answer"),
    [
        (domains.chain_sum, "Do this: 87 - 68 + 6 =", ["87 - 68 = 19", "19 + 6 = 25"], "25"),
        (domains.products, "Multiply: 98 * 804.", ["98 * 800 = 78400", "98 * 4 = 392", "78400 + 392 = 78792"], "78792"),
        (domains.products, "Multiply: 7 * 0.", ["7 * 0 = 0"], "0"),
        (domains.euclid, "GCD of: 12, 30. Give", ["30 % 12 = 6", "12 % 6 = 0"], "6"),
    ],
)
def test_solutions_are_worked_out_step_by_step(worked, prompt, steps, answer):
    read = tagged_solution(worked(task(prompt)))
    assert ([step.text for step in read.steps], read.answer) == (steps, answer)


def test_programs_pass_their_own_tests_and_are_all_different(tmp_path):
    rows = list(domains.program_rows(60))
    assert len({row["text"] for row in rows}) == 60 and rows == list(domains.program_rows(60))
    file = tmp_path / "programs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = ProgramTasks("mbpp", file)
    try:
        taught = list(domains.lessons(source, domains.program, 4))
        one = source.get("train", 0)
        assert one.grade(domains.program(one)).value and not one.grade(taught[1]["messages"][1]["content"]).value
        with pytest.raises(ValueError, match="is graded as wrong"):
            list(domains.lessons(source, lambda task: "<answer>0</answer>", 1))
    finally:
        source.close()
    assert [m["role"] for m in taught[0]["messages"]] == ["user", "assistant"]
    assert sum(source.size(split) for split in ("train", "validation", "test")) == 60
