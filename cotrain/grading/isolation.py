"""Which kind of sandbox (``sandbox/``) programs run in on this machine: the strongest that passes a test. The test is
made once in a process, when the first sandbox is needed.

The test is an exam like any other, with a program of ours. It tries to start more processes than it may, which has to
fail, and to import from Python's library, which has to work. Where no kind of sandbox passes, no program is run: a fork
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
N_FORKS = 4 * limits.PROCESSES  # processes that the test tries to start; they sleep
DEADLINE_S = 5.0
_LONGEST_TEMP_PATH = 60  # characters of a temporary directory for sockets: a socket's whole path may have 107 bytes
ABOUT: dict[Kind, str] = {  # for ``doctor``
    "namespaces": "each program has a user or user namespace and process ids of its own",
    "bubblewrap": "each program has process ids of its own, through bwrap",
    "own user": "programs run as a user that nothing else runs as",
    "one process": "programs run as this user, without a second process or thread",
}
_PROGRAM = f"""
def count_forks():
    import os, time
    for n in range({N_FORKS}):
        try:
            if not os.fork():
                time.sleep(60)
                os._exit(0)
        except OSError:
            return n
    return {N_FORKS}
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
    datagram = socket.AF_UNIX, socket.SOCK_DGRAM
    def new_socket():
        return socket.socket(*datagram)
    def one_of_a_pair():
        return socket.socketpair(*datagram)[0]
    def sends(make_socket, path):
        try:
            make_socket().sendto(b"x", path)
        except OSError:
            return False
        return True
    return any(sends(new_socket, path) or sends(one_of_a_pair, path) for path in paths)
"""
_FUNCTIONS = ["count_forks", "import_module", "read", "can_reach", "can_send"]  # of the program, for the checks below


@cache
def working_sandbox() -> Kind:
    """The kind of sandbox that programs run in. Raises ConfigError where there is none."""
    faults = []
    for kind in KINDS:
        fault = sandbox_fault(kind)
        if fault is None:
            return kind
        faults.append(f"{kind}: {fault}")
    raise ConfigError(
        "programs cannot be run here, as nothing would limit how many processes one starts: run as root or where "
        "users may make namespaces, install bubblewrap, or name a sandbox (--tasks mbpp:module:function); tried "
        f"{'; '.join(faults)}",
        code="E_NO_SANDBOX",
    )


def sandbox_fault(kind: Kind) -> str | None:
    """Why programs cannot run in this kind of sandbox; None where they can."""
    checks = {
        "too many processes": f"count_forks() < {limits.PROCESSES}",
        "no import": "import_module() == (0.0, 0.0, 0)",
    }
    return _failed_check(kind, checks)


def ways_out(kind: Kind) -> list[str]:
    """The things that this kind of sandbox leaves open here: "other files", "network", "Unix sockets". A file and
    sockets of ours, open to everybody, are what the program tries to reach."""
    parent = None if len(tempfile.gettempdir()) < _LONGEST_TEMP_PATH else "/tmp"
    with tempfile.TemporaryDirectory(prefix="cotrain-", dir=parent) as folder, ExitStack() as sockets:
        os.chmod(folder, 0o755)
        file = f"{folder}/file"
        Path(file).write_text("seen")
        os.chmod(file, 0o666)
        socket_path = f"{folder}/socket"
        addresses = [socket_path]
        if sys.platform == "linux":
            addresses.append(f"\0{Path(folder).name}")  # an abstract one, which has no path (unix(7))
        for address in addresses:
            sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(address)
        os.chmod(socket_path, 0o666)
        checks = {
            "other files": f"read({file!r}) is None",
            "network": "not can_reach('192.0.2.1')",  # an address for documentation: only a route is asked for
            "Unix sockets": f"not can_send({addresses!r})",
        }
        return [name for name, check in checks.items() if _failed_check(kind, {name: check}) is not None]


def _failed_check(kind: Kind, checks: dict[str, str]) -> str | None:
    """The first of these checks that fails, with the reason; None where all pass. ``checks``: name → an expression of
    the program's functions, which has to be true."""
    worker = Worker(MEMORY_BYTES, (JUDGING,), kind)
    try:
        for name, check in checks.items():
            paper = json.dumps({"imports": [], "names": _FUNCTIONS, "before": "", "tests": f"assert {check}"})
            grade = worker.request_grade(paper, _PROGRAM, DEADLINE_S)
            if grade.value is not True:
                return f"{name} ({grade.reason})"
    except NotLoaded as error:
        return error.why
    finally:
        worker.kill()
    return None
