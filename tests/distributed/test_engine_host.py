"""A host whose process lives on gives up what is open when it is closed."""

import asyncio
import gc

import torch

from cotrain.config.policies import trainable
from cotrain.core.types import Sampling
from cotrain.distributed.engine_host import EngineHost, to_host_request
from cotrain.rollout.event_loop import EngineEventLoop
from tests.helpers import TINY, request


def destroyed(capsys):
    gc.collect()
    return [line for line in capsys.readouterr().err.splitlines() if "was destroyed but it is pending" in line]


def half_done():
    """A host that has answered one of two requests."""
    torch.set_num_threads(1)
    host = EngineHost({"generator": trainable(TINY)}, 0, "cpu", 1)
    lengths = (2, 40)
    asked = [
        to_host_request(n, request(policy="generator", task=n, sampling=Sampling(max_tokens=lengths[n])))
        for n in range(2)
    ]
    answered, *_ = host.advance(asked, [])
    assert [one.number for one in answered] == [0] and len(host._tasks) == 1
    return host


def test_a_closed_host_leaves_no_task(capsys):
    host = half_done()
    loop = host._loop
    host.close()
    assert not host._tasks and not asyncio.all_tasks(loop) and loop.is_closed()
    host.close()
    del host, loop
    assert not destroyed(capsys)


def test_what_is_looked_for_is_told_of_a_host_that_is_not_closed(capsys):
    host = half_done()
    loop = host._loop
    del host, loop
    assert len(destroyed(capsys)) == 1
    assert not destroyed(capsys)


def test_a_loop_that_is_closed_ends_what_waits(capsys):
    loop, seen = EngineEventLoop(), []

    async def waits():
        try:
            await loop.create_future()
        finally:
            seen.append("ended")

    loop.create_task(waits())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert seen == ["ended"] and loop.is_closed()
    assert not destroyed(capsys)
