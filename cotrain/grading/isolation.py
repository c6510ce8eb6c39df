"""Which kind of sandbox (``sandbox/``) programs run in on this machine: the strongest that passes a test, run once a
process.

The test is an exam like any other. Its program tries to start more processes than it may and imports from the library;
it is right where the first fails and the second does not. Where no kind of sandbox passes, no program is run: a fork
bomb would take the machine."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from cotrain.core.errors import ConfigError
from cotrain.grading.grade_process import NotLoaded, Worker
from cotrain.grading.sandbox import KINDS, Kind, limits

MEMORY_BYTES = 1 << 30  # address space of a program
JUDGING = "cotrain.grading.program_worker:load_programs"
TRIED = 4 * limits.PROCESSES  # processes that the test tries to start; they sleep
DEADLINE_S = 5.0
_PATH_LENGTH = 60  # characters of a directory for a socket, whose whole path may have 107 bytes
ABOUT: dict[Kind, str] = {
    "namespaces": "each program has a user or user namespace and process ids of its own",
    "bubblewrap": "each program has process ids of its own, through bwrap",
    "own user": "programs run as a user that nothing else runs as",
    "one process": "programs run as this user, without a second process or thread",
}
_TEST = f"""
def count_forks():
    import os, time
    for n in range({TRIED}):
        try:
            if not os.fork():
                time.sleep(60)
                os._exit(0)
        except OSError:
            return n
    return {TRIED}
def import_module():
    import colorsys
    return colorsys.rgb_to_hsv(0, 0, 0)
def read(path):
    try:
        return open(path).read()
    except OSError:
        return None
def can_reach(address):
    import socket
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((address, 9))
    except OSError:
        return False
    return True
def can_send(paths):
    import socket
    def send(one, path):
        try:
            one().sendto(b"x", path)
        except OSError:
            return False
        return True
    datagram = socket.AF_UNIX, socket.SOCK_DGRAM
    ways = (lambda: socket.socket(*datagram), lambda: socket.socketpair(*datagram)[0])
    return any(send(one, path) for one in ways for path in paths)
"""


@cache
def working_sandbox() -> Kind:
    """The kind of sandbox that programs run in. Raises ConfigError where there is none."""
    problems = {}
    for kind in KINDS:
        if (problem := sandbox_fault(kind)) is None:
            return kind
        problems[kind] = problem
    tried_kinds = "; ".join(f"{kind}: {problem}" for kind, problem in problems.items())
    raise ConfigError(
        "programs cannot be run here, as nothing would limit how many processes one starts: run as root or where "
        "users may make namespaces, install bubblewrap, or name a sandbox (--tasks mbpp:module:function); tried "
        f"{tried_kinds}",
        code="E_NO_SANDBOX",
    )


def sandbox_fault(kind: Kind) -> str | None:
    """Why programs cannot run in this kind of sandbox; None where they can."""
    return _failed_check(
        kind,
        {"too many processes": f"count_forks() < {limits.PROCESSES}", "no import": "import_module() == (0.0, 0.0, 0)"},
    )


def ways_out(kind: Kind) -> list[str]:
    """The things that this kind of sandbox leaves open here: "other files", "network", "Unix sockets"."""
    short = None if len(tempfile.gettempdir()) < _PATH_LENGTH else "/tmp"
    with tempfile.TemporaryDirectory(prefix="cotrain-", dir=short) as folder, ExitStack() as opened:
        os.chmod(folder, 0o755)
        file = f"{folder}/file"
        names = [f"{folder}/socket"]
        Path(file).write_text("seen")
        if sys.platform == "linux":
            names.append(f"\0{Path(folder).name}")  # an abstract one
        for name in names:
            opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(name)
        for path in (file, names[0]):
            os.chmod(path, 0o666)
        checks = {
            "other files": f"read({file!r}) is None",
            "network": "not can_reach('192.0.2.1')",  # a route is asked for
            "Unix sockets": f"not can_send({names!r})",
        }
        return [name for name, check in checks.items() if _failed_check(kind, {name: check}) is not None]


def _failed_check(kind: Kind, checks: dict[str, str]) -> str | None:
    """The first of these tests that fails, or why there was none."""
    worker = Worker(MEMORY_BYTES, (JUDGING,), kind)
    try:
        for name, check in checks.items():
            names = ["count_forks", "import_module", "read", "can_reach", "can_send"]
            paper = json.dumps({"imports": [], "names": names, "before": "", "tests": f"assert {check}"})
            grade = worker.request_grade(paper, _TEST, DEADLINE_S)
            if grade.value is not True:
                return f"{name} ({grade.reason})"
    except NotLoaded as error:
        return error.why
    finally:
        worker.kill()
    return None
