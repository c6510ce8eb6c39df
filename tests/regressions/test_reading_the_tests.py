"""A program read what is expected of it: out of frames, of memory, of its parent, or of the file of problems."""

from __future__ import annotations

import pytest

from cotrain.core.types import Grade
from tests.regressions.conftest import GOOD

GOLD = 918273645
SECRET = f"assert secret(7) == {GOLD}"
KNOWN = f"def secret(x):\n    return {GOLD}\n"
LOOK = {
    "frames": """
import sys
def texts():
    f = sys._getframe()
    while f:
        yield repr(f.f_locals) + repr(f.f_globals) + repr(f.f_code.co_consts)
        f = f.f_back
""",
    "objects": """
import gc
def texts():
    for thing in gc.get_objects():
        try: yield repr(thing) if isinstance(thing, (dict, list, tuple, set)) else ''
        except Exception: pass
""",
    "memory": """
def texts():
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', buffering=0) as memory:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split('-'))
            if 'r' in line.split()[1] and end - start < 1 << 26:
                try:
                    memory.seek(start)
                    yield memory.read(end - start).decode('latin-1')
                except OSError: pass
""",
    "processes": """
import os
def texts():
    for pid in [os.getppid(), 1, *map(str, range(os.getpid() - 5, os.getpid()))]:
        for name in ('environ', 'cmdline', 'mem', 'maps', 'fd/0', 'fd/1'):
            try: yield open(f'/proc/{pid}/{name}', 'rb', buffering=0).read(1 << 16).decode('latin-1')
            except OSError: pass
""",
    "descriptors": """
import os, select
def texts():
    for number in range(64):
        try:
            if select.select([number], [], [], 0)[0]: yield os.read(number, 1 << 16).decode('latin-1')
        except OSError: pass
""",
    "a file": """
def texts():
    yield open(PATH).read()
""",
}
FOUND = f"""
def secret(x):
    try:
        return next((int("{str(GOLD)[::-1]}"[::-1]) for text in texts() if "{str(GOLD)[::-1]}" in text[::-1]), 0)
    except Exception:
        return 1
"""


@pytest.mark.parametrize("name", LOOK)
def test_a_program_does_not_find_its_tests(sandbox, tmp_path, name):
    file = tmp_path / "problems.jsonl"
    file.write_text(SECRET)
    for path in [file, *file.parents][:4]:
        path.chmod(0o755)
    program = f"PATH = {str(file)!r}\n{LOOK[name]}{FOUND}"
    assert str(GOLD) not in program
    assert sandbox.ask(KNOWN, SECRET) == Grade(value=True)  # the problem before is the same one
    assert sandbox.ask(program, SECRET, solution=KNOWN) == Grade(value=False, reason="test failed")


def test_python_itself_can_be_read(sandbox):
    program = "def twice(x):\n    import colorsys, email, sqlite3, xml.dom\n    return 2 * x\n"
    assert sandbox.ask(program, solution=GOOD) == Grade(value=True)
