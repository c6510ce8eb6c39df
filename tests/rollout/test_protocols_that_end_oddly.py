"""Whatever a protocol raises, or ends that is not its own, costs its episode, or is one line; never the run in
silence."""

from __future__ import annotations

import asyncio
import re
import sys
import time

import pytest

from cotrain.core.errors import CotrainError, error_text
from cotrain.core.types import Sampling
from cotrain.rollout import event_loop
from cotrain.rollout.event_loop import EngineEventLoop, gather
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import CharRenderer
from tests.sentences import refuses
from tests.trainer.test_evaluation import Exact, Warm


class Odd(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def played(act, members=2):
    """What becomes of episodes of which the first one does this, before it asks anybody."""

    async def protocol(task, roles):
        turn = await roles.solver(problem=task.prompt)
        if turn.address.member == 0:
            await act()

    from cotrain.core.types import Task

    role = Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=99))
    executor = RolloutRunner(Warm(), {"a": CharRenderer()}, {"solver": role}, 0)
    task = Task(id="t/0", prompt="0", gold="1", solution=None, difficulty=0, grader=Exact())
    return [episode.failure for episode in executor.collect(protocol, [task], step=0, group_size=members)]


def raising(error):
    async def act():
        raise error

    return act


async def stops_the_loop():
    asyncio.get_running_loop().stop()


async def closes_the_loop():
    asyncio.get_running_loop().close()


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def awaits_what_it_cancelled():
    other = asyncio.create_task(asyncio.sleep(10))
    other.cancel()
    await other


async def raises_in_a_part():
    await gather([raising(Odd("in a part"))(), asyncio.sleep(0)])


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (raising(asyncio.CancelledError()), "CancelledError: without a message"),
        (raising(GeneratorExit("gone")), "GeneratorExit: gone"),
        (raising(SystemExit(0)), "SystemExit: 0"),
        (raising(Odd("odd")), "Odd: odd"),
        (raising(ValueError()), "ValueError: without a message"),
        (raising(ValueError("two\nlines")), "ValueError: two lines"),
        (raising(Unprintable()), "Unprintable: its text cannot be had"),
        (stops_the_loop, "a protocol cannot stop the loop it runs in; return, or raise an exception"),
        (closes_the_loop, "a protocol cannot close the loop it runs in; return, or raise an exception"),
        (cancels_itself, "CancelledError: without a message"),
        (awaits_what_it_cancelled, "CancelledError: without a message"),
        (raises_in_a_part, "Odd: in a part"),
    ],
)
def test_it_costs_its_own_episode_and_says_the_line(act, told):
    first, second = played(act)
    assert second is None
    assert re.fullmatch(r"test_protocols_that_end_oddly.py, line \d+: " + re.escape(told), first)


async def exits_in_a_part():
    await gather([raising(SystemExit(0))()])


async def cancels_everybody():
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (exits_in_a_part, "E_PROTOCOL_ENDS_RUN: test_protocols_that_end_oddly.py"),
        (cancels_everybody, "E_PROTOCOL_CANCELS_PLAY"),
    ],
)
def test_what_ends_the_play_says_so_in_one_line(act, code):
    with refuses(code) as ended:
        played(act)
    assert isinstance(ended.value, CotrainError) and "\n" not in error_text(ended.value)


@pytest.mark.whole
def test_a_protocol_that_polls_is_named(monkeypatch, capsys):
    monkeypatch.setattr(event_loop, "STALL_SECONDS", 0.2)
    asked, last = [], asyncio.Event

    async def polls():
        until = time.thread_time() + 0.7  # of the processor, as the loop counts
        while time.thread_time() < until:
            await asyncio.sleep(0)  # it looks again
        asked.append(last)

    async def waits():
        await asyncio.Event().wait()

    loop = EngineEventLoop()
    with pytest.raises(CotrainError):  # the other one waits for nothing
        loop.run_to_end(gather([waits(), polls()], ["task 0, member 0", "task 0, member 1"]))
    said = capsys.readouterr().err.splitlines()
    assert asked and 1 <= len(said) <= 2
    assert re.match(
        r"note: nothing has moved for 0 s; test_protocols_that_end_oddly.py, line \d+ asks again and again "
        r"\(task 0, member 1\), and no model has a turn meanwhile; .*Ctrl-C, twice, ends the run",
        said[0],
    )


def test_a_failure_that_nobody_awaited_is_one_line(capsys):
    async def forgets():
        task = asyncio.create_task(raising(KeyError("vote"))())
        await asyncio.sleep(0.01)
        del task

    EngineEventLoop().run_to_end(forgets())
    assert re.fullmatch(
        r"note: Task exception was never retrieved: test_protocols_that_end_oddly.py, line \d+: KeyError: 'vote'\n",
        capsys.readouterr().err,
    )


COMMAND = """
import sys, os
from cotrain.core import verbosity
verbosity.secure_streams()
{}
print("after")
"""


@pytest.mark.parametrize("act", ["sys.stdout.close(); sys.stderr.close()", "os.close(1)"])
def test_a_protocol_cannot_close_the_output(act):
    import subprocess

    done = subprocess.run([sys.executable, "-c", COMMAND.format(act)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "after\n", "")
