"""The event loop of a play, without an engine."""

from __future__ import annotations

import asyncio
import gc

import pytest

from cotrain.core.errors import DataError
from cotrain.rollout.event_loop import EngineEventLoop, engine_paused, gather


def test_busy_belongs_to_a_play():
    async def outside():
        async with engine_paused():
            pass

    with pytest.raises(RuntimeError, match="belongs into a protocol"):
        asyncio.run(outside())


def test_together_raises_the_first_error_in_order():
    async def fails(after, error):
        for _ in range(after):
            await asyncio.sleep(0)
        raise error

    async def waits():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    cancelled = []
    loop = EngineEventLoop()
    assert loop.run_to_end(gather([])) == []
    assert loop.run_to_end(gather([asyncio.sleep(0, i) for i in range(3)])) == [0, 1, 2]
    first = DataError("first")
    with pytest.raises(DataError) as raised:
        loop.run_to_end(gather([waits(), fails(2, first), fails(2, ValueError("second"))]))
    assert raised.value is first
    assert cancelled == [True]
    loop.close()


def test_a_client_that_is_closed_after_its_loop_is_not_reported(capsys):
    """It is closed by the garbage collector, in whatever loop runs; any other failure of a forgotten task is told."""

    async def aclose():
        raise RuntimeError("Event loop is closed")

    async def works():
        raise RuntimeError("Event loop is closed")

    async def forget(coroutine):
        task = asyncio.get_running_loop().create_task(coroutine)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        gc.collect()

    loop = EngineEventLoop()
    loop.run_to_end(forget(aclose()))
    assert capsys.readouterr().err == ""
    loop.run_to_end(forget(works()))
    assert "Event loop is closed" in capsys.readouterr().err
    loop.close()
