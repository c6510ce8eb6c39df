"""A program that ended its process, with a code that says "well", before the tests had run."""

from __future__ import annotations

import pytest

from tests.regressions.conftest import GOOD, TESTS

WRONG = "def twice(x):\n    return 0\n"
ENDS = {
    "os._exit": "import os\nos._exit(0)\n",
    "sys.exit": "import sys\nsys.exit(0)\n",
    "SystemExit": "raise SystemExit(0)\n",
    "KeyboardInterrupt": "raise KeyboardInterrupt\n",
    "os._exit when called": "import os\ndef twice(x): os._exit(0)\n",
    "sys.exit when called": "import sys\ndef twice(x): sys.exit(0)\n",
    "StopIteration when called": "def twice(x): raise StopIteration\n",
    "another program": "import os, sys\ntry: os.execv(sys.executable, ['python', '-c', ''])\nexcept OSError: "
    f"pass\n{WRONG}",
    "at exit": f"import atexit, os\natexit.register(os._exit, 0)\n{WRONG}",
    "a signal": "import os, signal\nsignal.signal(14, lambda *a: os._exit(0))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.01)\nwhile True: pass\n",
    "a parent that goes": f"import os\ntry: os.fork() and os._exit(0)\nexcept OSError: pass\n{WRONG}",
}


@pytest.mark.whole
@pytest.mark.parametrize("name", ENDS)
def test_an_end_is_no_pass(sandbox, name):
    assert sandbox.ask(ENDS[name], TESTS, solution=GOOD).value is False
    assert sandbox.is_well()
