"""Runs that are begun as users begin them, and what they leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.helpers import TINY

COMMAND = [sys.executable, "-m", "cotrain.cli.main"]
FLAGS = ["--model", TINY, "--operations", "2", "2", "--set", "tasks.max_value=20", "--tasks-per-step", "3",
         "--group-size", "4", "--evaluation-tasks", "1", "--set", "evaluation.group_size=2", "--lr", "1e-3",
         "--warmup", "1", "--ratio", "1", "1", "--reviews", "3", "--checkpoint-every", "1", "--threads", "1",
         "--steps", "3"]  # fmt: skip
RAY = ["--backend", "ray"]


def begun(*arguments) -> subprocess.Popen:
    """In a process group of its own."""
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )


def after_a_step(process: subprocess.Popen, out: Path) -> None:
    """Wait until the run has made one."""
    while lines(out / "metrics.jsonl") < 1:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def below(pid: int) -> list[int]:
    """All processes that descend from it."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *below(int(child))]
    return found


def named(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def children() -> dict[int, str]:
    """Of this process, by number; the ended ones are cleared away first."""
    found = {}
    for pid in (int(p) for task in Path("/proc/self/task").iterdir() for p in (task / "children").read_text().split()):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":
                os.waitpid(pid, os.WNOHANG)
            else:
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ChildProcessError):
            continue
    return found
