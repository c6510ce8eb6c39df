"""``--backend ray`` as users call it: what it prints, what it leaves, and a run that changes its backend on its way."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.backend.test_several import digest
from tests.helpers import TINY

pytestmark = pytest.mark.whole
COMMAND = [sys.executable, "-m", "cotrain.cli"]
FLAGS = ["--model", TINY, "--operations", "2", "2", "--set", "tasks.max_value=20", "--tasks-per-step", "3",
         "--group-size", "4", "--evaluation-tasks", "1", "--set", "evaluation.group_size=2", "--lr", "1e-3",
         "--warmup", "1", "--ratio", "1", "1", "--reviews", "3", "--checkpoint-every", "1", "--threads", "1",
         "--steps", "3"]  # fmt: skip
RAY = ["--backend", "ray"]
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: who is orphaned below this process becomes its child


@pytest.fixture
def left_over():
    """The processes that are left of all that was begun since, after so many seconds; they are killed at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(SUBREAPER, 1, 0, 0, 0) == 0
    before = set(children())

    def left(seconds):
        until = time.monotonic() + seconds
        while (found := {pid: name for pid, name in children().items() if pid not in before}) and (
            time.monotonic() < until
        ):
            time.sleep(0.1)
        return found

    yield left
    for pid in left(0):
        os.kill(pid, signal.SIGKILL)
    assert libc.prctl(SUBREAPER, 0, 0, 0, 0) == 0


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


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The digest of the run in one process, and what the command printed."""
    out = tmp_path_factory.mktemp("local") / "run"
    said = subprocess.run([*COMMAND, "run", "tango", *FLAGS, "--out", out], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return digest(out), said


def test_the_command_ends_with_the_local_run_and_without_processes(local, left_over, tmp_path):
    out = tmp_path / "run"
    said = subprocess.run([*COMMAND, "run", "tango", *RAY, *FLAGS, "--out", out], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert left_over(60) == {}
    assert digest(out) == local[0]
    assert said.stderr == local[1].stderr  # Ray says nothing of its own
    assert len(said.stdout.splitlines()) == len(local[1].stdout.splitlines())


def test_the_terminal_shows_a_lost_engine_in_the_words_of_the_run_alone(local, left_over, tmp_path):
    out = tmp_path / "run"
    process = begun("run", "tango", *RAY, *FLAGS, "--out", out)
    after_a_step(process, out)
    hosts = [pid for pid in below(process.pid) if "ray::Hosting" in named(pid)]
    assert len(hosts) == 2  # learners, engine
    for pid in hosts:
        os.kill(pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert digest(out) == local[0]
    assert "is lost during" in text
    assert "raylet" not in text
    assert left_over(60) == {}


ASKED = [([], RAY, os.kill, signal.SIGTERM), (RAY, [], os.kill, signal.SIGTERM), (RAY, RAY, os.killpg, signal.SIGINT)]


@pytest.mark.parametrize(("first", "then", "ask", "by"), ASKED, ids=["local, Ray", "Ray, local", "Ray, Ctrl-C, Ray"])
def test_a_stopped_run_goes_on_with_either_backend(first, then, ask, by, local, left_over, tmp_path):
    out = tmp_path / "run"
    process = begun("run", "tango", *first, *FLAGS, "--out", out)
    after_a_step(process, out)
    ask(process.pid, by)  # a terminal's Ctrl-C reaches every process of the group
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + by, text
    assert f"cotrain resume {out}" in text
    assert left_over(60) == {}
    assert lines(out / "metrics.jsonl") < 3
    said = subprocess.run([*COMMAND, "resume", out, *then], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert digest(out) == local[0]
    assert left_over(60) == {}


def test_a_killed_command_leaves_no_process_after_two_minutes(left_over, tmp_path):
    process = begun("run", "tango", *RAY, *FLAGS, "--out", tmp_path / "run")
    after_a_step(process, tmp_path / "run")
    process.kill()
    process.communicate(timeout=300)
    assert left_over(300) == {}  # a busy machine takes longer


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
