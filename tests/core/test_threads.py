"""How many threads a command takes when it is not told."""

import os

import pytest

from cotrain.core import threads
from cotrain.core.threads import settled_threads, usual_threads


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


@pytest.mark.parametrize(
    ("given", "load", "told"), [(2, 4.0, True), (2, 3.9, False), (1, 9.0, False), (None, 9.0, True)]
)
def test_several_threads_on_a_busy_machine_are_advised_against(given, load, told, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert settled_threads(given) == (given or 3)
    said = capsys.readouterr()
    assert ("--threads 1" in said.err) is told and said.out == ""
