"""A program left its session and went on when its grade was given."""

from __future__ import annotations

from cotrain.core.types import Grade
from tests.regressions.conftest import GOOD

DAEMON = """
import os, signal, time
def begin():
    try:
        if os.fork():
            return
    except OSError:
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, 100)
    time.sleep(20)
    os._exit(0)
begin()
"""


def test_a_daemon_ends_with_its_program(sandbox):
    assert sandbox.ask(DAEMON + GOOD) == Grade(value=True)
    assert sandbox.is_well()


def test_children_of_a_program_that_died_end_too(sandbox):
    assert sandbox.ask(DAEMON + "os._exit(0)") == Grade(value=False, reason="program died")
    assert sandbox.is_well()
