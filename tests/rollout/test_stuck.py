"""A play that stands still says where."""

from __future__ import annotations

import asyncio
import time

import pytest

from cotrain.core.verbosity import notes_logged, print_note
from cotrain.rollout import event_loop
from cotrain.rollout.event_loop import EngineEventLoop, engine_paused, gather


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(event_loop, "STALL_SECONDS", 0.3)


def _line_of(function, words):
    lines = function.__code__.co_firstlineno
    with open(__file__, encoding="utf-8") as file:
        source = file.read().split("\n")
    return next(n for n, line in enumerate(source, 1) if n >= lines and words in line)


@pytest.mark.whole
def test_a_protocol_that_computes_without_end_is_named(capsys):
    async def computes():
        await asyncio.sleep(0)
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            pass  # endless, but for the test

    EngineEventLoop().run_to_end(computes())
    said = capsys.readouterr().err.splitlines()
    assert said
    assert all(line.startswith("note: test_stuck.py, line ") and "has computed for" in line for line in said)
    first = _line_of(computes, "while time.monotonic()")
    assert {line.split("line ")[1].split()[0] for line in said} <= {str(first), str(first + 1)}
    assert len(said) <= 4  # at 0.3, 0.6, 1.2 and 2.4 seconds


def test_a_protocol_that_sleeps_for_long_is_named(capsys):
    async def waits():
        await deeper()

    async def deeper():
        await asyncio.sleep(0.8)

    EngineEventLoop().run_to_end(gather([waits(), waits()], ["task 0, member 0", "task 0, member 1"]))
    said = capsys.readouterr().err.splitlines()
    assert 1 <= len(said) <= 2  # after 0.3 and 0.6 seconds
    assert f"test_stuck.py, line {_line_of(deeper, 'sleep(0.8)')} waits (task 0, member 0, and 1 more)" in said[0]
    assert said[0].startswith("note: nothing has moved for 0 s; ")


@pytest.mark.whole
def test_a_process_that_gets_no_processor_asks_for_nothing(monkeypatch, capsys):
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)

    async def polls():
        until = time.monotonic() + 0.7
        while time.monotonic() < until:
            await asyncio.sleep(0)

    EngineEventLoop().run_to_end(gather([polls(), polls()], ["task 0, member 0", "task 0, member 1"]))
    assert capsys.readouterr().err == ""


def test_a_tool_that_does_not_answer_is_named(capsys):
    async def waits():
        loop, answer = asyncio.get_running_loop(), asyncio.Event()
        loop.run_in_executor(None, lambda: (time.sleep(0.8), loop.call_soon_threadsafe(answer.set)))
        async with engine_paused():
            await answer.wait()

    EngineEventLoop().run_to_end(waits())
    assert f"line {_line_of(waits, 'await answer.wait()')} waits" in capsys.readouterr().err


def test_an_engine_that_works_for_long_is_no_trouble(capsys):
    async def asks():
        await answer.wait()

    def advance():
        time.sleep(1.5)
        answer.set()
        return True

    answer = asyncio.Event()
    EngineEventLoop().run_to_end(asks(), advance)
    assert capsys.readouterr().err == ""


def test_many_short_waits_between_which_the_engine_works_are_no_trouble(capsys):
    async def asks():
        for _ in range(12):
            await asyncio.sleep(0.05)
            answers.append(asyncio.Event())
            await answers[-1].wait()

    def advance():
        if answers and not answers[-1].is_set():
            answers[-1].set()
            return True
        return False

    answers = []
    EngineEventLoop().run_to_end(asks(), advance)
    assert capsys.readouterr().err == ""


def busy_for(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_an_update_between_two_plays_is_no_polling(capsys):
    """What the learners compute between two plays was counted from the last turn of the first play on."""

    async def play():
        for _ in range(3):
            await asyncio.sleep(0)

    loop = EngineEventLoop()
    loop.run_to_end(play())
    busy_for(0.5)
    loop.run_to_end(play())
    assert capsys.readouterr().err == ""


def test_coroutines_that_compute_one_after_the_other_do_not_poll(capsys):
    async def computes():
        await asyncio.sleep(0)
        busy_for(0.1)

    EngineEventLoop().run_to_end(gather([computes() for _ in range(6)]))
    assert "asks again and again" not in capsys.readouterr().err


def test_such_notes_are_logged_by_the_run_that_goes_on(capsys):
    async def waits():
        await asyncio.sleep(0.5)

    with notes_logged(str):  # those of other tests
        pass
    logged = []
    print_note("said before")
    with notes_logged(logged.append):
        EngineEventLoop().run_to_end(waits())
    EngineEventLoop().run_to_end(waits())
    assert logged[0] == "note: said before" and len(logged) == 2 and "nothing has moved for" in logged[1]
    assert capsys.readouterr().err.count("nothing has moved for") == 2
    with notes_logged(logged.append):
        pass
    assert len(logged) == 3 and "nothing has moved for" in logged[2], "of the run that begins next"
