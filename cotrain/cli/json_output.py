"""``--json`` of commands that work for long: what they say on the way goes to stderr, and their result to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout

from cotrain.core import verbosity


def print_result(command: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """Run a command, and print what it gave to ``tell_result``; returns its exit code."""
    verbosity.RESULTS.clear()
    with redirect_stdout(sys.stderr):
        code = command(words)
    for value in verbosity.RESULTS:
        print(verbosity.json_text(value))
    return code
