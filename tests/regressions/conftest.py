"""Each hostile program is asked in each kind of sandbox, as root and as a user, wherever this machine has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from cotrain.core.types import Grade
from cotrain.data.program_tests import paper_of
from cotrain.grading.sandbox.watch import descendants_of, process_list
from tests.regressions.asking import CGROUP

WAYS = [
    ("root", "namespaces"),
    ("user", "namespaces"),
    ("user", "bubblewrap"),
    ("root", "own user"),
    ("user", "one process"),
]
GOOD = "def twice(x):\n    return 2 * x\n"
TESTS = "assert twice(2) == 4\nassert twice(-1) == -2"
DEADLINE_S = 2.0  # of a program that is to answer, on however busy a machine
WAITS_S = 0.1  # of one that is known to wait for it
MORE_S = 6.0  # for a busy machine, beside four times the deadline by the clock
SERVER = 8  # processes of a pool with one worker, at most
SOON_S = 15.0  # hostile processes stay for 20
OTHERS = """
import os
def is_mine(pid):
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid != os.getpid()
def others():
    return [pid for pid in range(2, 1 << 15) if is_mine(pid)]
"""


class Asker:
    """A pool in another process, see ``asking.py``."""

    def __init__(self, who: str, kind: str) -> None:
        self.who, self.kind = who, kind
        command = [sys.executable, str(Path(__file__).with_name("asking.py")), who, kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.user = self._told()["user"]

    def ask(
        self, program: str, tests: str = TESTS, solution: str | None = None, deadline_s: float = DEADLINE_S
    ) -> Grade:
        """The grade of a program; it comes in time."""
        paper = paper_of(before="", tests=tests, solution=program if solution is None else solution)
        value, reason, seconds = self._send(paper, program, deadline_s)
        assert seconds < 4 * deadline_s + MORE_S, f"{seconds:.1f} s"
        return Grade(value=value, reason=reason)

    def warm(self) -> None:
        """Start its process, which takes longer than an answer."""
        assert self._send(paper_of(before="", tests=TESTS, solution=GOOD), GOOD)[0] is True

    def is_well(self) -> bool:
        """The next good answer is right, and nothing has stayed behind."""
        return self.ask(GOOD) == Grade(value=True) and self._is_quiet()

    def _is_quiet(self) -> bool:
        if self.kind == "own user":  # the next program runs as the same user, and can signal what is left
            return self.ask(OTHERS, "assert others() == []") == Grade(value=True)
        until = time.monotonic() + SOON_S
        while time.monotonic() < until:
            own = {self._process.pid} | {process.pid for process in descendants_of(self._process.pid)}
            strays = {p.pid for p in process_list() if _user(p.pid) == self.user} - own if self.user else set()
            if len(own) <= SERVER and len(strays) <= 1:  # that one clears up folders
                return True
            time.sleep(0.02)
        return False

    def _send(self, paper: str, program: str, deadline_s: float = DEADLINE_S) -> tuple[bool | None, str | None, float]:
        assert self._process.stdin is not None
        request = {"paper": paper, "program": program, "deadline_s": deadline_s}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self):
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the pool has died ({self._process.wait()})")
        return json.loads(line)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.communicate(timeout=600)  # it may have a hundred thousand directories to remove
        with suppress(OSError):
            CGROUP.rmdir()


def _user(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


@cache
def reason_against(who: str, kind: str) -> str | None:
    """Why this way cannot be tried on this machine; None where it can."""
    if sys.platform != "linux":
        return "Linux only"
    if who == "root" and os.geteuid() != 0:
        return "needs root"
    if os.geteuid() == 0 and not namespaces("root"):
        return "root needs process ids of its own, lest a hostile program ends the machine's"
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not on the PATH"
    return "no namespaces here" if kind in ("namespaces", "bubblewrap") and not namespaces(who) else None


@cache
def namespaces(who: str) -> bool:
    """Whether this machine lets root, or a user, make namespaces and mount in them."""
    words = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--fork",
        *(["--user", "--map-root-user"] if who == "user" else []),
    ]
    drop = {"user": 65534, "group": 65534, "extra_groups": []} if who == "user" and os.geteuid() == 0 else {}
    try:
        tried = subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, **drop)
    except OSError:
        return False
    return tried.returncode == 0


@pytest.fixture(scope="session")
def askers():
    """The pools so far, by way: they are slow to start, and each file of tests asks in all of them."""
    started: dict[tuple[str, str], Asker] = {}
    yield started
    for asker in started.values():
        asker.close()


@pytest.fixture(scope="session", params=WAYS, ids=lambda way: "-".join(way).replace(" ", "-"))
def sandbox(request, askers):
    """A pool that runs programs in one kind of sandbox."""
    way = request.param
    if way not in askers:
        if reason := reason_against(*way):
            pytest.skip(reason)
        askers[way] = Asker(*way)
        askers[way].warm()
    yield askers[way]
    if askers[way].has_ended():  # a test that failed took it along: the next one gets another
        askers.pop(way).close()
