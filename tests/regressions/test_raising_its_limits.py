"""The limit on memory was a soft one, which a program may raise."""

from __future__ import annotations

from cotrain.core.types import Grade

RAISE = """
import resource
def raised():
    found = []
    for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE"):
        kind = getattr(resource, f"RLIMIT_{name}")
        soft, hard = resource.getrlimit(kind)
        for more in ((hard, hard + 1), (soft + 1, hard), (-1, -1)):
            try:
                resource.setrlimit(kind, more)
                found.append(name)
            except (OSError, ValueError):
                pass
    return found
"""


def test_no_limit_can_be_raised(sandbox):
    assert sandbox.ask(RAISE, "assert raised() == []") == Grade(value=True)


def test_cpu_time_ends_without_anybody_to_look(sandbox):
    """By the program's own limit: the deadline and a second more, rounded up."""
    program = "import resource\ndef limit():\n    return resource.getrlimit(resource.RLIMIT_CPU)\n"
    assert sandbox.ask(program, "assert limit()[0] == limit()[1] <= 3", deadline_s=1.0) == Grade(value=True)
