"""``cotrain.run`` could not be called where an event loop runs already, as in every cell of a notebook, and printed
nothing."""

from __future__ import annotations

import _thread
import asyncio
import sys
import threading
from dataclasses import replace

import pytest
import torch

import cotrain
from cotrain.config.schedule import constant_schedule
from cotrain.recipes.grpo import grpo
from cotrain.rollout.event_loop import EngineEventLoop
from cotrain.rollout.protocols import solve
from cotrain.runs.log import SilentObserver
from tests.helpers import EASY, TINY
from tests.runs.test_run import digest
from tests.sentences import refuses

ROOM = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-3, "kl": 0.0, "steps": 2}


def brief():
    made = grpo(tasks=EASY, **ROOM)
    return replace(made, evaluation=replace(made.evaluation, group_size=2, greedy=False, splits=()))


@pytest.mark.whole
def test_a_run_inside_of_a_running_loop_is_the_same_run(tmp_path, capsys):
    torch.set_num_threads(1)
    cotrain.run(brief(), out=tmp_path / "script")

    async def cell():
        cotrain.run(brief(), out=tmp_path / "notebook")
        return cotrain.evaluate(tmp_path / "notebook", tasks=1)

    asyncio.run(cell())
    assert digest(tmp_path / "notebook") == digest(tmp_path / "script")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cotrain-loop")]
    said = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("step 2/2 | generator | solver: ") for line in said) == 2
    assert any(line.startswith("measuring the start") for line in said)


@pytest.mark.whole
def test_who_watches_a_run_may_be_chosen(tmp_path, capsys):
    cotrain.run(brief(), out=tmp_path / "run", observer=SilentObserver())
    assert capsys.readouterr().out == ""


@pytest.mark.whole
def test_a_failure_inside_of_a_running_loop_is_one_line_and_can_be_tried_again(tmp_path):
    async def breaks(task, roles):
        raise KeyError("vote")

    breaks.gives = solve.gives

    async def cell():
        with refuses(
            "E_TOO_MANY_FAILURES", names=("step 1", "4 of 4", "test_runs_in_a_notebook.py, line", "KeyError: 'vote'")
        ):
            cotrain.run(replace(brief(), schedule=constant_schedule(breaks, "generator")), out=tmp_path / "run")
        cotrain.run(brief(), out=tmp_path / "run")

    asyncio.run(cell())


def test_what_interrupts_a_cell_ends_its_play():
    """It raises where the cell waits; what plays must not go on behind it."""
    loop, began = EngineEventLoop(), threading.Event()

    async def play():
        began.set()
        while True:
            await asyncio.sleep(0.01)

    def interrupt():
        began.wait()
        _thread.interrupt_main()

    async def cell():
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            loop.run_to_end(play())

    running = asyncio.new_event_loop()  # asyncio.run would take the interruption for its own
    running.run_until_complete(cell())
    running.close()
    assert not loop.is_running() and not asyncio.all_tasks(loop)
    loop.close()


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("grpo", "E_NOT_RECIPE: 'grpo' | 100"),
        (grpo, "E_NOT_RECIPE"),
        (sys.modules[grpo.__module__], "E_NOT_RECIPE"),
        (cotrain.GRPO, "E_NOT_RECIPE"),
        (cotrain.RLOO(reward_weights={cotrain.OUTCOME: 1.0}), "E_NOT_RECIPE"),
        (brief, "E_NOT_RECIPE: 100"),
        (3, "E_NOT_RECIPE"),
    ],
)
def test_what_is_no_recipe_is_told_how_to_make_one(given, code, tmp_path):
    with refuses(code):
        cotrain.run(given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
