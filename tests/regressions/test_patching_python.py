"""A program changed Python's own functions, and the grader's, in the process that graded it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotrain import grading
from tests.regressions.conftest import GOOD, TESTS

WRONG = "\ndef twice(x):\n    return 0\n"
INTERNALS = (  # of the workers, which a program would replace
    "kind_of_failure", "encode_exception", "decode_exception", "run_script", "run_program", "judge", "run_tests",
    "_grade_line", "_next_reply", "perform_request",
)  # fmt: skip
PATCHES = {
    "AssertionError": "import builtins\nclass Calm(BaseException):\n"
    "    def __new__(c, *a): raise SystemExit(0)\nbuiltins.AssertionError = Calm",
    "every name": "import builtins\nfor name in ('abs', 'len', 'set', 'sorted', 'all', 'isinstance', 'exec', "
    "'compile', 'type'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)",
    "exec": "import builtins\nbuiltins.exec = lambda *a: None\nbuiltins.compile = lambda *a: None",
    "json": 'import json\njson.dumps = lambda *a, **k: \'{"id": 1, "value": true, "reason": null}\'',
    "the channel": "import sys\nfor module in list(sys.modules.values()):\n"
    f"    for name in {INTERNALS}:\n"
    "        if hasattr(module, name): setattr(module, name, lambda *a, **k: (True, None))",
    "its values": "import sys\nfor module in list(sys.modules.values()):\n"
    "    if hasattr(module, 'ValueCodec'): module.ValueCodec.write_value = lambda self, value: True",
    "trace": "import sys\nsys.settrace(lambda f, e, a: f.f_locals.clear() or None)",
    "the frames": "import sys\nf = sys._getframe()\nwhile f:\n    f.f_globals['AssertionError'] = SystemExit\n    f "
    "= f.f_back",
    "memory": "import ctypes\nfor n in range(-5, 257):\n    ctypes.memmove(id(n) + 24, id(0) + 24, 4)",
}


@pytest.mark.whole
@pytest.mark.parametrize("name", PATCHES)
def test_what_a_program_patches_is_its_own(sandbox, name):
    assert sandbox.ask(PATCHES[name] + WRONG, TESTS, solution=GOOD).value is False
    assert sandbox.is_well()


def test_what_is_patched_exists():
    """A renamed function would leave these programs with nothing to attack."""
    source = "".join(file.read_text(encoding="utf-8") for file in Path(grading.__path__[0]).glob("*.py"))
    for name in (*INTERNALS, "write_value"):
        assert f"def {name}(" in source, name
    assert "class ValueCodec" in source
