"""How many threads a command takes when it is not told."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cotrain
from cotrain.cli.main import main
from cotrain.core import threads
from cotrain.core.threads import choose_threads, usable_cores, usual_threads


@pytest.mark.parametrize(("asked", "expected"), [("1", 1), ("3", 3), ("5,2", 5), (" 4 ", 4)])
def test_what_openmp_is_told_counts(monkeypatch, asked, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert usual_threads() == expected


@pytest.mark.parametrize("asked", [None, "", "0", "many", "-1"])
def test_otherwise_it_is_the_cores_that_are_ours(monkeypatch, asked):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert usual_threads() == len(os.sched_getaffinity(0))


def test_a_system_that_does_not_say_which_cores_are_ours_gives_all(monkeypatch):
    """As macOS, where ``os`` has no such function."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert usual_threads() == usable_cores() == 7


LINUX = re.compile(
    "copy_file_range|eventfd.*|fdatasync|getrandom|getres.id|memfd_create|O_DIRECT|O_PATH|O_TMPFILE|pidfd_.*|pipe2|"
    "posix_fadvise|posix_fallocate|preadv|pwritev|sched_.*|setns|setres.id|splice|unshare|waitid|.*xattr"
)


def test_outside_of_the_sandboxes_only_what_macos_has_is_called():
    """By Python's documentation of ``os``; with ``getattr`` it may be asked for. Sandboxes look first what there is."""
    package = Path(cotrain.__file__).parent
    for path in package.rglob("*.py"):
        if package / "grading" / "sandbox" not in path.parents:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                    assert not LINUX.fullmatch(node.attr), (path, node.lineno, node.attr)


@pytest.mark.parametrize(
    ("given", "busy", "told"),
    [(4, 1.0, True), (4, 0.4, False), (2, 2.4, False), (2, 2.6, True), (1, 4.0, False), (None, 4.0, True)],
)
def test_more_threads_than_others_leave_processors_are_advised_against(given, busy, told, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threads, "busy_elsewhere", lambda: busy)
    assert choose_threads(given) == (given or 3)
    said = capsys.readouterr()
    assert ("--threads 1" in said.err) is told and said.out == ""


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_a_command_bounds_how_long_threads_spin_unless_the_user_says_otherwise(given, spins, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what the command sets is taken back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main(["--version"]) == 0
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_torch_is_imported_by_no_command_line_before_that():
    code = "import sys, cotrain.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_busy_processors_are_those_that_were_not_idle_meanwhile(monkeypatch):
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    looks = iter([(1000, 5000), (1030, 5040)])
    monkeypatch.setattr(threads, "cpu_ticks", lambda: next(looks))
    assert threads.busy_elsewhere(0) == pytest.approx(1.0)


def test_without_the_kernels_figures_the_load_stands_in(monkeypatch):
    def unknown():
        raise FileNotFoundError

    monkeypatch.setattr(threads, "cpu_ticks", unknown)
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (2.5, 0.0, 0.0))
    assert threads.busy_elsewhere(0) == 2.5


def test_idle_ticks_are_a_part_of_all():
    idle, total = threads.cpu_ticks()
    assert 0 < idle < total
