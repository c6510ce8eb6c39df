"""The lessons of ``benchmarks/domains.py``: worked solutions are right, by the graders of the tasks themselves."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import domains

from cotrain.core.types import Task
from cotrain.data.programs import ProgramTasks
from cotrain.data.sources import task_source
from cotrain.formats.role_replies import step_verdicts
from cotrain.formats.solutions import tagged_solution


def task(prompt):
    return Task(id="t", prompt=prompt, gold=None, solution=None, difficulty=0.0, grader=None)


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
    read = tagged_solution(worked(task(prompt), domains.exact))
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
        assert (
            one.grade(domains.program(one, domains.exact)).value
            and not one.grade(taught[1]["messages"][1]["content"]).value
        )
        with pytest.raises(ValueError, match="is graded as wrong"):
            list(domains.lessons(source, lambda task, slip: "<answer>0</answer>", 1))
    finally:
        source.close()
    assert [m["role"] for m in taught[0]["messages"]] == ["user", "assistant"]
    assert sum(source.size(split) for split in ("train", "validation", "test")) == 60


def plus_one(at):
    return lambda step, result: result + (step == at)


@pytest.mark.parametrize(
    ("worked", "prompt", "at", "steps", "answer"),
    [
        (domains.chain_sum, "Do this: 87 - 68 + 6 =", 0, ["87 - 68 = 20", "20 + 6 = 26"], "26"),
        (domains.products, "Multiply: 98 * 14.", 1, ["98 * 10 = 980", "98 * 4 = 393", "980 + 393 = 1373"], "1373"),
        (domains.products, "Multiply: 98 * 14.", 2, ["98 * 10 = 980", "98 * 4 = 392", "980 + 392 = 1373"], "1373"),
        (
            domains.euclid,
            "GCD of: 12, 30. Give",
            0,
            ["30 % 12 = 7", "12 % 7 = 5", "7 % 5 = 2", "5 % 2 = 1", "2 % 1 = 0"],
            "1",
        ),
        (domains.euclid, "GCD of: 3, 2. Give", 0, ["3 % 2 = 1", "2 % 1 = 0"], "1"),  # 2 is no remainder
    ],
)
def test_steps_behind_a_slip_follow_from_it(worked, prompt, at, steps, answer):
    read = tagged_solution(worked(task(prompt), plus_one(at)))
    assert ([step.text for step in read.steps], read.answer) == (steps, answer)


@pytest.mark.whole
def test_reviews_are_true_and_those_of_programs_are_of_other_problems(tmp_path):
    file = tmp_path / "programs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in domains.program_rows(300)))
    programs = ProgramTasks("mbpp", file)
    sources = [(programs, domains.program)]
    if importlib.util.find_spec("reasoning_gym"):
        sources += [(task_source(name), worked) for name, worked in domains.GYM.items()]
    try:
        for source, worked in sources:
            solved = {row["messages"][0]["content"] for row in domains.lessons(source, worked, 40)}
            finals = []
            for row in domains.reviews(source, worked, 40):
                asked, said = (message["content"] for message in row["messages"])
                problem, _, solution = asked.removesuffix("\nReview:").partition("\n<step>")
                assert worked is not domains.program or problem + "\nSolve:" not in solved
                shown = tagged_solution("<step>" + solution)
                review = step_verdicts(said, len(shown.steps))
                assert review.ok, said
                index = next(k for k in range(40, 80) if source.get("train", k).prompt == problem)
                assert source.get("train", index).grade("<step>" + solution).value == review.final
                finals.append(review.final)
                wrong = [step.text.split() != block for step, block in zip(shown.steps, derivations(said), strict=True)]
                if worked is not domains.program:
                    assert review.steps == tuple(not any(wrong[: k + 1]) for k in range(len(wrong)))
            assert 8 < sum(finals) < len(finals) - 8
    finally:
        programs.close()


def derivations(review):
    return [block.split()[:-1] for block in re.findall("<step>(.*?)</step>", review)]
