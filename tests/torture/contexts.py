"""A pytest plugin: coverage notes under each line the test that ran it, fixtures included, and how long each test took.

coverage run -m pytest -p tests.torture.contexts      durations go to the file named by COTRAIN_TEST_DURATIONS
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_seconds: dict[str, float] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(item.nodeid)
    began = time.monotonic()
    yield
    _seconds[item.nodeid] = time.monotonic() - began
    if measured is not None:
        measured.switch_context("")


def pytest_sessionfinish() -> None:
    if place := os.environ.get("COTRAIN_TEST_DURATIONS"):
        Path(place).write_text(json.dumps(_seconds), encoding="utf-8")
