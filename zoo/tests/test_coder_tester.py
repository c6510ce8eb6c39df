"""Programs against tests: how tests are read, what runs, and what coder and tester are paid."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from cotrain_zoo.coder_tester.protocol import grader_and_problem, shown_problem, write_and_test
from cotrain_zoo.coder_tester.recipe import PROGRAMS, coder_tester
from cotrain_zoo.coder_tester.short_programs import ShortPrograms, all_programs
from cotrain_zoo.coder_tester.unit_tests import (
    UnitTests,
    breaking_reward,
    parse_tests,
    read_tests,
    run_tests,
    telling_reward,
)
from zoo_cases import TINY_PROGRAMS

from cotrain.core.types import Grade, ParseFailure, Sampling
from cotrain.data.programs import ProgramTasks
from cotrain.data.sources import from_description, task_source
from cotrain.formats.solutions import parse_solution, write_solution
from cotrain.grading.fences import program_of
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses
from zoo.benchmarks.coder_tester import lessons_of

ROW = {
    "text": "Write a function clip(x) that returns x, but at most 5.",
    "code": "def clip(x):\n    return min(x, 5)",
    "test_list": ["assert clip(5) == 5", "assert clip(9) == 5", "assert clip(-3) == -3"],
}
RIGHT, STRICT, LOOP = "return min(x, 5)", "return x if x < 9 else 5", "while x: pass"  # STRICT passes the tests of ROW
NESTED = "[" * 150 + "]" * 150
SAME, LARGER = "return x", "return max(x, 5)"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    file = tmp_path_factory.mktemp("mbpp") / "mbpp.jsonl"
    rows = [{**ROW, "task_id": 700 + n} for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = ProgramTasks("mbpp", file, workers=2, deadline_s=0.5)
    yield source
    source.close()


def program(line: str) -> str:
    return f"def clip(x):\n    {line}"


def answer(line: str) -> str:
    return write_solution(["It is clipped."], f"```python\n{program(line)}\n```")


# -- reading


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("assert clip(3) == 3", ("assert clip(3) == 3",)),
        (
            "Tests:\n```python\nassert clip( 3 )==3\nassert clip(x=[1, 'a'])  ==  {'b': (1,)}, 'why'\n```",
            ("assert clip(3) == 3", "assert clip(x=[1, 'a']) == {'b': (1,)}"),
        ),
        ("assert clip(3) == 3\nassert clip(3)==3", ("assert clip(3) == 3",)),
        ("<think>assert clip(1) == 1</think>assert clip(2) == 2", ("assert clip(2) == 2",)),
        ("assert clip(-1) == -1e400", ("assert clip(-1) == -1e309",)),
        ("I do not know.", "no test"),
        ("assert clip(3 ==", "no Python"),
        ("assert clip(" + "9" * 400 + ") == 5", "no Python"),
        ("assert clip(x=3, x=4) == 3", "no Python"),
        (f"assert clip({NESTED}) == 3", (f"assert clip({NESTED}) == 3",)),
        ("assert clip(3)", "no call"),
        ("assert min(3, 5) == 3", "no call"),
        ("assert clip(3) == 3 == 3", "no call"),
        ("assert clip(**{'x': 3}) == 3", "no call"),
        ("assert clip(3) == clip(3)", "no literal"),
        ("assert clip(__import__('os').getpid()) == 3", "no literal"),
        ("assert clip(2 + 1) == 3", "no literal"),
        ("assert clip({[]}) == 3", "no literal"),
        ("assert clip((lambda: 3)()) == 3", "no literal"),
        ("<think>assert clip(3) == 3", "no test"),
    ],
)
def test_tests_are_read_as_calls_and_literals_and_nothing_else(text, found):
    read = parse_tests(text, {"entry": "clip", "most": 8})
    if isinstance(found, str):
        assert read == ParseFailure(reason=found)
    else:
        assert read.tests == found


def test_a_turn_counts_its_first_tests_and_says_why_others_are_none():
    text = "assert clip(1) == 1\nassert clip(1) == 1\nassert clip(y) == 1\nassert clip(2) == 2"
    assert read_tests(text, "clip", 3) == UnitTests(tests=("assert clip(1) == 1",), refused=("repeated", "no literal"))


# -- rewards by hand


def test_cure_pays_a_test_for_the_wrong_programs_that_it_tells():
    right = [True, False, False, False]
    assert telling_reward([True, False, False, True], right, True) == pytest.approx(2 / 3)
    assert telling_reward([True, True, True, True], right, True) == 0.0
    assert telling_reward([False, True, False, False], right, False) == pytest.approx(-1 / 3)
    assert telling_reward([False, False, False, False], right, False) == 0.0
    assert (telling_reward([True], [True], True), telling_reward([False], [True], False)) == (1.0, -1.0)


def test_code_a1_pays_for_valid_tests_and_for_those_that_break_the_program():
    assert breaking_reward(3, 1, 4, 0.5) == pytest.approx(0.5 * 3 / 4 + 0.5 * 1 / 4)
    assert breaking_reward(4, 4, 4, 0.25) == 1.0
    assert breaking_reward(0, 0, 4, 0.5) == 0.0


# -- runs


def test_each_program_meets_each_test_in_a_cell_of_its_own(source):
    grader, problem = grader_and_problem(source.get("train", 0))
    counting = program("global n; n = globals().get('n', 0) + 1; return n")  # would see the tests before
    tests = ["assert clip(1) == 1", "assert clip(2) == 1"]
    grades = asyncio.run(run_tests(grader, problem, [program(RIGHT), counting, counting], tests))
    assert len(grades) == 4
    assert [grades[program(RIGHT), test] for test in tests] == [
        Grade(value=True),
        Grade(value=False, reason="test failed"),
    ]
    assert [grades[counting, test].value for test in tests] == [True, True]


def played(source, programs, texts, **options):
    """The traces of one episode: ``programs`` are lines of the solver's in turn, ``texts`` what the tester says."""
    said = {"coder": iter(programs), "tester": iter(texts)}
    speak = {
        "coder": lambda fields, rng: answer(next(said["coder"])),
        "tester": lambda fields, rng: next(said["tester"]),
    }
    sampling = Sampling(max_tokens=500)
    roles = {
        "solver": Role(policy="coder", prompt="{problem}", sampling=sampling, parse=parse_solution),
        "tester": Role(policy="tester", prompt="{problem}\n{solution}\nTest:", sampling=sampling, parse=parse_tests),
    }
    executor = RolloutRunner(spoken(speak), dict.fromkeys(said, ByteRenderer()), roles, 0)
    play = partial(write_and_test, programs=len(programs), **options)
    [episode] = executor.collect(play, [source.get("train", 0)], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return [[t for t in episode.traces if t.role == role] for role in roles]


def paid(traces):
    return [t.rewards[0].value if t.rewards else None for t in traces]


CURE = ["assert clip(7) == 5", "assert clip(4) == 4", "assert clip(7) == 7", "no test at all"]


def test_cure_in_one_episode(source):
    coder, tester = played(source, [STRICT, SAME, LARGER], CURE, tests=4)
    assert paid(coder) == [1.0, 0.0, 0.0]  # by the reference tests, which do not see what STRICT does to 7
    # 7 -> 5: valid, and SAME fails it, LARGER too; 4 -> 4: LARGER alone fails it; 7 -> 7: both wrong programs pass it
    assert paid(tester) == [1.0, 0.5, -1.0, 0.0]
    assert [t.metadata["valid_tests"] for t in tester] == [1.0, 1.0, 0.0, 0.0]
    assert [t.metadata["wrong_output"] for t in tester] == [0.0, 0.0, 1.0, 0.0]
    assert tester[3].findings["failure"] == "no test" and [t.metadata["correct"] for t in tester] == [
        True,
        True,
        False,
        False,
    ]
    assert [t.metadata.get("caught") for t in coder] == [None, True, True]
    assert coder[0].metadata["blamed"] is True  # it fails "7 -> 5"
    assert len({t.group for t in tester}) == 1


def test_the_coder_can_be_paid_by_tests_alone(source):
    def shares(pay, tests=CURE):
        return paid(played(source, [RIGHT, SAME, LARGER], tests, tests=len(tests), pay=pay)[0])

    assert shares("tests") == [pytest.approx(2 / 3), pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert shares("valid") == [1.0, 0.5, 0.0]
    assert shares("both") == [1.0, 0.25, 0.0]
    assert shares("both", ["none"]) == [1.0, 0.0, 0.0]  # no test is valid: the truth alone
    assert shares("valid", ["none"]) == [None] * 3


def test_programs_say_what_is_valid_where_no_reference_does(source):
    tests = ["assert clip(7) == 7", "assert clip(7) == 5"]
    _, tester = played(source, [STRICT, SAME], tests, tests=2, valid_by="programs")
    assert paid(tester) == [0.0, 0.0]  # valid, and SAME passes it; called invalid, and SAME fails it
    _, tester = played(source, [SAME, LARGER], tests, tests=2, valid_by="programs")
    assert paid(tester) == [None, None]  # no program is right: nothing is known


def test_code_a1_in_one_episode(source):
    two = ["assert clip(4) == 4\nassert clip(8) == 5", "assert clip(4) == 5\nassert clip('a') == 5"]
    coder, tester = played(
        source, [RIGHT, SAME], two + two, tests=2, most=2, sees="program", worth="code_a1", pay="both"
    )
    assert paid(tester) == [0.5, 0.0, 0.75, 0.0]  # against RIGHT nothing breaks; SAME fails "8 -> 5"
    assert paid(coder) == [1.0, 0.25]
    assert [t.metadata["bad_input"] for t in tester] == [0.0, 0.5, 0.0, 0.5]
    assert [t.group for t in tester] == [str(coder[0].address)] * 2 + [str(coder[1].address)] * 2
    assert "return x\n" in ByteRenderer().decode(tester[2].prompt_ids)


def test_a_program_that_never_ends_fails_its_tests_and_breaks_nothing(source):
    coder, tester = played(source, [RIGHT, LOOP], CURE[:2], tests=2)
    assert paid(coder) == [1.0, 0.0] and paid(tester) == [1.0, 1.0]
    assert coder[1].metadata["caught_rightly"] is True


def test_the_tester_does_not_see_the_reference_tests(source):
    _, tester = played(source, [RIGHT], CURE, tests=4)
    asked = ByteRenderer().decode(tester[0].prompt_ids)
    assert ROW["text"] in asked and "assert" not in asked and "must pass" not in asked
    assert shown_problem(grader_and_problem(ShortPrograms().get("test", 0))[1]).startswith("Write a function f(x)")


def test_programs_in_the_testers_place(source):
    fields = {"known": "\n".join(ROW["test_list"]), "entry": "clip", "most": 2}
    said = PROGRAMS["reference"](fields, random.Random(0))
    assert set(said.split("\n")) < set(ROW["test_list"])
    lines = PROGRAMS["random"](fields, random.Random(0)).split("\n")
    assert len(lines) == 2 and all(read_tests(line, "clip").ok for line in lines)


# -- problems and recipe


def test_wrong_lines_of_short_programs_fail_their_tests():
    problems = all_programs()
    assert len({problem.question for problem in problems}) == len(problems) == 497
    for problem in problems[::25]:
        for test in problem.tests():
            names: dict = {}
            exec(problem.program(), names)  # noqa: S102  our own
            exec(test, names)  # noqa: S102
        for slip in problem.kind.slips:
            exec(problem.program(slip), names)  # noqa: S102
            with pytest.raises(AssertionError):
                exec("\n".join(problem.tests()), names)  # noqa: S102


@pytest.mark.whole
def test_lessons_are_read_as_a_run_will_read_them():
    rng, source = random.Random(0), ShortPrograms()
    for index in range(0, 320, 40):
        problem = source.programs[index]
        grader, task = grader_and_problem(source.get("train", index))
        said = [row["messages"][1]["content"] for row in lessons_of(problem, rng)]
        for text in said[:2]:
            assert parse_solution(text, {}).ok and program_of(text, "f").startswith("def f(x):")
        for text, most in zip(said[2:], (1, 4), strict=True):
            tests = parse_tests(text, {"entry": "f", "most": most}).tests
            assert len(tests) == most
            grades = asyncio.run(run_tests(grader, task, [task.solution], tests))
            assert all(grade.value for grade in grades.values())


@pytest.mark.whole
def test_problems_of_a_file_are_played_too(source):
    for variant in ("cure", "code_a1"):
        trainer = CoTrainer(
            coder_tester(variant=variant, model=TINY_PROGRAMS, tasks=source, tasks_per_step=2, group_size=2, tests=2)
        )
        row = trainer.step().row
        assert row["solver/traces"] == 4 and not [key for key in row if key.startswith("failures/")]
        assert 0.0 <= row["solver/metadata/caught"] <= 1.0


@pytest.mark.whole
def test_short_programs_are_tasks():
    source = task_source("short_programs")
    task = source.get("validation", 3)
    assert task.grade(f"```python\n{task.gold}\n```").value is True
    assert from_description(source.describe()).get("validation", 3).prompt == task.prompt
    seen = [source.get(split, i).prompt for split in ("train", "validation", "test") for i in range(source.size(split))]
    assert len(set(seen)) == len(seen)
    with pytest.raises(IndexError, match="no task 64"):
        source.get("validation", 64)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"tasks": EASY}, "E_TASKS_NOT_PROGRAMS: words | --tasks mbpp"),
        ({"coder": "frozen", "tester": "random"}, "E_NOBODY_LEARNS: coder=frozen | tester=random"),
        ({"alpha": 2.0}, "E_SETTING_RANGE: alpha is 2.0"),
        ({"tests": 1}, "E_OPTION_RANGE: tests is 1"),
    ],
)
def test_what_cannot_be_played_is_refused(settings, code):
    with refuses(code):
        coder_tester(model=TINY, **settings)


@pytest.mark.whole
def test_lessons_of_a_coder_and_a_tester_are_written(tmp_path):
    command = [sys.executable, "-m", "zoo.benchmarks.coder_tester", "--out", str(tmp_path), "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["zoo", os.environ.get("PYTHONPATH", "")])}
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], env=environment)
    first, *_ = map(json.loads, (tmp_path / "lessons.jsonl").read_text().splitlines())
    assert {message["role"] for message in first["messages"]} == {"user", "assistant"}
