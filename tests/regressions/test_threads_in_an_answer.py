"""A program started threads until the process table was full."""

from __future__ import annotations

from cotrain.core.types import Grade

THREADS = """
import threading, time
threading.stack_size(1 << 16)
def begun():
    for n in range(300):
        try:
            threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        except RuntimeError:
            return n
    return 300
"""


def test_threads_end_at_the_limit(sandbox):
    assert sandbox.ask(THREADS, "assert begun() <= 16") == Grade(value=True)
    assert sandbox.is_well()
