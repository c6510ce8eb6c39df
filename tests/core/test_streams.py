"""What a command prints reaches its reader at once where Python is told to buffer nothing, as in containers."""

import os
import subprocess
import sys

import pytest

PRINTS = """
import os, sys
from cotrain.core.verbosity import secure_streams
secure_streams()
print("a line" * 20000)
print("a note", file=sys.stderr)
os._exit(0)  # nothing is flushed any more
"""


def ended(unbuffered: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONUNBUFFERED": unbuffered} if unbuffered else {}
    return subprocess.run([sys.executable, "-c", PRINTS], env=environment, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("unbuffered", ["1", None])
def test_errors_and_notes_come_out_at_once(unbuffered: str | None) -> None:
    assert ended(unbuffered).stderr == "a note\n"


def test_all_comes_out_at_once_where_nothing_is_to_be_buffered() -> None:
    assert ended("1").stdout == "a line" * 20000 + "\n"
