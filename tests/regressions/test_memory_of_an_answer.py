"""A program took the machine's memory: it raised its own limit, or its children took a share each."""

from __future__ import annotations

from cotrain.core.types import Grade
from tests.regressions.asking import MEMORY
from tests.regressions.conftest import GOOD

RAISED = f"""
import resource
for most in (-1, 1 << 40):
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (OSError, ValueError):
        pass
x = bytearray({2 * MEMORY})
"""
SHARED = f"""
import os, time
def taken():
    for n in range(4):
        try:
            child = os.fork()
        except OSError:
            return 0
        if not child:
            x = bytearray({MEMORY // 2})
            time.sleep(20)
    time.sleep(20)
    return 4
"""


def test_a_limit_that_a_program_raises_stays(sandbox):
    assert sandbox.ask(RAISED + GOOD) == Grade(value=False, reason="MemoryError")
    assert sandbox.is_well()


def test_children_share_one_memory(sandbox):
    grade = sandbox.ask(SHARED, "assert taken() == 0")
    if sandbox.kind == "one process":  # there are no children
        assert grade == Grade(value=True)
    else:
        assert grade.value is False and grade.reason in ("MemoryError", "timeout")  # the latter on a busy machine
    assert sandbox.is_well()
