"""Seconds by stage: each second is counted once, also through an error."""

import time

import pytest

from cotrain.trainer.flops import StageClock


@pytest.fixture
def now(monkeypatch):
    """A clock that the test moves."""
    moment = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: moment[0])
    return moment


def test_a_stage_inside_of_another_one_interrupts_it(now):
    clock = StageClock()
    with clock.stage("update"):
        now[0] += 1.0
        with clock.stage("credit"):
            now[0] += 2.0
        now[0] += 4.0
    now[0] += 8.0  # between stages nothing is counted
    with clock.stage("credit"):
        now[0] += 16.0
    assert clock.seconds == {"update": 5.0, "credit": 18.0}
    assert clock.total == 23.0


def test_a_stage_that_raises_is_counted(now):
    clock = StageClock()
    with pytest.raises(ValueError), clock.stage("rollout"):
        with clock.stage("update"):
            now[0] += 1.0
        now[0] += 2.0
        raise ValueError
    assert clock.seconds == {"update": 1.0, "rollout": 2.0}
    with clock.stage("rollout"):
        now[0] += 1.0
    assert clock.seconds["rollout"] == 3.0
