"""No test of processes leaves a coroutine behind that still waits: asyncio would tell of it when it is collected."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def what_was_there_before():
    """Is not looked through after each test: that takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_waiting(what_was_there_before, caplog):
    yield
    gc.collect()
    told = [record.getMessage() for phase in ("setup", "call", "teardown") for record in caplog.get_records(phase)]
    assert not [line for line in told if "was destroyed but it is pending" in line]
