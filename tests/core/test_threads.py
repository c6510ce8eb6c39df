"""How many threads a command takes when it is not told."""

import os

import pytest

from cotrain.core.threads import usual_threads


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
