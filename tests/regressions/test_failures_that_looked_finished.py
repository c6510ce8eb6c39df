"""A held-out protocol that broke in every episode ended with exit code 0, "no alarm" and no figure; a run that broke in
its first step left a directory in the way of the next try."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from cotrain import api
from cotrain.config.schedule import constant_schedule
from cotrain.core.errors import TooManyFailures
from cotrain.metrics.heldout import measure_solver
from cotrain.recipes.grpo import grpo
from cotrain.reports.run_report import report_documents
from cotrain.reports.runs import RunView
from cotrain.reports.top import snapshot
from cotrain.rollout.protocols import solve
from cotrain.trainer.failures import StoppedBySignal
from tests.helpers import EASY, TINY
from tests.sentences import refuses

ROOM = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 2, "lr": 1e-3, "kl": 0.0}
COUNTS = {"calls": 0}


def brief(steps=2, evaluate=solve, train=solve, **settings):
    made = grpo(steps=steps, tasks=EASY, **ROOM, **settings)
    measured = replace(
        made.evaluation,
        protocol=evaluate,
        measures=(measure_solver("solver", 2),),
        group_size=2,
        greedy=False,
        splits=(),
    )
    return replace(made, evaluation=replace(measured, curve_tasks=2), schedule=constant_schedule(train, "generator"))


async def breaks(task, roles):
    await roles.solver(problem=task.prompt)
    raise TypeError("voted() got an unexpected keyword argument 'vote'")


async def breaks_later(task, roles):
    """Behind the first measurement of two problems and two episodes each."""
    COUNTS["calls"] += 1
    if COUNTS["calls"] > 4:
        await breaks(task, roles)
    await solve(task, roles)


breaks.gives = breaks_later.gives = solve.gives


@pytest.mark.whole
def test_a_start_that_cannot_be_measured_ends_the_run_and_leaves_nothing(tmp_path):
    with refuses("E_TOO_MANY_FAILURES", names=("held-out problems of test", "4 of 4", "TypeError", "'vote'")):
        api.run(brief(evaluate=breaks), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.whole
def test_answers_of_which_nobody_says_whether_they_are_right_are_not_measured_as_wrong(tmp_path):
    async def asks(task, roles):
        await roles.solver(problem=task.prompt)

    with refuses("E_ANSWERS_NOT_EXAMINED", names=("of test", "measure_solver('solver')", "none of 4", "examine")):
        api.run(brief(evaluate=asks), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.whole
def test_what_ended_a_run_stands_on_its_page_until_it_goes_on(tmp_path):
    COUNTS["calls"] = 0
    with pytest.raises(TooManyFailures):
        api.run(brief(evaluate=breaks_later, evaluate_every=1), tmp_path / "run")
    run = RunView(tmp_path / "run")
    shown = json.loads(report_documents(run)["overview"])
    assert shown["run"]["stopped"] and not shown["run"]["ended"] and snapshot(run)["stopped"]
    assert "stopped after step 0: held-out problems of validation: 4 of 4 episodes failed" in shown["notes"][0]
    assert b"stopped after step 0" in (tmp_path / "run" / "report.html").read_bytes()
    COUNTS["calls"] = -100
    api.resume(tmp_path / "run", recipe=brief(evaluate=breaks_later, evaluate_every=1))
    assert not (tmp_path / "run" / "stopped.json").exists() and not snapshot(RunView(tmp_path / "run"))["stopped"]


@pytest.mark.whole
def test_a_run_that_never_finished_a_step_can_be_begun_again(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(TooManyFailures):
        api.run(brief(train=breaks), out)
    assert (out / "before.json").exists() and (out / "report.html").exists()
    api.run(brief(steps=1), out)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
    with refuses("E_OUT_HOLDS_RUN", names=(str(out), "finished")):
        api.run(brief(), out)


@pytest.mark.whole
def test_one_that_was_stopped_in_its_first_step_too(tmp_path):
    COUNTS["calls"] = 0

    async def stops(task, roles):
        COUNTS["calls"] += 1
        if COUNTS["calls"] == 1:
            signal.raise_signal(signal.SIGTERM)
        await solve(task, roles)

    stops.gives = solve.gives
    with pytest.raises(StoppedBySignal):
        api.run(brief(train=stops), tmp_path / "run")
    api.run(brief(steps=1), tmp_path / "run")


@pytest.mark.whole
def test_nothing_is_removed_that_a_run_did_not_write(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(TooManyFailures):
        api.run(brief(train=breaks), out)
    (out / "notes.txt").write_text("mine")
    with refuses("E_OUT_HOLDS_RUN", names=f"cotrain resume {out}"):
        api.run(brief(steps=1), out)
    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    (other / "checkpoints" / "mine").write_text("mine")
    with refuses("E_OUT_NOT_EMPTY", names=str(tmp_path / "other")):
        api.run(brief(steps=1), other)
    assert (other / "checkpoints" / "mine").exists() and (out / "notes.txt").exists()
