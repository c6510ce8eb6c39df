"""What each process is told to have done in a step, and that the backend counts it."""

import asyncio

import pytest
import torch

from cotrain.config.policies import frozen, trainable
from cotrain.distributed.contract import ProcessStats, process_metrics, short_name
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.rollout.event_loop import EngineEventLoop, gather
from tests.distributed.processes import Here
from tests.helpers import TINY, request


def test_a_step_by_hand():
    before = {
        "learners": ProcessStats(policies=("a", "b"), busy=2.0, published_bytes=100, publish_seconds=0.5),
        "engine": ProcessStats(policies=("a",), busy=3.0, tokens=40.0, published_bytes=100, publish_seconds=0.25),
    }
    after = {
        "learners": ProcessStats(policies=("a", "b"), busy=3.5, published_bytes=160, publish_seconds=1.0),
        "engine": ProcessStats(policies=("a",), busy=7.0, tokens=60.0, published_bytes=160, publish_seconds=0.5),
    }
    assert process_metrics(before, after, 10.0) == {
        "process/learners/policies": "a b",
        "process/learners/published_bytes": 60,
        "process/learners/publish_seconds": 0.5,
        "process/learners/asleep_seconds": 8.0,  # of 10, 1.5 busy and 0.5 publishing
        "process/engine/policies": "a",
        "process/engine/tokens_per_second": 5.0,  # 20 in 4 s
        "process/engine/published_bytes": 60,
        "process/engine/publish_seconds": 0.25,
        "process/engine/asleep_seconds": 5.75,
    }
    idle = process_metrics(after, after, 1.0)
    assert idle["process/engine/tokens_per_second"] == 0.0 and idle["process/engine/asleep_seconds"] == 1.0


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("the engine's process", "engine"),
        ("the engine's process of generator and verifier", "engine of generator and verifier"),
        ("the engine's process (replica 2 of 3)", "engine 2 of 3"),
        ("the learners' process", "learners"),
        ("the learners' process (rank 0 of 2)", "rank 0 of 2"),
    ],
)
def test_names_are_short(what, name):
    assert short_name(what) == name


@pytest.mark.whole
def test_what_each_process_does_is_counted():
    torch.set_num_threads(1)
    backend = MultiProcessBackend(Here(), replicas=2)
    handles = backend.open({"generator": trainable(TINY), "reference": frozen(TINY)}, seed=0)
    start = backend.process_stats()
    assert list(start) == ["learners", "engine 1 of 2", "engine 2 of 2"]
    assert {one.policies for one in start.values()} == {("generator", "reference")}
    loop = EngineEventLoop()
    said = loop.run_to_end(
        gather([backend.engine.sample(request(policy="generator", task=task)) for task in range(4)]),
        backend.engine.advance,
    )
    loop.close()
    played = backend.process_stats()
    assert sum(played[name].tokens for name in list(start)[1:]) == sum(len(one.token_ids) for one in said)
    assert all(played[name].tokens > 0 and played[name].busy > start[name].busy for name in list(start)[1:])
    assert played["learners"] == start["learners"] and played["learners"].tokens is None
    backend.publish("generator", 1)
    size = sum(weight.numel() * weight.element_size() for _, weight in handles["generator"].weights())
    published = backend.process_stats()
    assert {one.published_bytes for one in published.values()} == {size}
    assert all(one.publish_seconds > 0 for one in published.values())
    assert published["learners"].busy > played["learners"].busy  # ``weights`` above
    assert played["learners"].published_bytes == 0  # what was told does not change
    asyncio.run(backend.close())


def test_a_run_in_one_process_has_none():
    backend = LocalBackend()
    backend.open({"generator": trainable(TINY)}, seed=0)
    assert backend.process_stats() == {}
