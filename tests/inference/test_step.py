"""``LocalEngine.step``, the engine's gear for servers: one token at a time, entry at once, the tokens of
``advance``."""

import asyncio

import pytest

from cotrain.inference.local import LocalEngine
from tests.helpers import mixed_requests, tiny_model


def stepped(requests, *, every):
    """Completions when a request comes in at every so many steps, and all that ``running_tokens`` said of each on the
    way."""
    engine = LocalEngine({"a": tiny_model(), "b": tiny_model(seed=1)}, max_rows=4)
    seen = {}

    async def play():
        tasks, steps, waiting = [], 0, list(requests)
        while waiting or not all(task.done() for task in tasks):
            if waiting and steps % every == 0:
                tasks.append(asyncio.ensure_future(engine.sample(waiting.pop(0))))
                await asyncio.sleep(0)
            engine.step()
            for address, ids in engine.running_tokens().items():
                seen.setdefault(address, []).append(tuple(ids))
            await asyncio.sleep(0)
            steps += 1
        assert not engine.step()  # nothing left
        return [task.result() for task in tasks]

    return asyncio.run(play()), seen


@pytest.mark.whole
def test_requests_that_come_one_by_one_get_the_tokens_of_one_batch():
    requests = mixed_requests(["a", "b"], 10)
    together, _ = stepped(requests, every=1)
    apart, seen = stepped(requests, every=3)
    assert [c.token_ids for c in apart] == [c.token_ids for c in together]
    for request, completion in zip(requests, apart, strict=True):
        on_the_way = seen.get(request.address, [])
        lengths = {len(ids): None for ids in on_the_way}  # the same twice where another request entered
        assert list(lengths) == list(range(1, len(completion.token_ids)))
        assert all(completion.token_ids[: len(ids)] == ids for ids in on_the_way)
