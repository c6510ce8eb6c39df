"""The event loop of a play, without an engine."""

from __future__ import annotations

import asyncio

import pytest

from cotrain.core.errors import DataError
from cotrain.rollout.event_loop import IdleLoop, pausing_engine, together


def test_busy_belongs_to_a_play():
    async def outside():
        async with pausing_engine():
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
    loop = IdleLoop()
    assert loop.run_to_end(together([])) == []
    assert loop.run_to_end(together([asyncio.sleep(0, i) for i in range(3)])) == [0, 1, 2]
    with pytest.raises(DataError, match="first"):
        loop.run_to_end(together([waits(), fails(2, DataError("first")), fails(2, ValueError("second"))]))
    assert cancelled == [True]
    loop.close()
