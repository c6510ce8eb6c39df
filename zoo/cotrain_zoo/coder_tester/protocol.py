"""Coder and tester at one problem: programs, tests, every program with every test, and the rewards of both."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any, Literal

from cotrain import CORRECT, ConfigError, Roles, Signal, Task, Turn, gather, gives
from cotrain.core.arguments import Positive
from cotrain.core.notes import ANSWER, FAILURE, Metadata
from cotrain.data.programs import ASK, SHOWN, ProgramGrader, ProgramProblem
from cotrain.grading.fences import MAX_PROGRAM, program_of
from cotrain.rollout.protocols import attempts
from cotrain_zoo.coder_tester.unit_tests import UnitTests, breaking_reward, read_tests, run_tests, telling_reward

Variant = Literal["cure", "code_a1"]
Pay = Literal["truth", "tests", "valid", "both"]  # reference tests; the tester's, all or valid; the first and the third
Sees = Literal["problem", "program"]
ValidBy = Literal["reference", "programs"]  # the reference program, or all programs that are right

EXPECTED = "expected --tasks mbpp or humaneval with --data FILE, or --tasks short_programs"

PAID = Signal("paid", meaning="what a program earns: share of the tests that it passes, as the recipe has it")
WORTH = Signal("worth", meaning="what a turn of tests earns, as the recipe has it")

CAUGHT = Metadata[bool]("caught", bool, "of a wrong program: does it fail a test")
CAUGHT_RIGHTLY = Metadata[bool]("caught_rightly", bool, "of a wrong program: does it fail a valid test")
BLAMED = Metadata[bool]("blamed", bool, "of a right program: does it fail a test")
VALID = Metadata[float]("valid_tests", float, "share of the tests asked for that the reference program passes")
WRONG_OUTPUT = Metadata[float]("wrong_output", float, "share of the tests asked for that name another output")
BAD_INPUT = Metadata[float]("bad_input", float, "share of the tests asked for with which the reference program fails")
FIGURES = {"solver": (CAUGHT, CAUGHT_RIGHTLY, BLAMED), "tester": (CORRECT, VALID, WRONG_OUTPUT, BAD_INPUT)}


@gives(PAID.to("solver"), WORTH.to("tester"))
async def write_and_test(
    task: Task,
    roles: Roles,
    *,
    programs: Positive = 4,
    tests: Positive = 4,
    most: Positive = 1,
    sees: Sees = "problem",
    worth: Variant = "cure",
    pay: Pay = "truth",
    valid_by: ValidBy = "reference",
    alpha: float = 0.5,
) -> None:
    """``programs`` of the solver, and ``tests`` turns of the tester with at most ``most`` tests each: for the task, or
    with ``sees="program"`` for each program that can be read.

    The solver's reward is ``paid``: none where ``pay`` asks for tests and there are none. The tester's is ``worth``:
    with ``valid_by="programs"`` none where no program is right.
    """
    grader, problem = grader_and_problem(task)
    solutions = await attempts(task, roles, programs)
    right = [CORRECT.require(solution) for solution in solutions]
    program_texts = [program_text(solution, problem) for solution in solutions]

    # The tester writes tests.
    fields: dict[str, Any] = {
        "problem": shown_problem(problem),
        "entry": problem.entry,
        "most": most,
        "known": problem.tests,
    }
    turns: list[Turn] = []
    if sees == "problem":
        turns = await roles.tester.many(tests, solution="", **fields)
    else:
        calls = []
        for solution, text in zip(solutions, program_texts, strict=True):
            if text is None:
                continue
            nonce = {"nonce": roles.nonce(solution)} if "nonce" in roles.tester.fields else {}
            call = roles.tester.many(tests, group=solution.id, parent=solution, solution=text, **fields, **nonce)
            calls.append(call)
        for turns_about_program in await gather(calls):
            turns += turns_about_program

    # Every program and the reference run with every test. A test that could not be run counts for nobody.
    all_tests: dict[str, None] = {}  # in the order in which they were written
    for turn in turns:
        all_tests |= dict.fromkeys(tests_in(turn))
    async with roles.busy():
        grades = await run_tests(grader, problem, [problem.solution, *filter(None, program_texts)], list(all_tests))
    ungraded = {test: grade.reason for (_, test), grade in grades.items() if grade.value is None}
    for turn in turns:
        for test in tests_in(turn):
            if test in ungraded:
                turn.fail(ungraded[test] or "ungraded")

    graded_tests = [test for test in all_tests if test not in ungraded]
    valid_tests = [test for test in graded_tests if grades[problem.solution, test].value]
    passed_by_program: list[set[str]] = []
    for text in program_texts:
        passed_tests = {test for test in graded_tests if text and grades[text, test].value}
        passed_by_program.append(passed_tests)

    for solution, is_right, passed_tests in zip(solutions, right, passed_by_program, strict=True):
        note_program(solution, is_right, passed_tests, graded_tests, valid_tests)
        payments = program_payments(pay, is_right, passed_tests, graded_tests, valid_tests)
        if payments:
            solution.reward(PAID, sum(payments) / len(payments))

    for turn in turns:
        if turn.failed:
            continue
        own_tests = tests_in(turn)
        reasons = {test: grades[problem.solution, test].reason for test in own_tests}
        note_tests(turn, reasons, valid_tests, most)
        if worth == "code_a1":
            own_valid_tests = [test for test in own_tests if test in valid_tests]
            n_failed = []  # by each program that the turn was about: how many of its valid tests it fails
            for solution, passed_tests in zip(solutions, passed_by_program, strict=True):
                if turn.parent in (None, solution):
                    n_failed.append(sum(test not in passed_tests for test in own_valid_tests))
            mean_failed = sum(n_failed) / max(1, len(n_failed))
            turn.reward(WORTH, breaking_reward(len(own_valid_tests), mean_failed, most, alpha))
        elif valid_by == "reference" or any(right):
            worths = []
            for test in own_tests or ("",):  # a turn without a test is one that no program passes
                passes = [test in passed_tests for passed_tests in passed_by_program]
                is_valid = test in valid_tests
                if valid_by == "programs":
                    is_valid = all(passing for passing, is_right in zip(passes, right, strict=True) if is_right)
                worths.append(telling_reward(passes, right, is_valid))
            turn.reward(WORTH, sum(worths) / len(worths))


def program_payments(
    pay: Pay, is_right: bool, passed_tests: Collection[str], graded_tests: Collection[str], valid_tests: Collection[str]
) -> list[float]:
    """The parts of a program's reward, which is their mean; [] where it is paid for tests and there are none."""
    payments = []
    if pay in ("truth", "both"):
        payments.append(float(is_right))
    if pay == "tests" and graded_tests:
        payments.append(sum(test in passed_tests for test in graded_tests) / len(graded_tests))
    if pay in ("valid", "both") and valid_tests:
        payments.append(sum(test in passed_tests for test in valid_tests) / len(valid_tests))
    return payments


def grader_and_problem(task: Task) -> tuple[ProgramGrader, ProgramProblem]:
    """The grader that runs the programs of a task, and its problem."""
    if not isinstance(task.grader, ProgramGrader):
        raise ConfigError(f"coder_tester: task {task.id} asks for no program; {EXPECTED}", code="E_TASKS_NOT_PROGRAMS")
    problem = task.grader.problem_of(task)
    if not problem.entry:
        raise ConfigError(
            f"coder_tester: the tests of task {task.id} call no function of its reference program",
            code="E_TESTS_WITHOUT_FUNCTION",
        )
    return task.grader, problem


def shown_problem(problem: ProgramProblem) -> str:
    """The problem as the tester sees it: without its tests, and without how a program is to be written."""
    return problem.question.partition(SHOWN)[0].removesuffix(ASK).strip()


def program_text(solution: Turn, problem: ProgramProblem) -> str | None:
    """The program in a solution, as it is graded; None where there is none."""
    text = program_of(solution.text_to_grade(whole=True) or "", problem.entry)
    return None if text is None or len(text) > MAX_PROGRAM else text


def tests_in(turn: Turn) -> tuple[str, ...]:
    return tuple(turn.parsed.tests) if turn.parsed.ok else ()


def note_program(
    solution: Turn,
    right: bool,
    passed_tests: Collection[str],
    graded_tests: Collection[str],
    valid_tests: Collection[str],
) -> None:
    """Record on a solution whether the tests blame its program."""
    if right:
        solution.add_metadata(BLAMED, len(passed_tests) < len(graded_tests))
    else:
        solution.add_metadata(CAUGHT, len(passed_tests) < len(graded_tests))
        solution.add_metadata(CAUGHT_RIGHTLY, any(test not in passed_tests for test in valid_tests))


def note_tests(turn: Turn, reasons: Mapping[str, str | None], valid_tests: Collection[str], max_tests: int) -> None:
    """Record how a turn's tests fare with the reference program. ``reasons``: test → why it failed there."""
    if turn.parsed.ok:
        turn.add_finding(ANSWER, "\n".join(turn.parsed.tests))
    else:
        turn.add_finding(FAILURE, turn.parsed.reason)
    are_valid = [test in valid_tests for test in reasons]
    has_wrong_output = [reasons[test] == "test failed" for test in reasons if test not in valid_tests]
    turn.add_metadata(CORRECT, all(are_valid) and turn.parsed.ok and not turn.parsed.refused)
    turn.add_metadata(VALID, sum(are_valid) / max_tests)
    turn.add_metadata(WRONG_OUTPUT, sum(has_wrong_output) / max_tests)
    turn.add_metadata(BAD_INPUT, (len(has_wrong_output) - sum(has_wrong_output)) / max_tests)


# -- programs in the tester's place


def recite_tests(fields: Mapping[str, Any], rng: random.Random) -> str:
    """Tests of the reference, drawn."""
    tests = known_tests(fields)
    return "\n".join(rng.sample(tests, min(int(fields["most"]), len(tests))))


def shuffle_outputs(fields: Mapping[str, Any], rng: random.Random) -> str:
    """Inputs of reference tests with outputs of others, drawn."""
    tests = known_tests(fields)
    parts = [test.rsplit(" == ", 1) for test in tests]
    return "\n".join(f"{rng.choice(parts)[0]} == {rng.choice(parts)[-1]}" for _ in range(int(fields["most"])) if parts)


def known_tests(fields: Mapping[str, Any]) -> list[str]:
    """The reference tests that are a call and a literal."""
    reading = read_tests(str(fields["known"]), str(fields["entry"]))
    return list(reading.tests) if isinstance(reading, UnitTests) else []
