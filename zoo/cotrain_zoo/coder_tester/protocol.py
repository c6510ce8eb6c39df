"""What coder and tester do with one problem: programs, tests, every program with every test, and what each is paid."""

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
    """``programs`` of the solver, and ``tests`` turns of the tester with at most ``most`` tests each: of the task, or
    with ``sees="program"`` of each program that can be read. Rewards: of the solver ``paid`` (none where ``pay`` asks
    for tests and there are none), of the tester ``worth`` (with ``valid_by="programs"`` none where no program is
    right)."""
    grader, problem = grader_and_problem(task)
    solutions = await attempts(task, roles, programs)
    right = [CORRECT.require(solution) for solution in solutions]
    written = [program_text(solution, problem) for solution in solutions]
    fields: dict[str, Any] = {
        "problem": shown_problem(problem),
        "entry": problem.entry,
        "most": most,
        "known": problem.tests,
    }
    if sees == "problem":
        turns = await roles.tester.many(tests, solution="", **fields)
    else:
        pairs = [(s, text) for s, text in zip(solutions, written, strict=True) if text is not None]
        nonces = [{"nonce": roles.nonce(s)} if "nonce" in roles.tester.fields else {} for s, _ in pairs]
        asked = [
            roles.tester.many(tests, group=s.id, parent=s, solution=text, **fields, **nonce)
            for (s, text), nonce in zip(pairs, nonces, strict=True)
        ]
        turns = [turn for of_program in await gather(asked) for turn in of_program]

    found = dict.fromkeys(test for turn in turns for test in tests_in(turn))
    async with roles.busy():
        grades = await run_tests(grader, problem, [problem.solution, *filter(None, written)], list(found))
    ungraded = {test: grade.reason for (_, test), grade in grades.items() if grade.value is None}
    for turn in turns:
        for test in tests_in(turn):
            if test in ungraded:
                turn.fail(ungraded[test] or "ungraded")
    kept = [test for test in found if test not in ungraded]
    valid = [test for test in kept if grades[problem.solution, test].value]
    passed = [{test for test in kept if text and grades[text, test].value} for text in written]  # by each program

    for solution, is_right, these in zip(solutions, right, passed, strict=True):
        note_program(solution, is_right, these, kept, valid)
        shares = [len(these.intersection(some)) / len(some) for some in (kept, valid) if some]
        earned = {
            "truth": [float(is_right)],
            "tests": shares[:1],
            "valid": shares[1:],
            "both": [float(is_right), *shares[1:]],
        }[pay]
        if earned:
            solution.reward(PAID, sum(earned) / len(earned))
    for turn in (turn for turn in turns if not turn.failed):
        note_tests(turn, {test: grades[problem.solution, test].reason for test in tests_in(turn)}, valid, most)
        if worth == "code_a1":
            held = [test for test in tests_in(turn) if test in valid]
            against = [these for s, these in zip(solutions, passed, strict=True) if turn.parent in (None, s)]
            broke = [sum(test not in these for test in held) for these in against]
            turn.reward(WORTH, breaking_reward(len(held), sum(broke) / max(1, len(broke)), most, alpha))
        elif valid_by == "reference" or any(right):
            worths = []
            for test in tests_in(turn) or ("",):  # a turn without a test is one that no program passes
                passes = [test in these for these in passed]
                is_valid = test in valid
                if valid_by == "programs":
                    is_valid = all(passing for passing, is_right in zip(passes, right, strict=True) if is_right)
                worths.append(telling_reward(passes, right, is_valid))
            turn.reward(WORTH, sum(worths) / len(worths))


def grader_and_problem(task: Task) -> tuple[ProgramGrader, ProgramProblem]:
    """What runs the programs of a task, and its problem."""
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
    """What the tester sees of a problem: not its tests, and not how a program is to be written."""
    return problem.question.partition(SHOWN)[0].removesuffix(ASK).strip()


def program_text(solution: Turn, problem: ProgramProblem) -> str | None:
    """The program in a solution, as it is graded; None where there is none."""
    text = program_of(solution.text_to_grade(whole=True) or "", problem.entry)
    return None if text is None or len(text) > MAX_PROGRAM else text


def tests_in(turn: Turn) -> tuple[str, ...]:
    return tuple(turn.parsed.tests) if turn.parsed.ok else ()


def note_program(
    solution: Turn, right: bool, passed: Collection[str], kept: Collection[str], valid: Collection[str]
) -> None:
    """What the tests said of a program."""
    if right:
        solution.add_metadata(BLAMED, len(passed) < len(kept))
    else:
        solution.add_metadata(CAUGHT, len(passed) < len(kept))
        solution.add_metadata(CAUGHT_RIGHTLY, any(test not in passed for test in valid))


def note_tests(turn: Turn, reasons: Mapping[str, str | None], valid: Collection[str], most: int) -> None:
    """What the reference program said of a turn's tests. ``reasons``: of each test why it failed there."""
    if turn.parsed.ok:
        turn.add_finding(ANSWER, "\n".join(turn.parsed.tests))
    else:
        turn.add_finding(FAILURE, turn.parsed.reason)
    right = [test in valid for test in reasons]
    other = [reasons[test] == "test failed" for test in reasons if test not in valid]
    turn.add_metadata(CORRECT, all(right) and turn.parsed.ok and not turn.parsed.refused)
    turn.add_metadata(VALID, sum(right) / most)
    turn.add_metadata(WRONG_OUTPUT, sum(other) / most)
    turn.add_metadata(BAD_INPUT, (len(other) - sum(other)) / most)


# -- programs in the tester's place


def recite_tests(fields: Mapping[str, Any], rng: random.Random) -> str:
    """Tests of the reference, drawn."""
    known = known_tests(fields)
    return "\n".join(rng.sample(known, min(int(fields["most"]), len(known))))


def shuffle_outputs(fields: Mapping[str, Any], rng: random.Random) -> str:
    """Inputs of reference tests with outputs of others, drawn."""
    known = known_tests(fields)
    parts = [test.rsplit(" == ", 1) for test in known]
    return "\n".join(f"{rng.choice(parts)[0]} == {rng.choice(parts)[-1]}" for _ in range(int(fields["most"])) if parts)


def known_tests(fields: Mapping[str, Any]) -> list[str]:
    """The reference tests that are a call and a literal."""
    read = read_tests(str(fields["known"]), str(fields["entry"]))
    return list(read.tests) if isinstance(read, UnitTests) else []
