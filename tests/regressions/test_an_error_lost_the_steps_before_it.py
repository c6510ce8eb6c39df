"""A run of 25 steps between checkpoints whose reward raised in step 20 lost nineteen steps of training; and where
Ctrl-C came while a full disk had not taken a step's row, a checkpoint was saved without that row."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace

import pytest

from cotrain.core.errors import TooManyFailures
from cotrain.recipes.grpo import grpo
from cotrain.rollout.protocols import solve
from cotrain.runs import out_of_room, run
from cotrain.runs.run import resume_run, start_run
from cotrain.storage import checkpoints
from cotrain.storage.file_ops import Files
from cotrain.storage.jsonl import read_jsonl
from cotrain.trainer.failures import Interrupted
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, Heard
from tests.runs.test_run import digest

pytestmark = pytest.mark.whole  # each trains several runs

BREAKS_AT: list[int] = []  # steps in which ``solve_unless_broken`` raises


async def solve_unless_broken(task, roles):
    solution = await solve(task, roles)
    if solution.address.step in BREAKS_AT:
        raise ZeroDivisionError("division by zero")


solve_unless_broken.gives = solve.gives


def brief():
    recipe = grpo(steps=3, tasks=EASY, kl=0.0, model=TINY, tasks_per_step=2, group_size=2, evaluation_tasks=1, lr=1e-3)
    phases = tuple(replace(phase, protocol=solve_unless_broken) for phase in recipe.schedule.phases)
    evaluation = replace(recipe.evaluation, group_size=2, greedy=False, frozen_roles={}, splits=())
    return replace(recipe, evaluation=evaluation, schedule=replace(recipe.schedule, phases=phases))


@pytest.fixture(autouse=True)
def _breaks_nowhere():
    BREAKS_AT.clear()
    yield
    BREAKS_AT.clear()


@pytest.fixture(scope="module")
def peaceful_digest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peace") / "run"
    start_run(brief(), folder)
    return digest(folder)


def newest_step(folder):
    return checkpoints.latest_checkpoint(folder / "checkpoints").step


def test_a_run_that_an_error_ends_keeps_the_steps_before_it(peaceful_digest, tmp_path):
    heard = Heard()
    BREAKS_AT.append(2)
    with pytest.raises(TooManyFailures):
        start_run(brief(), tmp_path / "broken", observer=heard)
    assert newest_step(tmp_path / "broken") == 2
    assert "the state after step 2 of 3 is kept. Go on with: cotrain resume" in heard.lines[-1]

    BREAKS_AT.clear()
    resume_run(brief(), tmp_path / "broken")
    assert digest(tmp_path / "broken") == peaceful_digest


def test_a_run_of_slow_steps_says_how_much_a_kill_would_lose(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "LONG_INTERVAL", 0.0)
    heard = Heard()
    start_run(brief(), tmp_path / "slow", observer=heard)
    (note,) = (line for line in heard.lines if "--checkpoint-every" in line)
    assert note.startswith("note: at this pace a checkpoint every 3 steps is one in 0:0")


def test_nothing_is_saved_of_a_step_that_had_begun_its_update(peaceful_digest, tmp_path, monkeypatch):
    """Of an error within an update nobody knows which weights it left."""
    heard = Heard()
    with monkeypatch.context() as patch:
        update = CoTrainer._update_policy

        def broken_update(self, policy, terms):
            learned = update(self, policy, terms)
            if self.finished_steps == 1:
                raise ZeroDivisionError("division by zero")
            return learned

        patch.setattr(CoTrainer, "_update_policy", broken_update)
        with pytest.raises(ZeroDivisionError):
            start_run(brief(), tmp_path / "broken", observer=heard)
    assert checkpoints.latest_checkpoint(tmp_path / "broken" / "checkpoints") is None
    assert "the state after step 0 of 3 is kept; 1 step after that will be done again" in heard.lines[-1]

    resume_run(brief(), tmp_path / "broken")
    assert digest(tmp_path / "broken") == peaceful_digest


@pytest.mark.parametrize("file", ["metrics.jsonl", "timings.jsonl"])
def test_a_step_that_a_full_disk_did_not_take_is_done_again(file, peaceful_digest, tmp_path, monkeypatch):
    """The disk takes no row of the second step. While the run waits, there is room again and the run is stopped."""
    monkeypatch.setattr(out_of_room, "PAUSE_S", 0.0)
    folder = tmp_path / "full"

    class StopsAtPause(Heard):
        def message(self, text):
            super().message(text)
            if text.startswith("paused"):
                monkeypatch.setattr(Files, "write", write)
                os.kill(os.getpid(), signal.SIGTERM)

    write = Files.write

    def refuse_second_row(self, opened, block):
        if opened.name == folder / file and opened.tell() > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, opened, block)

    monkeypatch.setattr(Files, "write", refuse_second_row)
    with pytest.raises(Interrupted):
        start_run(brief(), folder, observer=StopsAtPause())
    resume_run(brief(), folder)
    steps = [row["step"] for row in read_jsonl(folder / "metrics.jsonl") if "kind" not in row]
    assert steps == [0, 1, 2]
    assert digest(folder) == peaceful_digest
