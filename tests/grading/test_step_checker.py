"""A checker of steps as a process: what it is asked, what becomes of its failures, and that nothing of it stays."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from cotrain.core.trust import trusted_code_only
from cotrain.grading import step_checker
from cotrain.grading.step_checker import CheckedSteps, CheckerFailed, StepChecker, read_reply
from tests.sentences import refuses

ASSERTIONS = Path(__file__).resolve().parents[2] / "examples" / "own" / "assertion_checker.py"
ECHO = """import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.getpid(), child.pid, file=open(sys.argv[1], "w"), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    said = {"id": asked["id"], "ok": [True] * len(asked["steps"]), "done": asked["answer"] == "yes"}
    if asked["problem"] == "die":
        os._exit(3)
    if asked["problem"] == "sleep":
        time.sleep(600)
    print("what?" if asked["problem"] == "babble" else json.dumps(said), flush=True)
"""


@pytest.fixture
def echo(tmp_path):
    (tmp_path / "echo.py").write_text(ECHO, encoding="utf-8")
    checker = StepChecker(f"{sys.executable} {tmp_path / 'echo.py'} {tmp_path / 'pids'}")
    yield checker, tmp_path / "pids"
    checker.close()


def asked(checker, problem, *steps, answer=None):
    return asyncio.run(checker.check(problem, steps, answer))


def are_gone(pids, wait_s=30.0):
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        states = [Path(f"/proc/{pid}/stat") for pid in pids]
        if not any(file.exists() and file.read_text().rpartition(")")[2].split()[0] != "Z" for file in states):
            return True
        time.sleep(0.01)
    return False


def test_it_answers_and_is_gone_with_its_children_when_it_is_closed(echo):
    checker, pids = echo
    assert asked(checker, "a", "x", "y") == CheckedSteps(ok=(True, True), reasons=("", ""), done=False)
    assert asked(checker, "a", "x", answer="yes").done
    family = [int(pid) for pid in pids.read_text().split()]
    assert len(family) == 2 and not are_gone(family, wait_s=0.01)
    checker.close()
    assert are_gone(family)
    assert asked(checker, "a", "x").ok == (True,)  # a further question starts it anew


def test_a_child_without_an_environment_is_ended_too(tmp_path):
    (tmp_path / "echo.py").write_text(ECHO.replace("start_new_session=True", "start_new_session=True, env={}"))
    checker = StepChecker(f"{sys.executable} {tmp_path / 'echo.py'} {tmp_path / 'pids'}")
    assert asked(checker, "a", "x").ok == (True,)
    checker.close()
    assert are_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


@pytest.mark.parametrize(
    ("problem", "reason"),
    [("die", "died"), ("sleep", "timeout"), ("babble", "unreadable line"), ("x" * 60_000, "question too long")],
)
def test_a_failure_has_a_reason_and_the_next_question_an_answer(problem, reason, echo, monkeypatch):
    checker, pids = echo
    asked(checker, "a", "x")
    monkeypatch.setattr(step_checker, "LIMIT_S", 0.1 if reason == "timeout" else 60.0)
    assert asked(checker, problem, "x") == f"checker: {reason}"
    monkeypatch.setattr(step_checker, "LIMIT_S", 60.0)
    family = [int(pid) for pid in pids.read_text().split()]
    assert reason == "question too long" or are_gone(family)
    assert asked(checker, "a", "x").ok == (True,)


def test_all_its_processes_share_one_limit_of_memory_and_number(echo, monkeypatch):
    checker, _ = echo
    monkeypatch.setattr(step_checker, "LOOK_S", 0.0)
    assert asked(checker, "a", "x").ok == (True,)
    monkeypatch.setattr(step_checker, "PROCESSES", 1)
    assert asked(checker, "a", "x") == "checker: processes"
    monkeypatch.setattr(step_checker, "PROCESSES", 64)
    monkeypatch.setattr(step_checker, "MEMORY_BYTES", 1 << 10)
    assert asked(checker, "a", "x") == "checker: memory"


@pytest.mark.parametrize(
    "reply",
    [[], {}, {"id": 2, "ok": [True]}, {"id": 1, "ok": [1]}, {"id": 1, "ok": []}, {"id": 1, "ok": [True], "done": "no"},
     {"id": 1, "ok": [True], "reasons": [None]}, {"id": 1, "ok": True}],
)  # fmt: skip
def test_what_is_no_answer_to_the_question_is_not_readable(reply):
    with pytest.raises(CheckerFailed) as raised:
        read_reply(reply, 1, 1)
    assert raised.value.args == ("unreadable line",)  # the reason that is counted
    assert read_reply({"id": 1, "ok": [False], "reasons": ["no"]}, 1, 1).reasons == ("no",)


def test_a_command_that_cannot_be_started_is_refused():
    for command, code in (
        ("", "E_NO_SUCH_PROGRAM"),
        ("nothing-like-it", "E_NO_SUCH_PROGRAM"),
        ('"a', "E_COMMAND_SHAPE: quotation"),
    ):
        with refuses(code):
            StepChecker(command)
    with refuses("E_COMMAND_FILE_MISSING", names="nowhere.py"):
        StepChecker(f"{sys.executable} nowhere.py")


def test_a_command_that_a_foreign_run_names_is_not_started(tmp_path):
    (tmp_path / "foreign.py").write_text("", encoding="utf-8")
    with (
        trusted_code_only(tmp_path),
        refuses("E_CODE_NOT_TRUSTED"),
    ):
        StepChecker(f"{sys.executable} {tmp_path / 'foreign.py'}")


def test_the_checker_of_the_examples_says_which_assertions_hold():
    checker = StepChecker(f"{sys.executable} {ASSERTIONS}")
    steps = ("12 * 3 = 36", "a = 4 + 1 = 6", "so it is", "1 / 0 = 1", "2 ** 9 = 512", "n = 36 - 1 = 35")
    found = asked(checker, "any", *steps)
    told = ("", "does not hold", "no assertion", "not arithmetic", "not arithmetic", "")
    assert (found.reasons, found.ok, found.done) == (told, tuple(not one for one in told), False)
    assert asked(checker, "any", steps[0], answer="36").done
    assert not asked(checker, "any", steps[0], answer="35").done
    checker.close()
