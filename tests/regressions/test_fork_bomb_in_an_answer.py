"""A program forked without end, and as root took the machine: no limit on processes held, and the kill never came."""

from __future__ import annotations

import pytest

from cotrain.core.types import Grade
from tests.regressions.conftest import GOOD, TESTS, WAITS_S

SLEEP = "time.sleep(20)\n        os._exit(0)"
ROW = f"""
import os, time
def begun():
    for n in range(300):
        try:
            child = os.fork()
        except OSError:
            return n
        if not child:
            {SLEEP.replace(chr(10), chr(10) + "    ")}
    return 300
"""
TREE = """
import os, time
for n in range(8):  # 256 processes where nothing stops it
    try:
        os.fork()
    except OSError:
        pass
time.sleep(20)
"""


def test_a_row_of_forks_ends_at_the_limit(sandbox):
    assert sandbox.ask(ROW, "assert begun() <= 16") == Grade(value=True)
    assert sandbox.is_well()


def test_a_tree_of_forks_ends_with_its_deadline(sandbox):
    assert sandbox.ask(TREE + GOOD, TESTS, deadline_s=WAITS_S) == Grade(value=False, reason="timeout")
    assert sandbox.is_well()


@pytest.mark.whole
@pytest.mark.parametrize(
    "start",
    [
        "os.fork() or os.kill(os.getpid(), 19)",
        "subprocess.Popen(['/usr/bin/env'])",
        "multiprocessing.Process().start()",
    ],
)
def test_children_that_are_never_waited_for_do_not_add_up(sandbox, start):
    program = f"import os, subprocess, multiprocessing\ntry:\n    {start}\nexcept (OSError, RuntimeError): pass\n"
    for _ in range(3):
        assert sandbox.ask(program + GOOD, TESTS).reason in (None, "program died")
    assert sandbox.is_well()
