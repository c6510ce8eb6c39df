"""A wrong program killed its grader: "grader died" is no grade, and the sample was masked."""

from __future__ import annotations

import pytest

from cotrain.core.types import Grade
from tests.regressions.conftest import GOOD, TESTS

WRONG = "def twice(x):\n    return 0\n"
TRIED = (
    "for pid in {pids}:\n    for number in (2, 9, 10, 12, 15, 19):\n        try: {call}\n        except OSError: pass\n"
)
KILLS = {
    "its parent": TRIED.format(pids="[os.getppid()] * (os.getppid() > 0)", call="os.kill(pid, number)"),
    "the first": TRIED.format(pids="[1]", call="os.kill(pid, number)"),
    "processes near": TRIED.format(
        pids="{*range(2, 40), *range(max(2, os.getpid() - 30), os.getpid())} - {os.getpid()}",
        call="os.kill(pid, number)",
    ),
    "everybody": "try: os.kill(-1, 9)\nexcept OSError: pass\n",
    "its group": "try: os.killpg(0, 9)\nexcept OSError: pass\n",
    "its parent's limits": TRIED.format(
        pids="[os.getppid(), 1]", call="resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))"
    ),
    "by a thread": TRIED.format(pids="[os.getppid() or 1]", call="libc.syscall(200, pid, number)"),
    "by a handle": TRIED.format(
        pids="[os.getppid() or 1]", call="signal.pidfd_send_signal(os.pidfd_open(pid), number)"
    ),
    "by tracing": "for pid in (os.getppid(), 1):\n    libc.ptrace(16, pid, 0, 0)\n    libc.ptrace(8, pid, 0, 0)\n",
}
BEGIN = "import ctypes, os, resource, signal\nlibc = ctypes.CDLL(None)\n"


@pytest.mark.whole
@pytest.mark.parametrize("name", KILLS)
def test_a_program_cannot_end_its_grader(sandbox, name):
    grade = sandbox.ask(BEGIN + KILLS[name] + WRONG, solution=GOOD)
    assert grade.value is False and grade.reason in ("test failed", "program died")
    assert sandbox.is_well()


def test_a_program_that_ends_while_it_is_called_is_wrong(sandbox):
    program = "import os\ndef twice(x):\n    if x < 0: os.kill(os.getpid(), 9) or os._exit(0)\n    return 2 * x\n"
    assert sandbox.ask(program, TESTS, solution=GOOD) == Grade(value=False, reason="program died")
