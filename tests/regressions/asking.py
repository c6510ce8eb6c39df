"""A pool of graders as root or as a user, in one kind of sandbox: reads programs and papers from standard input, writes
grades.

Run as ``python asking.py root|user KIND``. Where it begins as root it first goes into process ids of its own and, if it
can, under a limit on processes, so that a sandbox that does not hold harms this process and not the machine: not even
by ``kill(-1)``."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

MEMORY, MOST = 1 << 28, 900
CGROUP = Path("/sys/fs/cgroup/pids/cotrain-tests")


def main(who: str, kind: str) -> None:
    from cotrain.grading.isolation import JUDGING
    from cotrain.grading.pool import GradingPool
    from cotrain.grading.sandbox.users import become_user, spare_users

    with suppress(OSError):  # where there are such groups
        CGROUP.mkdir(exist_ok=True)
        (CGROUP / "pids.max").write_text(str(MOST))
        (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
    if os.geteuid() == 0:
        go_apart()
        show_python()
        if who == "user":
            become_user(spare_users(1)[0])
            os.environ["HOME"] = "/"
            resource.setrlimit(resource.RLIMIT_NPROC, (MOST, MOST))
    with GradingPool(workers=1, judging=(JUDGING,), memory=MEMORY, sandbox=kind) as pool:
        print(json.dumps({"user": os.geteuid()}), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            pool.deadline_s = asked["deadline_s"]
            began = time.monotonic()
            grade = pool.grade_in_process(asked["paper"], asked["program"])
            print(json.dumps([grade.value, grade.reason, time.monotonic() - began]), flush=True)
    with suppress(ChildProcessError):
        while os.getpid() == 1:  # all that is left ends with this process, and some of it has folders to clear up
            os.waitpid(-1, 0)


def go_apart() -> None:
    """Into a namespace of process ids, with its own /proc."""
    from cotrain.grading.sandbox import system

    system.unshare(system.CLONE_NEWNS | system.CLONE_NEWPID)
    system.mount("none", "/", None, system.MS_REC | system.MS_PRIVATE)
    if inside := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) & 127)
    system.prctl(system.PR_SET_PDEATHSIG, 9)
    system.mount("proc", "/proc", "proc")


def show_python() -> None:
    """Where only root may enter the directories above this Python, put it under others, for this process and its own
    alone."""
    from cotrain.grading.sandbox import limits, system

    shut: dict[str, list[tuple[str, int]]] = {}
    for place in {os.path.realpath(place) for place in [*limits.python_paths(), *sys.path[:1]]}:
        above = [str(path) for path in reversed(Path(place).parents) if path.stat().st_mode & 0o5 != 0o5]
        if above:
            shut.setdefault(above[0], []).append((place, os.open(place, os.O_PATH)))
    for directory, inside in shut.items():
        system.mount("open", directory, "tmpfs", 0, "mode=755")
        for place, held in inside:
            Path(place).mkdir(parents=True, exist_ok=True)
            system.mount(f"/proc/self/fd/{held}", place, None, system.MS_BIND | system.MS_REC)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    main(*sys.argv[1:])
